package app

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Problem says why a partition waits for an operator's decision.
type Problem string

// The problems. Each is a name in the manifest topic and in the output of
// 'oncebus accept'.
const (
	// StateLost: the changelog had rows and has none now, and no local store has them.
	StateLost Problem = "state-lost"
	// ChangelogCut: somebody deleted rows from the changelog, and no local store is
	// known to have them.
	ChangelogCut Problem = "changelog-cut"
	// ChangelogShortened: the changelog ends before the position of the local store, or
	// before the transaction that set the group's offset.
	ChangelogShortened Problem = "changelog-shortened"
	// InputDeleted: records were deleted before they were read.
	InputDeleted Problem = "input-deleted"
	// InputShortened: a broker lost records that were processed.
	InputShortened Problem = "input-shortened"
	// OffsetsLost: the group of the routing stage has no offset for a partition that
	// was read.
	OffsetsLost Problem = "offsets-lost"
	// OffsetsReset: the group's offset is lower than one that it has committed.
	OffsetsReset Problem = "offsets-reset"
	// OffsetsAhead: somebody set the group's offset ahead of the records that were routed.
	OffsetsAhead Problem = "offsets-ahead"
	// TopicRecreated: the topic was deleted and recreated.
	TopicRecreated Problem = "topic-recreated"
	// RecordUnreadable: an internal topic has a record that this build cannot read.
	RecordUnreadable Problem = "record-unreadable"
)

// Way is a way on after a refusal.
type Way string

// The ways. An operator chooses one with a flag of 'oncebus accept'.
const (
	BelieveLocal     Way = "local"      // --believe local
	BelieveChangelog Way = "changelog"  // --believe changelog
	BelieveNothing   Way = "nothing"    // --believe nothing
	InputLost        Way = "input-lost" // --input-lost
	FromMark         Way = "mark"       // --from mark
	FromStart        Way = "start"      // --from start
	FromGroup        Way = "group"      // --from group
	FromOffset       Way = "offset"     // --from N
	SkipRecord       Way = "skip"       // --skip
)

// Flag returns the flag that chooses a way.
func (w Way) Flag() string {
	switch w {
	case BelieveLocal, BelieveChangelog, BelieveNothing:
		return "--believe " + string(w)
	case InputLost:
		return "--input-lost"
	case FromMark, FromStart, FromGroup:
		return "--from " + string(w)
	case FromOffset:
		return "--from OFFSET"
	case SkipRecord:
		return "--skip"
	}
	return ""
}

// Refusal is a partition that waits for an operator's decision. The process that has the
// partition writes it to the manifest topic, where 'oncebus accept' finds it.
type Refusal struct {
	Topic     string  `json:"topic"` // of a task, or a routed input topic
	Partition int32   `json:"partition"`
	Problem   Problem `json:"problem"`
	// Facts identify what the decision is about. An acceptance of other facts has no
	// effect, so it is used once.
	Facts string `json:"facts"`
	// Detail says in words what is known.
	Detail string `json:"detail"`
	Ways   []Way  `json:"ways"`
	// Record is the topic/partition/offset of a record that cannot be read; "" for another
	// problem.
	Record string `json:"record,omitempty"`
	// Row is the key of a row of the manifest topic that cannot be read; "" for another problem.
	Row string `json:"row,omitempty"`
	// At is when the process refused, by its clock, and Instance names it.
	At       time.Time `json:"at"`
	Instance string    `json:"instance,omitempty"`
}

// RefuseRecord returns the refusal of a task at a record that this build cannot read.
func RefuseRecord(id TaskID, e *wire.UnreadableError) Refusal {
	return Refusal{
		Topic: id.Topic, Partition: id.Partition, Problem: RecordUnreadable, Ways: []Way{SkipRecord}, Record: e.Record, Facts: "digest " + e.Digest,
		Detail: e.Error(), At: time.Now().UTC(),
	}
}

// Name returns topic/partition.
func (r *Refusal) Name() string { return TaskID{r.Topic, r.Partition}.String() }

// decidedBy returns the name of the decision on it. One on a record has a name of its own, and
// stays: the record may be read again, and another one of the partition decided meanwhile.
func (r *Refusal) decidedBy() string { return cmp.Or(r.Record, r.Name()) }

// Command returns the command that decides, with the first way.
func (r *Refusal) Command() string {
	if r.Row != "" {
		return fmt.Sprintf("oncebus accept --row '%s'", r.Row)
	}
	flag := "--task"
	if slices.Contains(r.Ways, FromStart) {
		flag = "--route"
	}
	return fmt.Sprintf("oncebus accept %s %s %s", flag, r.Name(), r.flags())
}

// flags returns the flags of the ways.
func (r *Refusal) flags() string {
	flags := make([]string, len(r.Ways))
	for n, way := range r.Ways {
		flags[n] = way.Flag()
	}
	return strings.Join(flags, " | ")
}

// Text says what is wrong and how to go on.
func (r *Refusal) Text() string {
	return fmt.Sprintf("%s waits for a decision (%s): %s; decide with: %s", r.Name(), r.Problem, r.Detail, r.Command())
}

