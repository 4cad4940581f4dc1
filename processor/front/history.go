package front

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// HistoryEntry is a record about an event of a key, as a topic contains it.
type HistoryEntry struct {
	At      string `json:"at"`   // topic/partition/offset
	Time    int64  `json:"time"` // timestamp of the record, in Unix milliseconds
	Verdict string `json:"verdict,omitempty"`
	// Outcome is the kind of an executor's outcome; "" if the record is no outcome.
	Outcome string `json:"outcome,omitempty"`
	// Reason is the executor's text about a failed or rejected attempt.
	Reason      string `json:"reason,omitempty"`
	ClaimStatus string `json:"claim_status,omitempty"` // for a reply
	Attempt     string `json:"attempt,omitempty"`
	Source      string `json:"source,omitempty"` // topic/partition/offset of the event
}

func byTime(a, b HistoryEntry) int { return cmp.Compare(a.Time, b.Time) }

// History has the records about the events of a key that the topics of a route contain.
type History struct {
	Entries []HistoryEntry `json:"events"` // the newest entries, sorted by time
	// Earlier is the number of older entries that are left out.
	Earlier int      `json:"earlier,omitempty"`
	Topics  []string `json:"topics"` // the topics that were read
	// Cut says why not all records were read; "" if all records were read.
	Cut string `json:"cut,omitempty"`
	// CountsOnly reports that the route drops duplicates, so that only their number is known.
	CountsOnly bool `json:"counts_only,omitempty"`
}

// HistoryBound bounds what History reads and returns.
type HistoryBound struct {
	Entries int // the most entries to return
	Records int // the most records to read
	Time    time.Duration
}

// errBound makes a Reader stop at the bound.
var errBound = errors.New("bound")

// History returns the records about events of an entry's key in the route's topics. It reads the duplicates
// topic (or the output if duplicates go there), the dead-letter topic and, in claim mode, the replies and
// outcomes. It reads records from the first event's time on. Therefore records with an earlier timestamp may be
// missing, for example the record of a duplicate whose event time is earlier.
func (i *Inspector) History(ctx context.Context, d *rules.Derived, e *Entry, bound HistoryBound) (History, error) {
	h := History{Entries: []HistoryEntry{}, CountsOnly: d.Route.Mode != rules.ClaimMode && d.Route.Duplicates.Policy == rules.Drop}
	search := historySearch{history: &h, bound: bound, entry: e, keys: []string{wire.KeyText(&d.Key)}, routes: i.rt.RoutesOf[i.rt.ByName[d.Route.Name].NamespaceID]}
	if d.Route.Mode == rules.ClaimMode && e.Row.HasResult && e.Claim.Key != d.Key {
		search.keys = append(search.keys, wire.KeyText(&e.Claim.Key))
	}
	reading, cancel := context.WithTimeout(ctx, bound.Time)
	defer cancel()
	var failed error
	for _, topic := range historyTopics(d.Route) {
		h.Topics = append(h.Topics, topic)
		err := i.historyOf(reading, topic, e.Row.First, &search)
		switch {
		case errors.Is(err, errBound):
			h.Cut = "after " + strconv.Itoa(bound.Records) + " records"
		case reading.Err() != nil && ctx.Err() == nil:
			h.Cut = "after " + bound.Time.String()
		case err != nil:
			failed = errors.Join(failed, err)
			continue
		}
		if h.Cut != "" {
			h.Cut += ", in topic " + topic
			break
		}
	}
	slices.SortStableFunc(h.Entries, byTime)
	if n := len(h.Entries) - bound.Entries; n > 0 {
		h.Earlier += n
		h.Entries = h.Entries[n:]
	}
	return h, failed
}

// historyTopics returns the topics that contain records about the events of a route.
func historyTopics(r *rules.Route) []string {
	var topics []string
	add := func(topic string) {
		if topic != "" && !slices.Contains(topics, topic) {
			topics = append(topics, topic)
		}
	}
	add(r.Duplicates.Topic)
	if r.Mode == rules.ClaimMode {
		add(r.Claim.Replies)
		add(r.Claim.Outcomes)
	}
	add(r.DeadLetter)
	add(r.Output) // for forwarded duplicates, collisions, and events after the window
	return topics
}

