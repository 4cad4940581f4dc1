package oracle

import (
	"fmt"
	"slices"
	"strings"
)

// A LedgerEmission is a record in an output, duplicates or dead-letter topic.
type LedgerEmission struct {
	Where   string // topic/partition/offset of the record
	Route   int32  // -1 if no route of the file explains it
	Verdict string
	// If Named, the record names the event at Source; for a batch that was not decompressed, it names the
	// events up to SourceLast.
	Named      bool
	Source     Position
	SourceLast int64
	Dead       bool // the record is in a dead-letter topic
	Reason     string
	// Digests are the keys that the record has by the rules of its route.
	Digests [][16]byte
	// Keys has, for a record of an output, the key by each route that has this output. Their digests are also
	// in Digests.
	Keys    []LedgerKey
	AnyTime bool // the topic has replaced the timestamp, so the event may have another time
	// Claim reports that the record is a dispatch: its token has Digests[0], ClaimAt and Attempt.
	Claim   bool
	ClaimAt Position
	Attempt uint32
	Content uint64
}

// A LedgerKey is the key that a route derives from a record of its output.
type LedgerKey struct {
	Digest [16]byte
	Time   int64
	Route  int32
}

// Emitted processes the next record of an emission topic.
func (l *Ledger) Emitted(e *LedgerEmission) {
	switch {
	case e.Named && !e.Claim:
		for offset := e.Source.Offset; offset <= max(e.Source.Offset, e.SourceLast); offset++ {
			at := e.Source
			at.Offset = offset
			l.named(e, at)
		}
	case e.Route < 0 || len(e.Digests) == 0:
		l.find("K1", e.Route, e.Where, "no route derives a key from it, and it names no event: it is no output of this app")
	default:
		l.first(e)
	}
	l.bound()
}

// first processes a record that was emitted as the first event of its key.
func (l *Ledger) first(e *LedgerEmission) {
	l.outCount++
	out := &openOut{Digests: slices.Clone(e.Digests), Keys: slices.Clone(e.Keys), anyTime: e.AnyTime, Route: e.Route, Claim: e.Claim, At: e.ClaimAt, Attempt: e.Attempt, Content: e.Content, Where: e.Where}
	if several := slices.ContainsFunc(e.Keys, func(k LedgerKey) bool { return k.Route != e.Route }); !several || !l.mayMeet(out) {
		l.countOut(out, e.Route)
	}
	if !l.mayMeet(out) {
		return
	}
	l.open++
	for _, d := range out.Digests {
		for _, row := range l.rows[d] {
			if route, ok := l.meets(d, row, out); ok {
				l.takeOut(row, out, route)
				l.closeRows(d)
				return
			}
		}
	}
	for _, d := range out.Digests {
		l.outs[d] = append(l.outs[d], out)
	}
}

// named processes a record whose headers name the event that the record is about.
func (l *Ledger) named(e *LedgerEmission, at Position) {
	if len(e.Digests) > 0 && !slices.ContainsFunc(e.Digests, l.follows) {
		return
	}
	if e.Verdict == "bypassed" {
		l.passed[at] = true
	}
	f := l.fateOf(at, e.Digests)
	if f.Emitted {
		l.find("K1", e.Route, e.Where, "%s has two records: this one says %s, and %s says %s", l.text(at), e.Verdict, f.Where, f.Verdict)
		return
	}
	f.Emitted, f.Verdict, f.Route, f.Dead, f.Reason, f.Where = true, e.Verdict, e.Route, e.Dead, e.Reason, e.Where
	f.Digests, f.Batch = e.Digests, e.SourceLast > e.Source.Offset
	if f.in != nil {
		l.decide(f)
	}
}

// refusedByTopic reports whether the reason says that a topic refused the record. The ledger cannot check such
// a reason.
func refusedByTopic(reason string) bool {
	for _, refusal := range []string{"too large for topic ", "refused by topic ", "no record key: topic ", "timestamp ", "the batch of offsets "} {
		if strings.HasPrefix(reason, refusal) {
			return true
		}
	}
	return false
}

// isAhead reports whether the reason proves that an event was too far ahead of the broker's time.
func isAhead(reason string, time, skew int64) bool {
	var stated, present int64
	var allowed string
	_, err := fmt.Sscanf(reason, "event time %d is more than %s ahead of the broker's %d", &stated, &allowed, &present)
	return err == nil && stated == time && time > add(present, skew)
}

// beforeItsKey returns the time of an event, and the time of the first event of its key, if the reason says
// that the event is late because of that first event.
func beforeItsKey(reason string) (time, first int64, ok bool) {
	_, err := fmt.Sscanf(reason, "event time %d cannot be judged: the first event under the key has time %d", &time, &first)
	return time, first, err == nil
}

// isAheadAny does what isAhead does, for an event that is not known.
func isAheadAny(reason string) bool {
	return strings.HasPrefix(reason, "event time ") && strings.Contains(reason, " ahead of the broker's ")
}
