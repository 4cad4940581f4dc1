package oracle

import (
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// An expectation is a record that should be in an emission topic.
type expectation struct {
	record         *Record // the record of the repartition topic from which it is made
	topic, verdict uint16  // numbers in expectations.names
	partition      int32   // -1 if the partition is not known
	same           int32   // index of the next expectation with the same fingerprint; 0 if there is none
	order          uint16  // number of the records in whose order it is emitted; see orderOf
	beyond         bool    // no checkpoint covers its input record
	found          bool
}

// expectations has the expected records, indexed by fingerprint.
type expectations struct {
	list  []expectation // the first one has index 1
	index map[fingerprint]int32
	names []string
}

func (e *expectations) number(name string) uint16 {
	i := slices.Index(e.names, name)
	if i < 0 {
		i = len(e.names)
		e.names = append(e.names, name)
	}
	return uint16(i)
}

func (e *expectations) add(p fingerprint, x expectation) {
	if len(e.list) == 0 {
		e.list = make([]expectation, 1)
	}
	e.list = append(e.list, x)
	i := int32(len(e.list) - 1)
	first, ok := e.index[p]
	if !ok {
		e.index[p] = i
		return
	}
	for e.list[first].same != 0 {
		first = e.list[first].same
	}
	e.list[first].same = i
}

// take returns the expectation that a record meets. If no open expectation has the record's fingerprint, take
// returns nil; twice then reports that another record has already met such an expectation.
func (e *expectations) take(p fingerprint) (x *expectation, twice bool) {
	for i := e.index[p]; i != 0; i = e.list[i].same {
		if !e.list[i].found {
			e.list[i].found = true
			return &e.list[i], false
		}
		twice = true
	}
	return nil, twice
}

// outputs compares the emission topics with the expected records.
func (c *check) outputs() {
	topics := map[string]bool{}
	for i := range c.cfg.Routes {
		r := &c.cfg.Routes[i]
		topics[r.Output], topics[r.DeadLetter], topics[r.DuplicatesTo] = true, true, true
	}
	topics[c.cfg.Verdicts] = true
	delete(topics, "")
	var unexpected []*Record
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		found := c.outputLog(topic)
		for _, partition := range slices.Sorted(maps.Keys(found)) {
			unexpected = append(unexpected, c.emitted(found[partition])...)
		}
	}
	c.explain(unexpected)
	c.missing()
	c.readClaims()
}

// outputLog returns the records of a topic that are compared. The topic of verdicts deletes its records by age,
// so for that topic the live reading is used.
func (c *check) outputLog(topic string) log {
	if topic == c.cfg.Verdicts {
		return c.log(topic, purged)
	}
	found := c.log(topic, whole)
	if !c.report.Unread {
		found = c.finals[topic]
	}
	return found
}

// ordered identifies records of the repartition topic whose outputs must be emitted in the order of these
// records.
type ordered struct {
	partition int32
	order     uint16
}

// orderOf returns the number of the group of records among which the records of a route must keep their order
// in the outputs. Usually these are all records of the partition; for a route that fails open they are only the
// records of this route, because a bypass emits them before earlier records of other routes.
func (c *check) orderOf(r *Route) uint16 {
	if !r.FailOpen {
		return 0
	}
	return 1 + c.expected.number(r.Name)
}

// verdictOf returns the verdict of an emitted record. Only a unique event may lack the header with the verdict.
func verdictOf(r *Record) string {
	if verdict, says := own(r, headerVerdict); says {
		return verdict
	}
	return "unique"
}

// emitted checks a partition of an emission topic and returns the unexpected records.
func (c *check) emitted(lane []*Record) (unexpected []*Record) {
	last := map[ordered]*expectation{}
	turned := map[source]int64{} // for each source, the last offset of its records without a key
	for _, r := range lane {
		if r.Topic == c.cfg.Verdicts {
			if address, _ := own(r, headerReplyTo); c.claimAddresses[address] {
				continue
			}
			c.report.Verdicts++
		} else {
			c.report.Outputs[verdictOf(r)]++
		}
		_, keyed := own(r, headerKey)
		if _, hasSource := own(r, headerSource); !keyed && (hasSource || verdictOf(r) != "unique") {
			c.checkRouterDeadLetter(r, turned)
			continue
		}
		x, twice := c.expected.take(c.printer.of(r))
		switch {
		case twice:
			key, _ := own(r, headerKey)
			c.add("K1", "%s: an extra record, the same record was emitted before; record key %s, dedup key %s", at(r), brief(r.Key), key)
			continue
		case x == nil:
			unexpected = append(unexpected, r)
			continue
		case x.beyond:
			c.add("K11", "%s: emitted for %s, which no checkpoint covers: torn; record key %s", at(r), at(x.record), brief(r.Key))
		}
		if x.partition >= 0 && x.partition != r.Partition {
			c.add("K4", "%s: is in partition %d, belongs in %d by its key %s", at(r), r.Partition, x.partition, brief(r.Key))
		}
		of := ordered{x.record.Partition, x.order}
		if l := last[of]; l != nil && l.record.Offset >= x.record.Offset {
			c.add("K4", "%s: emitted for %s, but the output of %s came before it; record key %s", at(r), at(x.record), at(l.record), brief(r.Key))
		}
		last[of] = x
	}
	return unexpected
}

