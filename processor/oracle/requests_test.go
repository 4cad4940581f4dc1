package oracle

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"
)

// submitted is a record that the ingress wrote, with its request's address.
type submitted struct {
	*Record
	sent    Sent
	address string
}

const verdictPartitions = 3

// posted adds a request with an event of a route, and its response; status 0 is a missing one. The
// retries of one id have one body.
func (w *scenario) posted(route int, id string, status int, verdict string) *Request {
	q := Request{Route: w.cfg.Routes[route].Name, ID: id, Value: fmt.Appendf(nil, `{"id":%q}`, id), Headers: []Header{{"traceparent", []byte("00")}}, Status: status, Verdict: verdict}
	if verdict != "" {
		q.Key = keyText(id)
	}
	w.h.Requests = append(w.h.Requests, q)
	return &w.h.Requests[len(w.h.Requests)-1]
}

// submit adds the record that the ingress writes for a request, with a return address.
func (w *scenario) submit(q *Request, stamp int64) submitted {
	w.cfg.RepartitionNumber, w.cfg.Verdicts = 9, "app-verdicts"
	w.cfg.Emissions[w.cfg.Verdicts] = Emission{Partitions: verdictPartitions}
	key := sha256.Sum256([]byte(q.ID))
	partition := partitionOf(q.ID)
	request := uint64(len(w.h.Live[w.cfg.Repartition]))<<8 | 7
	b := slices.Concat([]byte{0}, digestOf(q.Route, q.ID), key[:]) // event time: the timestamp
	b = binary.AppendUvarint(b, request%verdictPartitions)
	b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, 0xabc), request)
	b = append(binary.LittleEndian.AppendUint64(b, 77), 0, 3)
	b = append(b, "req"...)
	r := w.append(Record{
		Topic: w.cfg.Repartition, Partition: partition, Timestamp: base + stamp, Value: q.Value, Headers: slices.Clone(q.Headers),
		Key: envelopeBytes(flagReplyTo|flagIngress|flagDetails, q.Route, position{}, base+stamp, b),
	})
	s := Sent{Route: q.Route, ID: q.ID, Record: Record{
		Topic: w.cfg.Repartition, Partition: partition, Offset: r.Offset, Timestamp: base + stamp, Value: q.Value,
		Headers: append(slices.Clone(q.Headers), Header{"Oncebus-Verdict", nil}),
	}}
	return submitted{r, s, fmt.Sprintf("%08x%016x%016x", request%verdictPartitions, 0xabc, request)}
}

// respond adds the verdict record of a request. headers are name, value, name, value.
func (w *scenario) respond(s submitted, verdict string, headers ...string) *Record {
	r := Record{Topic: w.cfg.Verdicts, Partition: verdictPartition(s.address), Timestamp: s.Timestamp, Headers: []Header{
		{headerReplyTo, []byte(s.address)}, {headerVerdict, []byte(verdict)}, {headerKey, []byte(keyText(s.sent.ID))},
	}}
	for n := 0; n < len(headers); n += 2 {
		r.Headers = append(r.Headers, Header{headers[n], []byte(headers[n+1])})
	}
	return w.append(r)
}

// submittedUnique is an event by HTTP that is unique.
func (w *scenario) submittedUnique(q *Request, stamp int64) submitted {
	s := w.submit(q, stamp)
	w.emit(s.sent, q.Route, headerRoute, q.Route, headerVerdict, "unique", headerKey, keyText(q.ID))
	w.row(s.Record, s.sent, base+stamp, 9)
	w.respondForwarded(s, "unique")
	return s
}

func (w *scenario) respondForwarded(s submitted, verdict string) {
	r := w.respond(s, verdict)
	r.Headers = append(r.Headers, Header{headerForwarded, nil})
}

// row adds the row of an event whose source has a topic number.
func (w *scenario) row(r *Record, s Sent, at int64, topic uint64) {
	value := binary.AppendVarint([]byte{1, 0, w.namespaceID(s.Route), 0}, at)
	for _, n := range []uint64{topic, uint64(s.Partition), uint64(s.Offset)} {
		value = binary.AppendUvarint(value, n)
	}
	d := digestOf(s.Route, s.ID)
	w.append(Record{Topic: w.cfg.Changelog, Partition: r.Partition, Timestamp: r.Timestamp, Key: d, Value: value})
	w.rows[r.Partition][string(d)] = value
	w.seen(r, w.namespaceID(s.Route), at)
}

// submittedDuplicate is a duplicate by HTTP, which the route drops or emits.
func (w *scenario) submittedDuplicate(q *Request, first submitted, stamp int64) submitted {
	s := w.submit(q, stamp)
	source := func(s *submitted) string {
		return fmt.Sprintf("%s/%d/%d", w.cfg.Repartition, s.sent.Partition, s.sent.Offset)
	}
	reason := fmt.Sprintf("duplicate %v after the first, window 1s", time.Duration(s.Timestamp-first.sent.Timestamp)*time.Millisecond)
	w.emit(s.sent, "duplicates", headerRoute, q.Route, headerVerdict, "duplicate", headerKey, keyText(q.ID), headerReason, reason,
		headerSource, source(&s), headerFirst, source(&first), headerFirstTime, fmt.Sprint(first.sent.Timestamp))
	w.seen(s.Record, w.namespaceID(q.Route), s.Timestamp)
	w.respond(s, "duplicate", headerFirst, source(&first), headerFirstTime, fmt.Sprint(first.sent.Timestamp))
	return s
}

