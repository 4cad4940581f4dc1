package selfaudit

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/dchest/siphash"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/oracle"
	"oncebus/processor/wire"
)

// A worker derives what records mean, for one fetch at a time.
type worker struct {
	*Auditor
	deriver *rules.Deriver
	ctx     context.Context //nolint:containedctx // of the read in progress
	failed  error           // why the key of a record in this read could not be derived
	scratch []byte
	routeOf map[string]int32 // index of a route by its name

	former      []former
	readFormers bool
}

func (a *Auditor) newWorker() *worker {
	w := &worker{Auditor: a, deriver: a.cfg.NewDeriver(a.routes), routeOf: map[string]int32{}}
	for i, r := range a.routes.Routes {
		w.routeOf[r.Name] = int32(i)
	}
	return w
}

// content returns a hash of what the application has written: key, value and headers. It does not include the
// timestamp, because a topic may replace it; the event time is compared separately.
func (w *worker) content(rec *kgo.Record) uint64 {
	b := w.scratch[:0]
	put := func(s []byte) {
		if s == nil {
			b = append(b, 0)
			return
		}
		b = append(binary.AppendUvarint(b, uint64(len(s))+1), s...)
	}
	put(rec.Key)
	put(rec.Value)
	for i := range rec.Headers {
		if !wire.IsReserved(rec.Headers[i].Key) {
			put([]byte(rec.Headers[i].Key))
			put(rec.Headers[i].Value)
		}
	}
	w.scratch = b
	return siphash.Hash(0x6f6e6365627573, 0x6c6564676572, b)
}

// derive derives the key of a record as if the record was in an input topic.
func (w *worker) derive(rec *kgo.Record, topic string) rules.Derived {
	in := wire.InputOf(rec)
	in.Topic = topic
	return w.by(w.deriver, &in)
}

// by derives a key with a deriver. If the schema of the record cannot be read, by makes the read fail.
func (w *worker) by(deriver *rules.Deriver, in *rules.Input) rules.Derived {
	d, err := w.cfg.Derive(w.ctx, deriver, in)
	if err != nil && w.failed == nil {
		w.failed = err
	}
	return d
}

func position(at dedup.Position) oracle.Position {
	return oracle.Position{Topic: at.Topic, Partition: at.Partition, Offset: at.Offset}
}

// digestsOf returns the digests under which the row of an event may be, beginning with the event's own digest.
func digestsOf(d *rules.Derived) [][16]byte {
	digests := [][16]byte{d.Digest}
	if d.HasAdjacent {
		digests = append(digests, d.Adjacent[0], d.Adjacent[1])
	}
	if d.Route.ForwardsCollisions() && d.Fingerprint != 0 {
		for _, digest := range slices.Clone(digests) {
			digests = append(digests, dedup.CollisionDigest(digest, d.Fingerprint))
		}
	}
	return digests
}

// inputOf returns the function that reads an input topic.
func (a *Auditor) inputOf(topic string, span *span) func(*worker, []*kgo.Record) func(*oracle.Ledger) {
	if a.app.Outcomes[topic] != nil {
		return outcomesOf
	}
	number := a.app.TopicNumbers[topic]
	return func(w *worker, records []*kgo.Record) func(*oracle.Ledger) {
		inputs := make([]oracle.LedgerInput, 0, len(records))
		for _, rec := range records {
			at := oracle.Position{Topic: number, Partition: rec.Partition, Offset: rec.Offset}
			if !span.Judged(at) {
				continue
			}
			d := w.derive(rec, topic)
			if d.Route == nil {
				continue
			}
			in := oracle.LedgerInput{At: at, Route: w.routeOf[d.Route.Name], Time: d.Time, Content: w.content(rec)}
			if d.Finding == rules.Keyed {
				in.Digests, in.Task = digestsOf(&d), w.taskOf(&d, at)
			} else {
				in.Missing = d.Finding == rules.KeyMissing
			}
			inputs = append(inputs, in)
		}
		return func(l *oracle.Ledger) {
			for i := range inputs {
				l.Input(&inputs[i])
			}
		}
	}
}