// checkRouterDeadLetter compares the dead letter of a record without a dedup key with the record that was sent,
// because the repartition topic does not have such a record.
func (c *check) checkRouterDeadLetter(r *Record, last map[source]int64) {
	text, _ := own(r, headerSource)
	from, ok := c.parse(text)
	lane := c.sources[source{from.topic, from.partition}]
	i := -1
	if ok && lane != nil {
		i = lane.find(from.offset)
	}
	switch {
	case i < 0:
		c.add("K2", "%s: without a key, from %q, where no record was sent; record key %s", at(r), text, brief(r.Key))
		return
	case lane.sent[i].ID != "":
		c.add("K2", "%s: dead-lettered without a key, but %s has id %q; record key %s", at(r), text, lane.sent[i].ID, brief(r.Key))
		return
	case lane.done[i]:
		c.add("K1", "%s: an extra record, %s was dead-lettered before; record key %s", at(r), text, brief(r.Key))
		return
	}
	s := lane.sent[i]
	lane.done[i] = true
	if route := c.routes[s.Route]; route == nil || route.DeadLetter != r.Topic {
		c.add("K2", "%s: %s of route %q belongs in another topic; record key %s", at(r), text, s.Route, brief(r.Key))
	}
	if diff := c.unlike(s, r, text); diff != "" {
		c.add("K3", "%s: from %s, not as it was sent: %s", at(r), text, diff)
	}
	of := source{from.topic, from.partition}
	if l, ok := last[of]; ok && l > from.offset {
		c.add("K4", "%s: from %s, but offset %d of that partition came before it", at(r), text, l)
	}
	last[of] = from.offset
}

// unlike returns which parts of a dead letter differ from the record that was sent, or from the expected
// headers. If the value did not fit, the dead letter has its hash instead.
func (c *check) unlike(s *Sent, r *Record, text string) string {
	e := envelope{timestamp: s.Timestamp}
	verdict, _ := own(r, headerVerdict)
	reason, _ := own(r, headerReason)
	if verdict != "invalid" && verdict != "missing_key" || reason == "" {
		return fmt.Sprintf("verdict %q for reason %q", verdict, reason)
	}
	want := append(redriven(s.Headers), Header{headerRoute, []byte(s.Route)}, Header{headerVerdict, []byte(verdict)}, Header{headerReason, []byte(reason)},
		Header{headerSource, []byte(text)}, Header{headerFirst, []byte(text)}, Header{headerFirstTime, []byte(strconv.FormatInt(s.Timestamp, 10))})
	if _, pointer := own(r, headerValueHash); pointer {
		if want = append(want, description(s.Value, s.Timestamp)...); !sameHeaders(want, r.Headers) {
			return "headers " + showHeaders(r.Headers) + ", want " + showHeaders(want)
		}
		return ""
	}
	n := max(0, len(r.Headers)-len(want))
	if !sameHeaders(want, r.Headers[n:]) {
		return "headers " + showHeaders(r.Headers[n:]) + ", want " + showHeaders(want)
	}
	if !c.cfg.Emissions[r.Topic].AppendTime {
		e.timestamp = r.Timestamp
	}
	return untouched(&s.Record, &Record{Key: r.Key, Value: r.Value, Headers: r.Headers[:n]}, &e, foreign)
}

// parse parses the text topic/partition/offset.
func (c *check) parse(text string) (position, bool) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return position{}, false
	}
	number, known := c.cfg.Topics[parts[0]]
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	offset, err2 := strconv.ParseInt(parts[2], 10, 64)
	return position{number, int32(partition), offset}, known && err == nil && err2 == nil
}

// A wanted is the key by which explain looks for expectations.
type wanted struct {
	topic uint16
	key   string // dedup key, hex
}