// byHTTP adds to the story an event by HTTP whose first response was lost, its retry, and
// a request that never arrived. It ends with a commit.
func byHTTP(w *scenario) {
	id := idAt(0, "http")
	first := w.submittedUnique(w.posted(0, id, 0, ""), 5000)
	w.submittedDuplicate(w.posted(0, id, 409, "duplicate"), first, 5001)
	w.posted(0, idAt(0, "refused"), 503, "")
	w.commit(0)
}

func TestRequestsByHTTP(t *testing.T) {
	wantNoFinding(t, []plant{
		{name: "lost response, retry, refused request", change: byHTTP},
		{name: "both responses arrived", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests[0].Status, w.h.Requests[0].Verdict, w.h.Requests[0].Key = 202, "unique", keyText(w.h.Requests[0].ID)
		}},
		{name: "stored, but without a verdict in time", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests[0].Status = 504
		}},
	})
}

func TestRequestsAndTheLogDisagree(t *testing.T) {
	lastVerdict := func(w *scenario) *Record { return &w.h.Live[w.cfg.Verdicts][len(w.h.Live[w.cfg.Verdicts])-1] }
	wantFindings(t, []plant{
		{name: "an acknowledged event is lost", want: []string{"K2"}, message: "1 responses say that Kafka has the event, app-repartition has 0 records: lost", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests[2].Status = 202
		}},
		{name: "an event without a verdict in time is lost", want: []string{"K2"}, message: "lost", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests[2].Status = 504
		}},
		{name: "both copies got the verdict unique", want: []string{"K12"}, message: "2 responses have verdict unique, 1 of its records were judged so", change: func(w *scenario) {
			byHTTP(w)
			for n := range 2 {
				q := &w.h.Requests[n]
				q.Status, q.Verdict, q.Key = 202, "unique", keyText(q.ID)
			}
		}},
		{name: "a response with another verdict", want: []string{"K12"}, message: "1 responses have verdict late", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests[1].Verdict = "late"
		}},
		{name: "a response with another key", want: []string{"K12"}, message: "the response has dedup key", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests[1].Key = keyText("other")
		}},
		{name: "one request became two records", want: []string{"K1"}, message: "the ingress wrote 2 records for 1 requests", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests = slices.Delete(w.h.Requests, 0, 1)
		}},
		{name: "a record of no request", want: []string{"K2"}, message: "no request had its value", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests = w.h.Requests[2:]
		}},
		{name: "the key of another event", want: []string{"K2", "K12"}, message: "the SHA-256 of id \"other\"", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests[0].ID, w.h.Requests[1].ID = "other", "other"
		}},
		{name: "a header is lost", want: []string{"K3"}, message: "from a request, not as it was sent: headers", change: func(w *scenario) {
			byHTTP(w)
			w.h.Requests[0].Headers = append(slices.Clone(w.h.Requests[0].Headers), Header{"tracestate", []byte("a=b")})
		}},
		{name: "no verdict for a request", want: []string{"K2", "K11"}, message: "app-verdicts: lost", change: func(w *scenario) {
			byHTTP(w)
			r := *lastVerdict(w)
			w.remove(&r)
		}},
		{name: "two verdicts for a request", want: []string{"K1"}, message: "app-verdicts/", change: func(w *scenario) {
			byHTTP(w)
			w.append(*lastVerdict(w))
		}},
		{name: "the verdict of another request", want: []string{"K3"}, message: "differs from the expected output", change: func(w *scenario) {
			byHTTP(w)
			lastVerdict(w).Headers[0].Value = w.h.Live[w.cfg.Verdicts][0].Headers[0].Value
		}},
		{name: "a verdict in another partition", want: []string{"K4"}, message: "belongs in", change: func(w *scenario) {
			byHTTP(w)
			r := *lastVerdict(w)
			w.remove(&r)
			r.Partition = (r.Partition + 1) % verdictPartitions
			w.append(r)
		}},
		{name: "a verdict names another first event", want: []string{"K3"}, message: "app-repartition/0/99", change: func(w *scenario) {
			byHTTP(w)
			lastVerdict(w).Headers[3].Value = []byte("app-repartition/0/99")
		}},
		{name: "an event by HTTP is emitted twice", want: []string{"K1"}, message: "an extra record", change: func(w *scenario) {
			byHTTP(w)
			w.append(w.h.Live["signals"][len(w.h.Live["signals"])-1])
		}},
	})
}
