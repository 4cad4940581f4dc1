package oracle

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
	"time"
)

// The app of these tests has two routes with different policies.
const (
	window, grace, skew = 1000, 100, 500 // ms
	base                = 1_700_000_000_000
)

func testConfig() Config {
	two := Emission{Partitions: 2}
	return Config{
		Repartition: "app-repartition", Changelog: "app-repartition-changelog", Partitions: 2,
		Topics: map[string]uint16{"signals.raw": 1, "orders.raw": 3},
		Routes: []Route{
			{Name: "signals", NamespaceID: 1, Window: window, Grace: grace, Skew: skew, Output: "signals", Duplicates: To, DuplicatesTo: "duplicates", DeadLetter: "dead", Headers: Headers{true, true, true}},
			{Name: "orders", NamespaceID: 2, Window: window, Grace: grace, Skew: skew, Output: "orders", Duplicates: Forward, Late: Forward, Future: Clamp, DeadLetter: "dead"},
		},
		Emissions: map[string]Emission{"signals": two, "orders": two, "duplicates": two, "dead": two},
	}
}

// A scenario builds the history of an app without faults. Its methods take the
// verdicts; it does not judge.
type scenario struct {
	cfg    Config
	h      *History
	ends   map[string]int64 // by topic/partition
	rows   map[int32]map[string][]byte
	times  map[int32]map[uint8]int64
	next   map[int32]int64
	number map[int32]int64  // of transactions
	floor  map[int32]int64  // of the next checkpoint
	homes  map[string]int32 // of ids in another partition than partitionOf
	// sources are those of the route signals by partition of the repartition topic; empty until
	// it follows some.
	sources map[int32]*sourceTimes

	// Of the next checkpoint.
	bypassed   map[uint8]int64 // of partition 0
	dead       []offsetRange   // of partition 0
	incomplete bool            // of partition 0

	noStores bool
	packs    bool // the rows of a transaction are one record
	packed   map[int32][]byte
}

func newWorld() *scenario {
	w := &scenario{
		cfg: testConfig(), h: &History{Live: map[string][]Record{}}, ends: map[string]int64{},
		rows: map[int32]map[string][]byte{}, times: map[int32]map[uint8]int64{}, next: map[int32]int64{}, number: map[int32]int64{}, floor: map[int32]int64{}, packed: map[int32][]byte{},
	}
	for p := range w.cfg.Partitions {
		w.rows[p], w.times[p] = map[string][]byte{}, map[uint8]int64{}
	}
	return w
}

// append appends a record to its partition and to the live reading.
func (w *scenario) append(r Record) *Record {
	end := fmt.Sprint(r.Topic, "/", r.Partition)
	r.Offset = w.ends[end]
	w.ends[end]++
	w.h.Live[r.Topic] = append(w.h.Live[r.Topic], r)
	return &w.h.Live[r.Topic][len(w.h.Live[r.Topic])-1]
}

// mark adds a transaction marker to a partition, which uses one offset.
func (w *scenario) mark(topic string, partition int32) {
	w.ends[fmt.Sprint(topic, "/", partition)]++
}

// send adds an acknowledged raw record; at is its timestamp, in ms after base.
func (w *scenario) send(route int, partition int32, id string, at int64) Sent {
	r := w.cfg.Routes[route]
	s := Sent{Route: r.Name, ID: id, Record: Record{
		Topic: r.Name + ".raw", Partition: partition, Timestamp: base + at, Key: []byte("k-" + id), Value: fmt.Appendf(nil, `{"id":%q,"at":%d}`, id, at),
		Headers: []Header{{"traceparent", []byte("00-" + id)}, {"empty", []byte{}}, {"null", nil}, {"Oncebus-Verdict", []byte("forged")}},
	}}
	end := fmt.Sprint(s.Topic, "/", partition)
	s.Offset = w.ends[end]
	w.ends[end]++
	w.h.Sent = append(w.h.Sent, s)
	return s
}

func (w *scenario) source(s *Sent) string {
	return fmt.Sprintf("%s/%d/%d", s.Topic, s.Partition, s.Offset)
}

// partitionOf returns the partition of the repartition topic for an id.
func partitionOf(id string) int32 { return int32(sha256.Sum256([]byte(id))[31]) % 2 }

func digestOf(route, id string) []byte {
	key, mask := sha256.Sum256([]byte(id)), sha256.Sum256(fmt.Appendf(nil, "%d:%s,2:id,", len(route), route))
	d := make([]byte, 16)
	subtle.XORBytes(d, key[:16], mask[:16])
	return d
}

