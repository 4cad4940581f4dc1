package oracle

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A Request is an HTTP request with an event that has a dedup key. A retry is a separate Request. Requests with
// equal values have the same event.
type Request struct {
	Route, ID string
	Kind      string // as in Sent
	Value     []byte
	Headers   []Header // the headers that the route carries into the record
	Time      int64    // event time in ms; 0 means the time at which the ingress received the request
	// Status is the status of the response; 0 if there was none. A status 2xx, a verdict, or the status 504
	// means that Kafka has the event.
	Status       int
	Verdict, Key string // headers of the response; "" if it lacks them
}

// acknowledged reports whether the sender knows from the response that Kafka has the event.
func (q *Request) acknowledged() bool {
	return q.Verdict != "" || q.Status >= 200 && q.Status < 300 || q.Status == 504
}

// A requestGroup has the requests with the same value, and the records that were made from them. The log does
// not show which record was made from which request.
type requestGroup struct {
	sent     []*Request
	records  []*Record
	verdicts map[string]int // number of records by verdict; records in claim mode are not counted
	claims   bool
}

func (c *check) readRequests() {
	for i := range c.h.Requests {
		q := &c.h.Requests[i]
		g := c.requests[string(q.Value)]
		if g == nil {
			g = &requestGroup{verdicts: map[string]int{}}
			c.requests[string(q.Value)] = g
		}
		g.sent = append(g.sent, q)
		g.claims = g.claims || slices.ContainsFunc(c.cfg.Claims, func(claims Claims) bool { return claims.Route == q.Route })
		if q.Verdict != "" {
			c.report.Answers++
		}
	}
}

// submitted compares a record that the ingress has written with its request: the request exists (K2), at most
// one record was made from it (K1), and the record has the right key (K2) and is unchanged (K3).
func (c *check) submitted(r *Record, e *envelope) {
	g := c.requests[string(r.Value)]
	if g == nil {
		c.add("K2", "%s: the ingress wrote it, but no request had its value %s; dedup key %x", at(r), brief(r.Value), e.key)
		return
	}
	if g.records = append(g.records, r); len(g.records) > len(g.sent) {
		c.add("K1", "%s: the ingress wrote %d records for %d requests with id %q", at(r), len(g.records), len(g.sent), g.sent[0].ID)
	}
	q := g.sent[0]
	s := Sent{Route: q.Route, ID: q.ID, Kind: q.Kind, Time: cmp.Or(q.Time, e.timestamp), Record: Record{Value: q.Value, Headers: q.Headers, Timestamp: e.timestamp}}
	c.derived(r, e, &s, "a request")
}

// expectVerdict stores the verdict that the request of an event should get.
func (c *check) expectVerdict(l *draft, forwarded, beyond bool) {
	if l.env.ingress {
		if g := c.requests[string(l.record.Value)]; g != nil {
			g.verdicts[l.verdict]++
		}
	}
	partition := verdictPartition(l.env.replyTo)
	if n := c.cfg.Emissions[c.cfg.Verdicts].Partitions; c.cfg.Verdicts == "" || l.env.replyTo == "" || n > 0 && partition >= n {
		return
	}
	r := Record{Topic: c.cfg.Verdicts, Partition: partition, Headers: []Header{
		{headerReplyTo, []byte(l.env.replyTo)}, {headerVerdict, []byte(l.verdict)}, {headerKey, []byte(hex.EncodeToString(l.env.key[:]))},
	}}
	if l.first != nil {
		r.Headers = append(r.Headers, Header{headerFirst, []byte(c.builder.positionText(l.first.at))}, Header{headerFirstTime, strconv.AppendInt(nil, l.first.first, 10)})
	}
	if l.reason != "" && l.verdict != "duplicate" {
		r.Headers = append(r.Headers, Header{headerReason, []byte(l.reason)})
	}
	if forwarded && l.verdict != "duplicate" {
		r.Headers = append(r.Headers, Header{headerForwarded, nil})
	}
	c.expected.add(c.printer.of(&r), expectation{
		record: l.record, topic: c.expected.number(r.Topic), verdict: c.expected.number(l.verdict), partition: r.Partition,
		beyond: beyond, order: c.orderOf(l.route),
	})
}

// verdictPartition returns the partition in a return address.
func verdictPartition(address string) int32 {
	n, _ := strconv.ParseInt(address[:min(8, len(address))], 16, 32) // the oracle wrote it
	return int32(n)
}

// answers compares the responses with the log (K12): every acknowledged request must have a record, and its
// verdict must be the verdict on a record with the same value.
func (c *check) answers() {
	for _, value := range slices.Sorted(maps.Keys(c.requests)) {
		g := c.requests[value]
		known, answered := c.countAnswers(g)
		q := g.sent[0]
		if known > len(g.records) {
			c.add("K2", "request with id %q of route %s: %d responses say that Kafka has the event, %s has %d records: lost", q.ID, q.Route, known, c.cfg.Repartition, len(g.records))
		}
		if g.claims {
			continue
		}
		for _, verdict := range slices.Sorted(maps.Keys(answered)) {
			if n := answered[verdict]; n > g.verdicts[verdict] {
				c.add("K12", "request with id %q of route %s: %d responses have verdict %s, %d of its records were judged so; all: %v", q.ID, q.Route, n, verdict, g.verdicts[verdict], g.verdicts)
			}
		}
	}
}

// countAnswers counts the acknowledged requests, and the responses by verdict. It also checks the dedup keys in
// the responses.
func (c *check) countAnswers(g *requestGroup) (known int, answered map[string]int) {
	answered = map[string]int{}
	for _, q := range g.sent {
		if q.acknowledged() {
			known++
		}
		if q.Verdict == "" {
			continue
		}
		answered[q.Verdict]++
		if key := sha256.Sum256([]byte(q.ID)); !strings.EqualFold(q.Key, hex.EncodeToString(key[:])) {
			c.add("K12", "request with id %q of route %s: the response has dedup key %q, want %x", q.ID, q.Route, q.Key, key)
		}
	}
	return known, answered
}
