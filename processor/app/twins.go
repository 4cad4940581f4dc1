package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// twinsShown is how long 'oncebus doctor' names the processes that share an instance id, after one of them
// fenced another.
const twinsShown = 10 * time.Minute

// twinFacts are the processes that have used an instance id.
type twinFacts struct {
	// processes are those that wrote the row of the instance, the newest last. A restart adds a process, too.
	processes []string
	fenced    map[string]time.Time // the processes that said that another process fenced them, and when
}

// note takes what a process said about itself.
func (t *twinFacts) note(s *Seen) {
	if s.Process == "" {
		return
	}
	t.processes = append(slices.DeleteFunc(t.processes, func(p string) bool { return p == s.Process }), s.Process)
	if !s.Fenced.IsZero() {
		t.fenced[s.Process] = s.Fenced
	}
}

// named returns the processes, at least two, that fence each other at the time now, and when the last of them
// was fenced. It returns none if no process says that it was fenced. If only one process says so, the other one
// must be the process that started last, because that process fenced the first one.
func (t *twinFacts) named(now time.Time) (names []string, last time.Time) {
	for _, p := range t.processes {
		if at := t.fenced[p]; now.Sub(at) < twinsShown {
			names = append(names, p)
			if at.After(last) {
				last = at
			}
		}
	}
	for _, p := range slices.Backward(t.processes) {
		if len(names) == 1 && p != names[0] {
			names = append(names, p)
		}
	}
	return names, last
}

// readTwins reads from the manifest topic which processes used each instance id, and which of them were fenced.
// It also reads older rows, as far as compaction has left them: the newest row of an id shows only one process.
func (f *Facts) readTwins(ctx context.Context, c Conn) error {
	t := f.topology
	if _, ok := t.Topics[t.Manifest]; !ok {
		return nil // the app has never run
	}
	reader := kafka.NewReader(c.Client, t.Manifest, t.Topics[t.Manifest].ID, 0)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return err
	}
	f.twins = map[string]*twinFacts{}
	return reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			f.noteSeen(rec)
		}
		return nil
	})
}

// noteSeen takes a record of the manifest topic. It ignores a row that cannot be read.
func (f *Facts) noteSeen(rec *kgo.Record) {
	instance, is := strings.CutPrefix(string(rec.Key), seenPrefix)
	var seen Seen
	if !is || json.Unmarshal(rec.Value, &seen) != nil {
		return
	}
	if f.twins[instance] == nil {
		f.twins[instance] = &twinFacts{fenced: map[string]time.Time{}}
	}
	f.twins[instance].note(&seen)
}

// judgeTwins finds processes that share an instance id and fence each other.
func (f *Facts) judgeTwins() (findings []Finding) {
	for _, instance := range slices.Sorted(maps.Keys(f.twins)) {
		if names, last := f.twins[instance].named(f.Clock()); len(names) > 0 {
			findings = append(findings, Finding{
				Level:  AtRisk,
				Text:   fmt.Sprintf("processes of the instance id %s fence each other, last at %s: %s; while one works the other waits, or both begin again and again", instance, last.UTC().Format(time.RFC3339), strings.Join(names, "; ")),
				Action: "give each process its own ONCEBUS_INSTANCE_ID, or stop one",
			})
		}
	}
	if findings == nil {
		return []Finding{{Text: "no two processes share an instance id"}}
	}
	return findings
}