// envelopeBytes returns the envelope of an event or outcome, which rest has with all that
// follows it.
func envelopeBytes(flags uint64, route string, from position, timestamp int64, rest ...[]byte) []byte {
	b := binary.AppendUvarint([]byte{envelopeVersion}, flags)
	b = append(binary.AppendUvarint(b, uint64(len(route))), route...)
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(from.topic)), uint64(from.partition))
	b = binary.AppendUvarint(binary.BigEndian.AppendUint64(b, uint64(timestamp)), uint64(from.offset))
	return append(b, slices.Concat(rest...)...)
}

// repartition adds the record that the router produces, at broker time stamp after base.
func (w *scenario) repartition(s Sent, stamp int64) *Record {
	var flags uint64
	key := sha256.Sum256([]byte(s.ID))
	tail := key[:]
	if start := bytes.Index(s.Value, []byte(s.ID)); start >= 0 && s.Route == "signals" {
		flags |= flagHashed
		tail = binary.AppendUvarint(binary.AppendUvarint(nil, uint64(start)), uint64(len(s.ID)))
	}
	if s.Key != nil {
		flags |= flagRecordKey
		tail = append(tail, s.Key...)
	}
	from := position{w.cfg.Topics[s.Topic], s.Partition, s.Offset}
	event := append(binary.AppendVarint(nil, cmp.Or(s.Time, s.Timestamp)-s.Timestamp), digestOf(s.Route, s.ID)...)
	partition, moved := w.homes[s.ID]
	if !moved {
		partition = partitionOf(s.ID)
	}
	return w.append(Record{
		Topic: w.cfg.Repartition, Partition: partition, Timestamp: base + stamp, Value: s.Value,
		Key: envelopeBytes(flags, s.Route, from, s.Timestamp, event, tail), Headers: slices.Clone(s.Headers[:len(s.Headers)-1]),
	})
}

// emit adds a record to an emission topic. headers are its oncebus headers: name,
// value, name, value.
func (w *scenario) emit(s Sent, topic string, headers ...string) *Record {
	r := Record{Topic: topic, Timestamp: s.Timestamp, Key: s.Key, Value: s.Value, Headers: slices.Clone(s.Headers[:len(s.Headers)-1])}
	unique := slices.Contains(headers, "unique")
	for n := 0; n < len(headers); n += 2 {
		if unique && !w.asks(s.Route, headers[n]) {
			continue
		}
		r.Headers = append(r.Headers, Header{headers[n], []byte(headers[n+1])})
	}
	r.Partition = int32(murmur2(r.Key)&0x7fffffff) % 2
	if r.Key == nil {
		key := sha256.Sum256([]byte(s.ID))
		r.Partition = int32(binary.BigEndian.Uint32(key[:]) % 2)
	}
	return w.append(r)
}

// asks reports whether unique events of a route have a header.
func (w *scenario) asks(route, header string) bool {
	h := w.cfg.Routes[slices.IndexFunc(w.cfg.Routes, func(r Route) bool { return r.Name == route })].Headers
	return map[string]bool{headerRoute: h.Route, headerKey: h.Key, headerVerdict: h.Verdict}[header]
}

func keyText(id string) string {
	key := sha256.Sum256([]byte(id))
	return hex.EncodeToString(key[:])
}

// forwarded adds a record that is emitted with a verdict. stamp is its broker time,
// at its event time, both in ms after base.
func (w *scenario) forwarded(s Sent, verdict string, stamp, at int64) {
	r := w.repartition(s, stamp)
	namespaceID := w.namespaceID(s.Route)
	w.emit(s, s.Route, headerRoute, s.Route, headerVerdict, verdict, headerKey, keyText(s.ID))
	var flags byte
	if w.sources[r.Partition] != nil { // at level 2: there is no window before
		flags = 16
	}
	row := binary.AppendVarint([]byte{1, flags, namespaceID, 0}, base+at)
	for _, n := range []uint64{uint64(w.cfg.Topics[s.Topic]), uint64(s.Partition), uint64(s.Offset)} {
		row = binary.AppendUvarint(row, n)
	}
	d := digestOf(s.Route, s.ID)
	if w.packs {
		w.packed[r.Partition] = appendPacked(w.packed[r.Partition], d, namespaceID, base+at, &s.Record, w.cfg.Topics[s.Topic])
	} else {
		w.append(Record{Topic: w.cfg.Changelog, Partition: r.Partition, Timestamp: r.Timestamp, Key: d, Value: row})
	}
	w.rows[r.Partition][string(d)] = row
	w.judged(r, s, base+at)
}

func (w *scenario) namespaceID(route string) uint8 {
	return w.cfg.Routes[slices.IndexFunc(w.cfg.Routes, func(r Route) bool { return r.Name == route })].NamespaceID
}

