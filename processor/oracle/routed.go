package oracle

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"
)

// A source is a partition of an input topic.
type source struct {
	topic     uint16
	partition int32
}

// A sourceLane has the records that were sent to a source, in the order of offsets.
type sourceLane struct {
	sent []*Sent
	done []bool // the record was routed or dead-lettered
}

func (l *sourceLane) find(offset int64) int {
	i, ok := slices.BinarySearchFunc(l.sent, offset, func(s *Sent, offset int64) int { return cmp.Compare(s.Offset, offset) })
	if !ok {
		return -1
	}
	return i
}

// readSent sorts the input records into lanes by source.
func (c *check) readSent() {
	for i := range c.h.Sent {
		s := &c.h.Sent[i]
		number, ok := c.cfg.Topics[s.Topic]
		if !ok {
			c.add("K2", "%s: sent to a topic that is no input", at(&s.Record))
			continue
		}
		if s.ID == "" {
			c.report.MissingKey++
		}
		from := source{number, s.Partition}
		if c.sources[from] == nil {
			c.sources[from] = &sourceLane{}
		}
		c.sources[from].sent = append(c.sources[from].sent, s)
	}
	for _, lane := range c.sources {
		slices.SortStableFunc(lane.sent, func(a, b *Sent) int { return cmp.Compare(a.Offset, b.Offset) })
		lane.done = make([]bool, len(lane.sent))
	}
}

// routed compares a record of the repartition topic with the record that was sent: that record exists (K2) and
// was routed once (K1), and the routed record has the right key (K2), is unchanged (K3) and in order (K4).
func (c *check) routed(t *task, r *Record, e *envelope) {
	from, text := source{e.from.topic, e.from.partition}, c.builder.positionText(e.from)
	lane := c.sources[from]
	i := -1
	if lane != nil {
		i = lane.find(e.from.offset)
	}
	if i < 0 {
		c.add("K2", "%s: routed from %s, where no record was sent; record key %s, dedup key %x", at(r), text, brief(r.Key), e.key)
		return
	}
	s := lane.sent[i]
	if lane.done[i] {
		c.add("K1", "%s: %s was routed before; id %q, record key %s", at(r), text, s.ID, brief(r.Key))
		return
	}
	lane.done[i] = true
	if last, ok := t.lastFrom[from]; ok && e.from.offset < last {
		c.add("K4", "%s: from %s, but offset %d of that partition came before it; id %q, record key %s", at(r), text, last, s.ID, brief(r.Key))
	}
	t.lastFrom[from] = max(t.lastFrom[from], e.from.offset)
	if s.ID == "" {
		c.add("K2", "%s: routed from %s, but it has no key and belongs in the dead-letter topic; dedup key %x", at(r), text, e.key)
		return
	}
	c.derived(r, e, s, text)
}

// derived compares what the router or the ingress has derived from an event with the event itself: key and
// route (K2), content and time (K3). text describes the origin of the event.
func (c *check) derived(r *Record, e *envelope, s *Sent, text string) {
	if route := string(e.route); route != s.Route && route == s.RouteBefore && route != "" {
		before := *s
		before.Route = route
		s = &before
	}
	if key := sha256.Sum256([]byte(s.ID)); key != e.key {
		c.add("K2", "%s: from %s with dedup key %x, want %x, the SHA-256 of id %q", at(r), text, e.key, key, s.ID)
	} else if want := c.digest(s, e); want != e.digest {
		c.add("K2", "%s: from %s with state digest %x, want %x for id %q of route %s", at(r), text, e.digest, want, s.ID, s.Route)
	}
	if string(e.route) != s.Route {
		c.add("K2", "%s: from %s by route %q, want %q; id %q", at(r), text, e.route, s.Route, s.ID)
	}
	if diff := untouched(&s.Record, r, e, carried); diff != "" {
		c.add("K3", "%s: from %s, not as it was sent: %s; id %q", at(r), text, diff, s.ID)
	}
	if want := cmp.Or(s.Time, s.Timestamp); e.time != want {
		c.add("K3", "%s: from %s with event time %d, want %d; id %q", at(r), text, e.time, want, s.ID)
	}
}

// digest returns the key of a sent record's row: the first bytes of the dedup key, xor the first bytes of the
// SHA-256 of the netstrings of the namespace and of the kind of key source.
func (c *check) digest(s *Sent, e *envelope) (d digest) {
	namespace := s.Route
	if r := c.routes[s.Route]; r != nil {
		namespace = cmp.Or(r.Namespace, r.Name)
	}
	var b []byte
	for _, part := range []string{namespace, cmp.Or(s.Kind, "id")} {
		b = append(strconv.AppendInt(b, int64(len(part)), 10), ':')
		b = append(append(b, part...), ',')
	}
	mask := sha256.Sum256(b)
	for i := range d {
		d[i] = e.key[i] ^ mask[i]
	}
	return d
}

// untouched returns which parts of a sent record differ in the repartition topic or in an output; "" if none
// do. The record must have those headers of s for which stays returns true, and no other header with the prefix
// of oncebus.
func untouched(s, r *Record, e *envelope, stays func(Header) bool) string {
	var diff []string
	if !same(s.Key, r.Key) {
		diff = append(diff, "record key "+brief(r.Key)+", was "+brief(s.Key))
	}
	if !same(s.Value, r.Value) {
		diff = append(diff, "value "+brief(r.Value)+", was "+brief(s.Value))
	}
	if s.Timestamp != e.timestamp {
		diff = append(diff, "timestamp "+strconv.FormatInt(e.timestamp, 10)+", was "+strconv.FormatInt(s.Timestamp, 10))
	}
	if !sameStaying(s.Headers, r.Headers, stays) {
		diff = append(diff, "headers "+showHeaders(r.Headers)+", were "+showHeaders(s.Headers))
	}
	return strings.Join(diff, "; ")
}

// sameStaying reports whether got equals the list of the sent headers for which stays returns true.
func sameStaying(sent, got []Header, stays func(Header) bool) bool {
	n := 0
	for _, h := range sent {
		if !stays(h) {
			continue
		}
		if n == len(got) || h.Key != got[n].Key || !same(h.Value, got[n].Value) {
			return false
		}
		n++
	}
	return n == len(got)
}

func showHeaders(headers []Header) string {
	var b strings.Builder
	b.WriteByte('[')
	for i, h := range headers {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(h.Key + "=" + brief(h.Value))
	}
	return b.String() + "]"
}

// unrouted finds the sent records that were neither routed nor dead-lettered (K2).
func (c *check) unrouted() {
	for _, lane := range c.sources {
		for i, s := range lane.sent {
			if s.ID != "" && !lane.done[i] {
				c.add("K2", "%s: acknowledged, but it never reached %s: lost; id %q, record key %s", at(&s.Record), c.cfg.Repartition, s.ID, brief(s.Key))
			}
		}
	}
}