// historyOf searches a topic for records whose time is since or later, in ms.
func (i *Inspector) historyOf(ctx context.Context, topic string, since int64, search *historySearch) error {
	after, err := kadm.NewClient(i.client).ListOffsetsAfterMilli(ctx, since, topic)
	if err != nil {
		return fmt.Errorf("list offsets of %s: %w", topic, kafka.Denied(err, "Describe", kafka.ResourceTopic, topic))
	}
	readers, err := i.readersOf(ctx, topic)
	if err != nil {
		return err
	}
	for _, reader := range readers {
		start, end, err := reader.Bounds(ctx)
		if err != nil {
			return err
		}
		if o, ok := after.Lookup(topic, reader.Partition); ok && o.Err == nil && o.Offset >= 0 {
			start = min(max(o.Offset, start), end)
		}
		if err := reader.Read(ctx, start, end, i.progress.tracked(start, end, search.look)); err != nil {
			return err
		}
	}
	return nil
}

// historySearch looks for records about a key.
type historySearch struct {
	history *History
	bound   HistoryBound
	entry   *Entry
	keys    []string // keys as hexadecimal digits
	routes  []string // names of the namespace's routes
	read    int
}

func (s *historySearch) look(records []*kgo.Record, _ int64) error {
	for _, rec := range records {
		if s.read++; s.read > s.bound.Records {
			return errBound
		}
		if entry, ok := s.entryOf(rec); ok {
			s.history.Entries = append(s.history.Entries, entry)
		}
	}
	if n := len(s.history.Entries) - 16*s.bound.Entries; n > 0 { // bound the memory for a key with very many events
		slices.SortStableFunc(s.history.Entries, byTime)
		s.history.Entries = slices.Delete(s.history.Entries, 0, len(s.history.Entries)-s.bound.Entries)
		s.history.Earlier += n + 15*s.bound.Entries
	}
	return nil
}

func (s *historySearch) entryOf(rec *kgo.Record) (HistoryEntry, bool) {
	headers := wire.Headers(rec.Headers)
	text := func(name string) string { v, _ := headers.Header(name); return strings.ToValidUTF8(string(v), "�") }
	if !s.isOf(text) {
		return HistoryEntry{}, false
	}
	e := HistoryEntry{
		At: fmt.Sprintf("%s/%d/%d", rec.Topic, rec.Partition, rec.Offset), Time: rec.Timestamp.UnixMilli(), Verdict: text(wire.HeaderVerdict),
		Outcome: text(wire.HeaderOutcome), Reason: text(wire.HeaderReason), ClaimStatus: text(wire.HeaderClaimStatus), Attempt: text(wire.HeaderAttempt), Source: text(wire.HeaderSource),
	}
	for _, kind := range []string{e.Outcome, e.ClaimStatus} {
		if e.Reason == "" && (kind == dedup.OutcomeFailed.String() || kind == dedup.OutcomeRejected.String()) {
			e.Reason = strings.ToValidUTF8(string(rec.Value[:min(len(rec.Value), errorTextMax)]), "�") // the executor's text
		}
	}
	return e, true
}

// errorTextMax bounds, in bytes, the executor's text about a failed attempt in a history.
const errorTextMax = 1 << 10

// isOf reports whether a record is about the key: by its headers or, for an outcome, by its claim token.
func (s *historySearch) isOf(text func(string) string) bool {
	if key := text(wire.HeaderKey); key != "" {
		return slices.Contains(s.keys, key) && slices.Contains(s.routes, text(wire.HeaderRoute))
	}
	token := text(wire.HeaderClaimToken)
	if token == "" {
		return false
	}
	t, err := dedup.ParseToken([]byte(token))
	return err == nil && t.NamespaceID == s.entry.Row.NamespaceID && t.Digest == s.entry.Row.Digest
}