func (w *scenario) seen(r *Record, namespaceID uint8, at int64) {
	w.times[r.Partition][namespaceID] = max(w.times[r.Partition][namespaceID], at)
	w.next[r.Partition] = r.Offset + 1
}

// judged is an event that was judged as of the event time at. A clamped one moves
// no stream time, and one with sources only its own one: the caller states stream time.
func (w *scenario) judged(r *Record, s Sent, at int64) {
	w.next[r.Partition] = r.Offset + 1
	switch {
	case cmp.Or(s.Time, s.Timestamp) != at:
	case s.Route == "signals" && w.sources[r.Partition] != nil:
		w.sources[r.Partition].event(position{w.cfg.Topics[s.Topic], s.Partition, s.Offset}, at)
	default:
		w.seen(r, w.namespaceID(s.Route), at)
	}
}

// duplicate adds a duplicate of first that is emitted to a topic.
func (w *scenario) duplicate(s, first Sent, topic string) {
	r := w.repartition(s, s.Timestamp-base)
	reason := fmt.Sprintf("duplicate %v after the first, window 1s", time.Duration(s.Timestamp-first.Timestamp)*time.Millisecond)
	w.emit(s, topic, headerRoute, s.Route, headerVerdict, "duplicate", headerKey, keyText(s.ID), headerReason, reason,
		headerSource, w.source(&s), headerFirst, w.source(&first), headerFirstTime, fmt.Sprint(first.Timestamp))
	w.judged(r, s, s.Timestamp)
}

// refused adds a record that is late or from the future.
func (w *scenario) refused(s Sent, stamp int64, verdict, topic, reason string) {
	r := w.repartition(s, stamp)
	w.emit(s, topic, headerRoute, s.Route, headerVerdict, verdict, headerKey, keyText(s.ID), headerReason, reason,
		headerSource, w.source(&s), headerFirst, w.source(&s), headerFirstTime, fmt.Sprint(s.Timestamp))
	w.next[r.Partition] = r.Offset + 1
}

// sendWithoutKey sends an event without a key. The router writes it to the
// dead-letter topic.
func (w *scenario) sendWithoutKey(partition int32, at int64) Sent {
	s := w.send(0, partition, "", at)
	w.emit(s, "dead", headerRoute, s.Route, headerVerdict, "missing_key", headerReason, "field id: absent", headerSource, w.source(&s),
		headerFirst, w.source(&s), headerFirstTime, fmt.Sprint(s.Timestamp))
	return s
}

// appendPacked appends a row to a pack, which begins with its version. Each row has its
// namespace and its place, as one after another row of another topic has, so that it need
// not know the row before except for its time and its offset.
func appendPacked(pack, key []byte, namespaceID uint8, first int64, of *Record, topic uint16) []byte {
	var last row
	if len(pack) == 0 {
		pack = []byte{1}
	} else if rows, err := rowsOfPack(&Record{Value: pack}); err == nil {
		f := fields{rest: rows[len(rows)-1].Value[4:]}
		last.first = f.signed()
		f.unsigned(1 << 16)
		f.unsigned(1 << 31)
		last.at.offset = int64(f.unsigned(1 << 63))
	}
	pack = append(append(pack, key...), 6, namespaceID)
	pack = binary.AppendUvarint(binary.AppendUvarint(pack, uint64(topic)), uint64(of.Partition))
	return binary.AppendVarint(binary.AppendVarint(pack, first-last.first), of.Offset-last.at.offset)
}