// taskOf returns the topic and partition of the task that judges an event.
func (w *worker) taskOf(d *rules.Derived, at oracle.Position) oracle.Position {
	if d.Route.Prepartitioned {
		return oracle.Position{Topic: at.Topic, Partition: at.Partition}
	}
	t := w.app.Topology.Repartition
	return oracle.Position{Topic: w.app.TopicNumbers[t], Partition: w.app.Hasher.Partition(&d.Routing)}
}

// outcomesOf reads the records of an outcomes topic.
func outcomesOf(w *worker, records []*kgo.Record) func(*oracle.Ledger) {
	var outcomes []oracle.LedgerOutcome
	for _, rec := range records {
		_, read, reason := w.app.ReadOutcome(rec)
		foreign := read.Token.App != 0 && read.Token.App != w.app.TokenApp // the token belongs to another app with the same outcomes topic
		if reason == "" && !foreign && read.Kind == dedup.OutcomeCompleted {
			outcomes = append(outcomes, oracle.LedgerOutcome{Digest: read.Token.Digest, Attempt: read.Token.Attempt, Content: w.result(rec)})
		}
	}
	return func(l *oracle.Ledger) {
		for i := range outcomes {
			l.Outcome(&outcomes[i])
		}
	}
}

// result returns the content of an outcome or a reply, without its record key, which comes from the sender.
func (w *worker) result(rec *kgo.Record) uint64 {
	withoutKey := *rec
	withoutKey.Key = nil
	return w.content(&withoutKey)
}

// rowKind says, by the offsets of rows in a changelog partition, how the rows lie relative to the range.
type rowKind struct {
	certain int64 // the outputs of rows below this offset lie within the range
	base    int64 // below this offset, rows belong to the previous range
	soft    bool
}

// changelogOf returns the function that reads the changelog of a topic's tasks.
func (a *Auditor) changelogOf(topic string, kind rowKind) func(*worker, []*kgo.Record) func(*oracle.Ledger) {
	number := a.app.TopicNumbers[topic]
	return func(_ *worker, records []*kgo.Record) func(*oracle.Ledger) {
		items := make([]oracle.ChangelogItem, 0, len(records))
		for _, rec := range records {
			item := oracle.ReadChangelog(recordOf(rec), oracle.Position{Topic: number, Partition: rec.Partition})
			for i := range item.Rows {
				row := &item.Rows[i]
				row.Certain, row.Base, row.Soft = rec.Offset < kind.certain, rec.Offset < kind.base, kind.soft
			}
			items = append(items, item)
		}
		return func(l *oracle.Ledger) {
			for i := range items {
				l.Changelog(&items[i])
			}
		}
	}
}

func recordOf(rec *kgo.Record) *oracle.Record {
	r := &oracle.Record{Topic: rec.Topic, Partition: rec.Partition, Offset: rec.Offset, Timestamp: rec.Timestamp.UnixMilli(), Key: rec.Key, Value: rec.Value}
	for _, h := range rec.Headers {
		r.Headers = append(r.Headers, oracle.Header{Key: h.Key, Value: h.Value})
	}
	return r
}

// own returns the value of the last header with this name, because oncebus appends its headers after all
// others.
func own(rec *kgo.Record, name string) (string, bool) {
	for i := len(rec.Headers) - 1; i >= 0; i-- {
		if rec.Headers[i].Key == name {
			return string(rec.Headers[i].Value), true
		}
	}
	return "", false
}

// positionOf parses topic/partition/offset of a record in an input or in the repartition topic.
func (w *worker) positionOf(text string) (at oracle.Position, topic string, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return at, "", false
	}
	number, known := w.app.TopicNumbers[parts[0]]
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	offset, err2 := strconv.ParseInt(parts[2], 10, 64)
	return oracle.Position{Topic: number, Partition: int32(partition), Offset: offset}, parts[0], known && err == nil && err2 == nil
}

// keyOf returns the digests of the key in a record's header.
func keyOf(route *rules.Route, text string) (digests [][16]byte) {
	key, err := hex.DecodeString(text)
	if err != nil || len(key) != 32 {
		return nil
	}
	for _, d := range route.OfKey([32]byte(key)) {
		digests = append(digests, d.Digest)
	}
	return digests
}
