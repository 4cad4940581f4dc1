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

// Problem is the reason why a partition waits for an operator's decision.
type Problem string

// The problems. Their values are names in the manifest topic and in the output of 'oncebus accept'.
const (
	// StateLost: the changelog had rows and has none now, and no local store has the rows.
	StateLost Problem = "state-lost"
	// ChangelogCut: somebody deleted rows from the changelog, and no local store is known to have these rows.
	ChangelogCut Problem = "changelog-cut"
	// ChangelogShortened: the changelog ends before the position of the local store, or before the transaction
	// that committed the group's offset.
	ChangelogShortened Problem = "changelog-shortened"
	// InputDeleted: records of the input were deleted before the app read them.
	InputDeleted Problem = "input-deleted"
	// InputShortened: a broker lost records that the app had processed.
	InputShortened Problem = "input-shortened"
	// OffsetsLost: the group of the routing stage has no committed offset for a partition that it has read
	// before.
	OffsetsLost Problem = "offsets-lost"
	// OffsetsReset: the group's committed offset is lower than an offset that it committed earlier.
	OffsetsReset Problem = "offsets-reset"
	// OffsetsAhead: somebody set the group's committed offset ahead of the records that the app has routed.
	OffsetsAhead Problem = "offsets-ahead"
	// TopicRecreated: the topic was deleted and recreated.
	TopicRecreated Problem = "topic-recreated"
	// RecordUnreadable: an internal topic has a record that this build cannot read.
	RecordUnreadable Problem = "record-unreadable"
)

// Way is a way in which a partition can continue after a refusal.
type Way string

// The ways. An operator chooses one of them with a flag of 'oncebus accept'.
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

// Flag returns the flag of 'oncebus accept' that chooses the way.
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

// Refusal is a partition that waits for an operator's decision. The process that has the partition writes the
// Refusal to the manifest topic, where 'oncebus accept' finds it.
type Refusal struct {
	Topic     string  `json:"topic"` // topic of a task, or a routed input topic
	Partition int32   `json:"partition"`
	Problem   Problem `json:"problem"`
	// Facts identify the situation that the operator decides on. An acceptance of other facts has no effect, so
	// an acceptance cannot apply to a later problem of the partition.
	Facts string `json:"facts"`
	// Detail says in words what the process knows.
	Detail string `json:"detail"`
	Ways   []Way  `json:"ways"`
	// Record is the topic/partition/offset of a record that cannot be read; "" for any other problem.
	Record string `json:"record,omitempty"`
	// Row is the key of an unreadable row of the manifest topic; "" for any other problem.
	Row string `json:"row,omitempty"`
	// At is when the process refused, by its own clock. Instance names the process.
	At       time.Time `json:"at"`
	Instance string    `json:"instance,omitempty"`
}

// RefuseRecord returns the refusal for a task that has read a record which this build cannot decode.
func RefuseRecord(id TaskID, e *wire.UnreadableError) Refusal {
	return Refusal{
		Topic: id.Topic, Partition: id.Partition, Problem: RecordUnreadable, Ways: []Way{SkipRecord}, Record: e.Record, Facts: "digest " + e.Digest,
		Detail: e.Error(), At: time.Now().UTC(),
	}
}

// Name returns topic/partition.
func (r *Refusal) Name() string { return TaskID{r.Topic, r.Partition}.String() }

// decidedBy returns the name under which the decision on the refusal is stored. The decision on an unreadable
// record is stored under the record's name, and is not replaced by the decision on another record of the
// partition: the app may have to read the first record again.
func (r *Refusal) decidedBy() string { return cmp.Or(r.Record, r.Name()) }

// Command returns the command with which an operator decides, with the flags of all ways.
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

// flags returns the flags of the ways, separated by " | ".
func (r *Refusal) flags() string {
	flags := make([]string, len(r.Ways))
	for n, way := range r.Ways {
		flags[n] = way.Flag()
	}
	return strings.Join(flags, " | ")
}

// Text returns what is wrong and how the operator can let the partition continue, in one line.
func (r *Refusal) Text() string {
	return fmt.Sprintf("%s waits for a decision (%s): %s; decide with: %s", r.Name(), r.Problem, r.Detail, r.Command())
}

// Acceptance is an operator's decision on a refusal.
type Acceptance struct {
	Facts string `json:"facts"` // facts of the refusal
	Way   Way    `json:"way"`
	// Unique makes the app treat events as unique if it may have lost the rows of their duplicates. If Unique is
	// false, the late policy of their route decides about these events.
	Unique bool  `json:"unique,omitempty"`
	Offset int64 `json:"offset,omitempty"` // for FromOffset
	// By and Why say who decided and why, for people to read.
	By  string `json:"by,omitempty"`
	Why string `json:"why,omitempty"`
	// At is the broker time of the decision in ms, from the record's timestamp.
	At int64 `json:"-"`
}

const refusedPrefix, acceptedPrefix = "refused/", "accept/"

// Decisions are the refusals, acceptances and marks in the manifest topic, by topic/partition. The acceptance
// of a record is stored by topic/partition/offset.
type Decisions struct {
	Refusals    map[string]Refusal
	Acceptances map[string]Acceptance
	Marks       map[string]Mark
	// UnreadMarks are the marks that cannot be read; their partitions wait. A refusal or acceptance that cannot
	// be read counts as missing, so that its partition keeps waiting.
	UnreadMarks map[string]*wire.UnreadableError
}

// Sorted returns the refusals, sorted by name.
func (d *Decisions) Sorted() []Refusal {
	var all []Refusal
	for _, r := range d.Refusals {
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Refusal) int { return strings.Compare(a.Name(), b.Name()) })
	return all
}

// ReadDecisions reads the decisions in the manifest topic. If holds is not nil, it also takes the rows of
// holds.
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

// put decodes a value into m. For a tombstone, or a value that cannot be decoded, it deletes the name from m.
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

// Accepted returns the acceptance of a refusal, if an operator has accepted the same facts.
func (d *Decisions) Accepted(r *Refusal) (Acceptance, bool) {
	a, ok := d.Acceptances[r.decidedBy()]
	return a, ok && a.Facts == r.Facts && slices.Contains(r.Ways, a.Way)
}

// WriteRefusal writes a refusal to the manifest topic.
func WriteRefusal(ctx context.Context, client *kgo.Client, t *Topology, r *Refusal) error {
	return writeRow(ctx, client, t, refusedPrefix+r.Name(), r)
}

// RemoveRefusal removes a refusal after the operator's decision. It also removes the refusal when the partition
// starts without a problem: a process that died may have left the row.
func RemoveRefusal(ctx context.Context, client *kgo.Client, t *Topology, r *Refusal) error {
	return writeRow(ctx, client, t, refusedPrefix+r.Name(), nil)
}

// WriteAcceptance writes a decision on a refusal to the manifest topic.
func WriteAcceptance(ctx context.Context, client *kgo.Client, t *Topology, r *Refusal, a Acceptance) error {
	a.Facts = r.Facts
	return writeRow(ctx, client, t, acceptedPrefix+r.decidedBy(), &a)
}

// writeRow writes a row to the manifest topic; a nil value makes it a tombstone.
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
		// Once the client has sent a record, it ends the record only with the broker's response, which may come
		// long after the broker died. writeRow does not wait for the response, because a rebalance waits for
		// writeRow.
		return ctx.Err()
	}
}