// Acceptance is an operator's decision.
type Acceptance struct {
	Facts string `json:"facts"` // of the refusal
	Way   Way    `json:"way"`
	// Unique makes the app treat events whose duplicates may be unknown as unique.
	// Otherwise they go by the late policy of their route.
	Unique bool  `json:"unique,omitempty"`
	Offset int64 `json:"offset,omitempty"` // of FromOffset
	// By and Why are for people.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
	// At is the broker time of the decision, ms. The record's timestamp has it.
	At int64 `json:"-"`
}

const refusedPrefix, acceptedPrefix = "refused/", "accept/"

// Decisions are the refusals and acceptances in the manifest topic, by topic/partition. The
// acceptance of a record has its topic/partition/offset.
type Decisions struct {
	Refusals    map[string]Refusal
	Acceptances map[string]Acceptance
	Marks       map[string]Mark
	// UnreadMarks are the marks that cannot be read: their partitions wait. A refusal or an
	// acceptance that cannot be read counts as missing: the partition goes on waiting.
	UnreadMarks map[string]*wire.UnreadableError
}

// Sorted returns the refusals by name.
func (d *Decisions) Sorted() []Refusal {
	var all []Refusal
	for _, r := range d.Refusals {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Refusal) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// ReadDecisions reads the manifest topic. holds takes its holds, unless it is nil.
func ReadDecisions(ctx context.Context, client *kgo.Client, t *Topology, holds *Holds) (*Decisions, error) {
	d := &Decisions{Refusals: map[string]Refusal{}, Acceptances: map[string]Acceptance{}, Marks: map[string]Mark{}, UnreadMarks: map[string]*wire.UnreadableError{}}
	reader := kafka.NewReader(client, t.Manifest, t.Topics[t.Manifest].ID, 0)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	unread := unreadRows{}
	err = reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			d.add(rec)
			if holds != nil {
				_, err := holds.Take(rec)
				unread.note(rec, err)
			}
		}
		return nil
	})
	return d, cmp.Or(err, unread.first())
}

func (d *Decisions) add(rec *kgo.Record) {
	key := string(rec.Key)
	if name, ok := strings.CutPrefix(key, refusedPrefix); ok {
		_ = put(d.Refusals, name, rec.Value)
		return
	}
	if name, ok := strings.CutPrefix(key, markPrefix); ok {
		delete(d.UnreadMarks, name)
		if err := put(d.Marks, name, rec.Value); err != nil {
			d.UnreadMarks[name] = wire.Unreadable(rec, err)
		}
		return
	}
	name, ok := strings.CutPrefix(key, acceptedPrefix)
	if ok && put(d.Acceptances, name, rec.Value) == nil && rec.Value != nil {
		accepted := d.Acceptances[name]
		accepted.At = rec.Timestamp.UnixMilli()
		d.Acceptances[name] = accepted
	}
}

// put decodes a value into m. It deletes the name of a tombstone, and of a value that cannot be
// decoded.
func put[T any](m map[string]T, name string, value []byte) error {
	delete(m, name)
	if value == nil {
		return nil
	}
	var v T
	if err := json.Unmarshal(value, &v); err != nil {
		return err
	}
	m[name] = v
	return nil
}

// Accepted returns the acceptance of a refusal, if there is one of its facts.
func (d *Decisions) Accepted(r *Refusal) (Acceptance, bool) {
	a, ok := d.Acceptances[r.decidedBy()]
	return a, ok && a.Facts == r.Facts && slices.Contains(r.Ways, a.Way)
}

// WriteRefusal writes a refusal to the manifest topic.
func WriteRefusal(ctx context.Context, client *kgo.Client, t *Topology, r *Refusal) error {
	return writeRow(ctx, client, t, refusedPrefix+r.Name(), r)
}

// RemoveRefusal removes a refusal after its decision, or when the partition starts
// without one: the row may be of a process that died.
func RemoveRefusal(ctx context.Context, client *kgo.Client, t *Topology, r *Refusal) error {
	return writeRow(ctx, client, t, refusedPrefix+r.Name(), nil)
}

// WriteAcceptance writes a decision on a refusal.
func WriteAcceptance(ctx context.Context, client *kgo.Client, t *Topology, r *Refusal, a Acceptance) error {
	a.Facts = r.Facts
	return writeRow(ctx, client, t, acceptedPrefix+r.decidedBy(), &a)
}

// writeRow writes a row to the manifest topic; a nil value is a tombstone.
func writeRow(ctx context.Context, client *kgo.Client, t *Topology, key string, value any) error {
	rec, err := encodeRow(key, value)
	if err != nil {
		return err
	}
	rec.Topic = t.Manifest
	written := make(chan error, 1)
	client.Produce(ctx, rec, func(_ *kgo.Record, err error) { written <- err })
	select {
	case err := <-written:
		if err != nil {
			return fmt.Errorf("write %s to %s: %w", key, t.Manifest, kafka.Denied(err, "Write", kafka.ResourceTopic, t.Manifest))
		}
		return nil
	case <-ctx.Done():
		// A record that was sent ends with the response only, long after its broker died.
		// A rebalance waits for this call.
		return ctx.Err()
	}
}
