//go:build unix

package main_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest/program"
)

const seedRoutes = `
routes:
  - name: signals
    topics: [APP.signals.raw]
    key: [{field: id}]
    window: 1h
    output: APP.signals.unique
    dead_letter: APP.dead-letter
`

var seedInputs, seedOutputs = []string{"signals.raw"}, []string{"signals.unique", "dead-letter"}

// seedKeys is how many keys are seeded: those of ten seconds of the load, or more.
var seedKeys = max(40_000, 10*int(loadRate))

// seedTraffic sends events without an end: most have new ids, each of which comes twice, and one
// in ten has an id of the seeds.
type seedTraffic struct {
	w    *world
	keys int
	mu   sync.Mutex
	next int // new ids
	err  error
	// place chooses the partition of an id; nil for any one.
	place func(id string) int32
}

func (s *seedTraffic) event(id string) *kgo.Record {
	partition := rand.Int32N(realPartitions)
	if s.place != nil {
		partition = s.place(id)
	}
	return &kgo.Record{
		Topic: s.w.topic("signals.raw"), Partition: partition, Timestamp: time.Now(), Key: []byte(id),
		Value: fmt.Appendf(nil, `{"id":%q}`, id),
	}
}

func (s *seedTraffic) send(r *kgo.Record) {
	s.w.producer.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.err = errors.Join(s.err, err)
	})
}

// run sends at a rate until ctx ends, and waits for the acknowledgements.
func (s *seedTraffic) run(ctx context.Context, rate int) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	var before []string
	for ctx.Err() == nil {
		var ids []string
		for n := range rate / 100 {
			if n%5 == 0 {
				ids = append(ids, fmt.Sprintf("s-%d", rand.IntN(s.keys)))
				continue
			}
			ids = append(ids, fmt.Sprintf("t-%d", s.next))
			s.next++
		}
		for _, id := range append(ids, before...) {
			s.send(s.event(id))
		}
		before = ids
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	err := s.w.producer.Flush(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = errors.Join(s.err, err)
}

// outputPauses watches the output, and has the longest time in which a partition emitted nothing, by
// phase.
type outputPauses struct {
	mu    sync.Mutex
	phase string
	last  map[int32]time.Time
	most  map[string]time.Duration
}

func newOutputPauses() *outputPauses {
	return &outputPauses{last: map[int32]time.Time{}, most: map[string]time.Duration{}}
}

// log logs the longest times, after watch has ended.
func (p *outputPauses) log(t *testing.T) {
	t.Helper()
	for _, phase := range slices.Sorted(maps.Keys(p.most)) {
		t.Logf("%d events/s, %s: a partition emitted nothing for at most %v", loadRate, phase, p.most[phase].Round(time.Millisecond))
	}
}

func (p *outputPauses) begin(phase string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.phase = phase
}

func (p *outputPauses) watch(ctx context.Context, client *kgo.Client) {
	for ctx.Err() == nil {
		fetches := client.PollFetches(ctx)
		now := time.Now()
		p.mu.Lock()
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			if len(f.Records) == 0 {
				return
			}
			if last, ok := p.last[f.Partition]; ok && p.phase != "" {
				p.most[p.phase] = max(p.most[p.phase], now.Sub(last))
			}
			p.last[f.Partition] = now
		})
		p.mu.Unlock()
	}
}

// seed starts 'oncebus seed' as a process.
func (w *world) seed(name, file string) *program.Process {
	w.t.Helper()
	return w.command(name, "seed", "--route", "signals", "-o", "json", file)
}

// awaitSeeds waits until the repartition topic has grown by so many records.
func (w *world) awaitSeeds(p *program.Process, more int64) {
	w.t.Helper()
	size := func(ctx context.Context) (n int64, err error) {
		ends, err := w.admin.ListEndOffsets(ctx, w.app+"-repartition")
		for _, partitions := range ends {
			for _, o := range partitions {
				n += o.Offset
			}
		}
		return n, err
	}
	began, err := size(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, "seeds in the repartition topic", func(ctx context.Context) error {
		if p.Ended() != nil {
			return nil //nolint:nilerr // the command has ended
		}
		now, err := size(ctx)
		if err == nil && now < began+more {
			err = errNotYet
		}
		return err
	})
}