// explain finds out what the unexpected records are: each is either an expected record that was changed (K3),
// or an extra record (K1).
func (c *check) explain(unexpected []*Record) {
	if len(unexpected) == 0 {
		return
	}
	open := map[wanted][]*expectation{}
	for i := range c.expected.list {
		x := &c.expected.list[i]
		if i == 0 || x.found {
			continue
		}
		e, err := openEnvelope(x.record, 0)
		if err == nil {
			w := wanted{x.topic, hex.EncodeToString(e.key[:])}
			open[w] = append(open[w], x)
		}
	}
	for _, r := range unexpected {
		verdict := verdictOf(r)
		w := wanted{c.expected.number(r.Topic), c.keyLike(r)}
		key, list := w.key, open[w]
		if len(list) == 0 {
			c.add("K1", "%s: one record too many with verdict %q: no further record is expected for dedup key %s; record key %s", at(r), verdict, key, brief(r.Key))
			continue
		}
		i := max(0, slices.IndexFunc(list, func(x *expectation) bool { return c.expected.names[x.verdict] == verdict }))
		x := list[i]
		x.found = true
		open[w] = slices.Delete(list, i, i+1)
		c.add("K3", "%s: differs from the expected output of %s: %s; record key %s, dedup key %s", at(r), at(x.record), c.changed(x, r), brief(r.Key), key)
	}
}

// keyLike returns the dedup key of an unexpected record in hexadecimal digits. A record without the header with
// the key may be a unique event. In that case keyLike looks for an expected record that is missing and has the
// same value or, failing that, the same record key, and returns the dedup key of that record.
func (c *check) keyLike(r *Record) string {
	if key, says := own(r, headerKey); says {
		return key
	}
	like := ""
	for i := range c.expected.list {
		x := &c.expected.list[i]
		if i == 0 || x.found || x.topic != c.expected.number(r.Topic) {
			continue
		}
		sameValue := same(x.record.Value, r.Value)
		if e, err := openEnvelope(x.record, 0); err == nil && (sameValue || like == "" && same(x.record.Key, r.Key)) {
			like = hex.EncodeToString(e.key[:])
		}
		if sameValue {
			break
		}
	}
	return like
}

// changed describes the differences between an emitted record and its source.
func (c *check) changed(x *expectation, r *Record) string {
	e, err := openEnvelope(x.record, 0)
	if err != nil {
		return err.Error()
	}
	if r.Topic == c.cfg.Verdicts {
		return "headers " + showHeaders(r.Headers)
	}
	n := slices.IndexFunc(r.Headers, func(h Header) bool { return !foreign(h) })
	if n < 0 {
		n = len(r.Headers)
	}
	want := Record{Key: x.record.Key, Value: x.record.Value, Timestamp: e.timestamp, Headers: x.record.Headers}
	got := Record{Key: r.Key, Value: r.Value, Headers: r.Headers[:n]}
	diff := untouched(&want, &got, &envelope{timestamp: r.Timestamp}, foreign)
	if verdict := verdictOf(r); verdict != c.expected.names[x.verdict] {
		diff = strings.TrimPrefix(diff+fmt.Sprintf("; verdict %q, want %q", verdict, c.expected.names[x.verdict]), "; ")
	}
	if diff == "" {
		diff = "oncebus's headers are wrong: " + showHeaders(r.Headers[n:])
	}
	return diff
}

// missing finds the expected records that were not emitted: lost events (K2), and the transactions of which
// therefore only a part was emitted (K11).
func (c *check) missing() {
	type transaction struct {
		partition int32
		number    int
	}
	lost := map[transaction]int{}
	for i := range c.expected.list {
		x := &c.expected.list[i]
		if i == 0 || x.found || x.beyond {
			continue
		}
		e, _ := openEnvelope(x.record, c.cfg.RepartitionNumber) // outputs has read it without an error
		c.add("K2", "%s: lost: %s of %s was judged %s and never emitted; record key %s, dedup key %x", c.expected.names[x.topic],
			at(x.record), c.builder.positionText(e.from), c.expected.names[x.verdict], brief(x.record.Key), e.key)
		lost[transaction{x.record.Partition, c.tasks[x.record.Partition].transactionOf(x.record.Offset)}]++
	}
	for partition := range c.cfg.Partitions {
		t := c.tasks[partition]
		for i, next := range t.nexts {
			if n := lost[transaction{partition, i}]; n > 0 {
				c.add("K11", "%s/%d/%d: the transaction with sequence %d, up to input offset %d, committed without %d of its outputs: torn", c.cfg.Changelog, partition, t.offsets[i], t.sequences[i], next, n)
			}
		}
	}
	for _, lane := range c.sources {
		for i, s := range lane.sent {
			if s.ID == "" && !lane.done[i] {
				c.add("K2", "%s: acknowledged, but it is in no dead-letter topic: lost; record key %s", at(&s.Record), brief(s.Key))
			}
		}
	}
}
