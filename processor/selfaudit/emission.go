package selfaudit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/oracle"
	"oncebus/processor/wire"
)

// emissionOf returns the function that reads an output, duplicates, dead-letter or replies topic.
func (a *Auditor) emissionOf(topic string) func(*worker, []*kgo.Record) func(*oracle.Ledger) {
	is := func(of func(*rules.Route) string) bool {
		return slices.ContainsFunc(a.routes.Routes, func(r *rules.Route) bool { return of(r) == topic })
	}
	replies := is(func(r *rules.Route) string { return r.Claim.Replies })
	dead := is(func(r *rules.Route) string { return r.DeadLetter })
	return func(w *worker, records []*kgo.Record) func(*oracle.Ledger) {
		emissions, answers := w.emitted(records, replies, dead)
		return func(l *oracle.Ledger) {
			for i := range emissions {
				l.Emitted(&emissions[i])
			}
			for i := range answers {
				l.Reply(&answers[i])
			}
		}
	}
}

// emitted reads the records of a topic that has replies, dead letters or both. A topic that has only replies
// has no emissions.
func (w *worker) emitted(records []*kgo.Record, replies, dead bool) (emissions []oracle.LedgerEmission, answers []oracle.LedgerReply) {
	for _, rec := range records {
		if _, reply := own(rec, wire.HeaderAttempt); reply && replies {
			if r, ok := w.reply(rec); ok {
				answers = append(answers, r)
			}
			continue
		}
		if replies && !dead {
			continue
		}
		if e, ok := w.emission(rec, dead); ok {
			emissions = append(emissions, e)
		}
	}
	return emissions, answers
}

func where(rec *kgo.Record) string {
	return fmt.Sprintf("%s/%d/%d", rec.Topic, rec.Partition, rec.Offset)
}

// reply reads a reply that has a recorded result. ok is false for any other reply.
func (w *worker) reply(rec *kgo.Record) (r oracle.LedgerReply, ok bool) {
	status, _ := own(rec, wire.HeaderClaimStatus)
	_, omitted := own(rec, wire.HeaderReason)
	name, _ := own(rec, wire.HeaderRoute)
	key, _ := own(rec, wire.HeaderKey)
	attempt, _ := own(rec, wire.HeaderAttempt)
	n, err := strconv.ParseUint(attempt, 10, 32)
	index, known := w.routeOf[name]
	if status != "completed" || omitted || !known || err != nil {
		return r, false
	}
	digests := keyOf(w.routes.Routes[index], key)
	return oracle.LedgerReply{Where: where(rec), Route: index, Digests: digests, Attempt: uint32(n), Content: w.result(rec)}, len(digests) > 0
}

// emission reads a record of an output, duplicates or dead-letter topic. ok is false for a record that is about
// no event, such as a refused outcome or a reply that its topic refused, and for a record whose route was
// removed.
func (w *worker) emission(rec *kgo.Record, dead bool) (e oracle.LedgerEmission, ok bool) {
	e = oracle.LedgerEmission{Where: where(rec), Route: -1, Verdict: "unique"}
	if verdict, says := own(rec, wire.HeaderVerdict); says {
		e.Verdict = verdict
	}
	e.Reason, _ = own(rec, wire.HeaderReason)
	if name, says := own(rec, wire.HeaderRoute); says {
		if index, known := w.routeOf[name]; known {
			e.Route = index
		}
	}
	e.Content = w.content(rec)
	if token, says := own(rec, wire.HeaderClaimToken); says {
		ok = w.dispatch(&e, token)
		return e, ok
	}
	for _, about := range []string{wire.ReasonOutcome, wire.ReasonReply, wire.ReasonAnswer} {
		if strings.HasPrefix(e.Reason, about) {
			return e, false
		}
	}
	if e.Route < 0 && w.ofRetired(rec) {
		return e, false
	}
	if source, says := own(rec, wire.HeaderSource); says {
		w.named(&e, rec, source)
		e.Dead = dead
		return e, true
	}
	w.keys(&e, rec)
	return e, len(e.Digests) > 0 || !w.hasKeyOfRetired(rec)
}

// dispatch reads the token of a dispatched event. It returns false for the dead letter of an outcome.
func (w *worker) dispatch(e *oracle.LedgerEmission, text string) bool {
	token, err := dedup.ParseToken([]byte(text))
	if err != nil || strings.HasPrefix(e.Reason, wire.ReasonOutcome) {
		return false
	}
	e.Claim, e.Digests, e.ClaimAt, e.Attempt = true, [][16]byte{token.Digest}, position(token.At), token.Attempt
	return true
}

// named reads which event a record names.
func (w *worker) named(e *oracle.LedgerEmission, rec *kgo.Record, source string) {
	at, topic, known := w.positionOf(source)
	e.Named, e.Source, e.SourceLast = known, at, at.Offset
	if last, says := own(rec, wire.HeaderBatchLast); says {
		if end, _, ok := w.positionOf(last); ok {
			e.SourceLast = end.Offset
		}
	}
	if d := w.derive(rec, topic); known && d.Route != nil && d.Finding == rules.Keyed {
		e.Digests = digestsOf(&d)
		return
	}
	if key, says := own(rec, wire.HeaderKey); says && e.Route >= 0 {
		e.Digests = keyOf(w.routes.Routes[e.Route], key)
	}
}

// keys sets the keys that the routes of an output derive from the output's record. The row in the changelog
// tells which of them is the key of the record.
func (w *worker) keys(e *oracle.LedgerEmission, rec *kgo.Record) {
	e.AnyTime = rec.Attrs.TimestampType() == kafka.TimestampAppend
	stated := e.Route
	for i, route := range w.routes.Routes {
		if route.Output != rec.Topic || stated >= 0 && int32(i) != stated {
			continue
		}
		for _, topic := range route.Topics {
			d := w.derive(rec, topic)
			if d.Finding != rules.Keyed || d.Route != route {
				continue
			}
			e.Route = int32(i)
			if key := (oracle.LedgerKey{Digest: d.Digest, Time: d.Time, Route: e.Route}); !slices.Contains(e.Keys, key) {
				e.Keys = append(e.Keys, key)
			}
			if !slices.Contains(e.Digests, [16]byte(d.Digest)) {
				e.Digests = append(e.Digests, d.Digest)
			}
		}
	}
}