// TestRealSeed seeds keys while events arrive at two processes, and kills the command and a
// process with SIGKILL on the way. Of the seeded keys exactly those are emitted that the command
// lists as too late, and every other event is emitted once.
func TestRealSeed(t *testing.T) {
	t.Parallel()
	rate, keys := int(loadRate), seedKeys
	w := newLoadedWorld(t, seedRoutes)
	w.createTopics(nil, seedInputs...)
	a, b := w.start("a", "LEAVE_ON_STOP=false"), w.start("b", "LEAVE_ON_STOP=false")
	a.awaitReady()
	b.awaitReady()
	var lines bytes.Buffer
	first := time.Now().Add(-time.Minute).UnixMilli()
	for i := range keys {
		fmt.Fprintf(&lines, "s-%d\t%d\n", i, first)
	}
	file := filepath.Join(w.dir, "ids.tsv")
	if err := os.WriteFile(file, lines.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	pauses, stopWatching := w.watchOutput("signals.unique")
	traffic := &seedTraffic{w: w, keys: keys}
	sending, stopSending := context.WithCancel(t.Context())
	var senders sync.WaitGroup
	senders.Go(func() { traffic.run(sending, rate) })
	w.awaitOutputs(pauses)

	pauses.begin("no seed")
	w.awaitSeeds(b.Process, int64(2*rate))
	pauses.begin("seed, command killed 3 times")
	for n := range 3 {
		p := w.seed(fmt.Sprint("seed-", n), file)
		w.awaitSeeds(p, int64(keys/5+rate/2))
		if err := p.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	p := w.seed("seed-3", file)
	w.awaitSeeds(p, int64(keys/10))
	pauses.begin("seed, process killed")
	a.kill()
	ctx, cancel := context.WithTimeout(t.Context(), realDeadline)
	defer cancel()
	code, err := p.ExitCode(ctx)
	if err != nil {
		t.Fatal(err)
	}
	pauses.begin("")
	text, err := p.Log.Text()
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		Lines, Keys, Taken, Known int
		TooLate                   int   `json:"too_late"`
		TooLateLines              []int `json:"too_late_lines"`
		Resumed                   int   `json:"resumed_after"`
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil || code != cli.ExitStopped {
		t.Fatalf("the seed ended with %d: %v\n%s", code, err, text)
	}
	stopSending()
	senders.Wait()
	if traffic.err != nil {
		t.Fatal(traffic.err)
	}
	a = w.start("a", "LEAVE_ON_STOP=false")
	a.awaitReady()
	for range 3000 {
		traffic.send(traffic.event(fmt.Sprintf("s-%d", rand.IntN(keys))))
	}
	if err := w.producer.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.drained(seedInputs, seedOutputs)
	stopWatching()
	w.checkSeeded(traffic.next, keys, report.Taken, report.TooLate, report.TooLateLines)
	if report.Lines != keys || report.Keys != keys || report.Taken+report.Known+report.TooLate != keys || report.Known > 0 {
		t.Errorf("the seed reports %+v of %d lines", report, keys)
	}
	a.stop()
	b.stop()
}

// awaitOutputs waits until each partition of the output has emitted.
func (w *world) awaitOutputs(p *outputPauses) {
	eventually(w.t, "output in each partition", func(context.Context) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.last) < realPartitions {
			return errNotYet
		}
		return nil
	})
}

// checkSeeded compares the output with what was sent: each new id once, and of the seeded ids
// those that the command listed.
func (w *world) checkSeeded(fresh, keys, taken, tooLate int, lines []int) {
	w.t.Helper()
	emitted := map[string]int{}
	for _, r := range w.output("signals.unique") {
		emitted[string(r.Key)]++
	}
	lost, doubled, wrong := 0, 0, 0
	for i := range fresh {
		switch n := emitted[fmt.Sprintf("t-%d", i)]; {
		case n == 0:
			lost++
		case n > 1:
			doubled++
		}
	}
	late := map[int]bool{}
	for _, line := range lines {
		late[line] = true
	}
	seeded := 0
	for i := range keys {
		n := emitted[fmt.Sprintf("s-%d", i)]
		seeded += n
		if n > 1 {
			doubled++
		}
		if len(lines) == tooLate && (n > 0) != late[i+1] {
			wrong++
		}
	}
	if lost+doubled+wrong > 0 || seeded != tooLate {
		w.t.Errorf("%d lost, %d doubled, %d seeded keys emitted, the command counts %d too late, %d differ from its list", lost, doubled, seeded, tooLate, wrong)
	}
	if dead := w.output("dead-letter"); len(dead) > 0 {
		w.t.Errorf("%d dead letters", len(dead))
	}
	w.t.Logf("%d new ids, %d lost, %d doubled; of %d seeds %d taken, %d emitted before their seed and listed", fresh, lost, doubled, keys, taken, tooLate)
}