// commit ends the transaction of a partition.
func (w *scenario) commit(partition int32) {
	if pack := w.packed[partition]; pack != nil {
		key := append(binary.BigEndian.AppendUint64([]byte("rows/"), uint64(w.ends[fmt.Sprint(w.cfg.Changelog, "/", partition)])), 0, 0, 0, 0)
		w.append(Record{Topic: w.cfg.Changelog, Partition: partition, Timestamp: base, Key: key, Value: pack})
		w.packed[partition] = nil
	}
	w.number[partition]++
	var flags byte
	if w.floor[partition] > 0 {
		flags = flagFloor
	}
	if partition == 0 {
		flags |= w.bypassFlags()
	}
	b := []byte{3, flags}
	if w.sources[partition] != nil {
		b = append(binary.AppendUvarint([]byte{7}, uint64(flags)|flagSources), 1) // of route set 1
	}
	b = binary.AppendVarint(b, w.next[partition])
	b = append(binary.AppendVarint(binary.AppendVarint(b, 0), w.number[partition]), 0)
	if partition == 0 {
		b = w.appendBypass(b)
	}
	if w.floor[partition] > 0 {
		b = append(binary.AppendUvarint(b, uint64(w.floor[partition])), 0)
	}
	if s := w.sources[partition]; s != nil {
		b = appendSourceTimes(b, s)
	}
	for namespaceID := range uint8(4) {
		if at, ok := w.times[partition][namespaceID]; ok {
			b = binary.AppendVarint(append(b, namespaceID), at)
		}
	}
	r := w.append(Record{Topic: w.cfg.Changelog, Partition: partition, Timestamp: base + w.number[partition], Key: []byte("checkpoint"), Value: b})
	w.mark(w.cfg.Changelog, partition)
	for topic := range w.cfg.Emissions {
		w.mark(topic, 0)
		w.mark(topic, 1)
	}
	w.mark(w.cfg.Repartition, partition)
	w.h.Offsets = append(w.h.Offsets, Sample{Partition: partition, Offset: w.next[partition], Metadata: "one"})
	if w.noStores {
		return
	}
	store := Store{Partition: partition, Position: r.Offset + 1, Checkpoint: stored(b), Rows: map[string][]byte{}}
	for d, row := range w.rows[partition] {
		store.Rows[d] = row
	}
	w.h.Stores = append(w.h.Stores, store)
}

// stored returns a whole checkpoint as a local store has it.
func stored(value []byte) []byte {
	return append(binary.AppendUvarint(nil, uint64(len(value))), value...)
}

// end returns the history, read again.
func (w *scenario) end() *History {
	w.h.Final = map[string][]Record{}
	for topic, records := range w.h.Live {
		w.h.Final[topic] = slices.Clone(records)
	}
	return w.h
}

// idAt returns the first of name-0, name-1, ... in a partition.
func idAt(partition int32, name string) string {
	for n := 0; ; n++ {
		if id := fmt.Sprint(name, "-", n); partitionOf(id) == partition {
			return id
		}
	}
}

// story has every verdict and policy, two partitions and several transactions. It
// has no faults.
func story() *scenario {
	w := newWorld()
	a, b, c, d := idAt(0, "a"), idAt(0, "b"), idAt(1, "c"), idAt(1, "d")
	firstA := w.send(0, 0, a, 0)
	w.forwarded(firstA, "unique", 0, 0)
	firstB := w.send(1, 0, b, 10)
	w.forwarded(firstB, "unique", 10, 10)
	w.commit(0)
	w.sendWithoutKey(0, 15)
	firstC := w.send(0, 1, c, 20)
	w.forwarded(firstC, "unique", 20, 20)
	w.duplicate(w.send(0, 0, a, window), firstA, "duplicates") // at the edge
	w.commit(1)
	w.duplicate(w.send(1, 1, b, 500), firstB, "orders")
	w.forwarded(w.send(0, 1, a, window+1), "after_window", window+1, window+1) // just after it
	w.commit(0)
	w.forwarded(w.send(1, 0, d, 30), "unique", 30, 30)
	w.refused(w.send(0, 1, c, 9000), 1100, "invalid", "dead", fmt.Sprintf("event time %d is more than 500ms ahead of the broker's %d", base+9000, base+1100))
	w.duplicate(w.send(0, 0, c, 1020), firstC, "duplicates")
	w.commit(1)
	w.sendWithoutKey(1, 1200)
	// Late by stream time: 5000 - window - grace = 3900.
	w.forwarded(w.send(0, 0, idAt(0, "e"), 5000), "unique", 5000, 5000)
	w.refused(w.send(0, 1, idAt(0, "f"), 3899), 5000, "late", "dead",
		fmt.Sprintf("event time %d cannot be judged: stream time is %d, window 1s, grace 100ms", base+3899, base+5000))
	w.forwarded(w.send(0, 1, idAt(0, "g"), 3900), "unique", 3900, 3900)
	w.commit(0)
	// Late by its row: more than a window before the first event.
	w.forwarded(w.send(1, 1, d, 9000), "after_window", 1530, 1530+skew) // clamped
	w.refused(w.send(1, 0, d, 500), 1600, "late", "orders",
		fmt.Sprintf("event time %d cannot be judged: the first event under the key has time %d, window 1s", base+500, base+1530+skew))
	w.times[1][2] = base + 500 // it was admitted
	w.commit(1)
	return w
}

// ids returns the invariants of the violations, each once, and logs the violations.
func ids(t *testing.T, violations []Violation) []string {
	t.Helper()
	var list []string
	for _, v := range violations {
		t.Log(v)
		if !slices.Contains(list, v.Invariant) {
			list = append(list, v.Invariant)
		}
	}
	return list
}
