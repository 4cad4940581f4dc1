package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
)

const getAbout = "Shows the row of a key, if there is one: first seen when and where, status, attempts, size of\n" +
	"the result, and until when an event with the key is a duplicate. Then it shows the first event\n" +
	"itself, which it finds in the route's output, and what the topics of the route say of later\n" +
	"events with the key. It reads only topics, so it works on any machine, even if the service\n" +
	"does not run. " + inspectAbout

// getOptions are the flags of get that forget does not have.
type getOptions struct {
	event   bool
	history int
}

// getCommand is 'oncebus get'.
func getCommand() cli.Command {
	var o inspectOptions
	return cli.Command{
		Name: "get", Synopsis: "[OPTIONS] [FILE|-]", About: "show the state of a key, its first event and its history, from the app's topics", ArgsMax: 1,
		Long: getAbout, Example: "oncebus get --key 46e9bc3476c92ea24fb17adac6cd9cdacff7a34a5c753100787da5a29984f836\n" +
			"oncebus get --record signals.duplicates/3/17\n" +
			`echo '{"traceId":"t-1"}' | oncebus get --route signals`,
		Flags: func(fs *pflag.FlagSet) {
			o.define(fs)
			fs.BoolVar(&o.shown.event, "event", true, "find the first event in the output, which needs the right to Read it")
			fs.IntVar(&o.shown.history, "history", 20, "show so many of the newest `records` about the key in the duplicates, dead-letter, replies,\n"+
				"outcomes and output topics of the route, which needs the right to Read them; 0 reads none")
		},
		Words: routeWords(&o.routesFile),
		Run:   o.get,
	}
}

// Limits of how much get reads to find a history: a number of records, and a time.
const (
	historyRecords = 2_000_000
	historyTime    = 30 * time.Second
)

// get runs the command: it looks up the row of the selected key, and adds the first event and the history.
func (o *inspectOptions) get(ctx context.Context, rest []string, p cli.Process) int {
	in, code, done := o.inspect(ctx, "get", rest, p)
	if done {
		return code
	}
	defer in.inspector.Close()
	failed := func(err error) int {
		in.progress.End()
		cli.Printf(p.Stderr, "oncebus get: %v\n", err)
		return codeOf(err)
	}
	derived, entry, found, err := in.lookup(ctx, o.route != "")
	if err != nil {
		return failed(err)
	}
	shown := showLookup(derived)
	var incomplete error
	if found {
		shown.Found, shown.shownEntry = true, showEntry(derived, &entry)
		if entry.Row.Digest != derived.Digest {
			shown.KeptUnder = entry.Row.Digest.String()
		}
		incomplete = o.shown.showTopics(ctx, in.inspector, derived, &entry, shown.shownEntry)
	}
	in.progress.End()
	if o.json {
		encoder := json.NewEncoder(p.Stdout)
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(shown)
	} else {
		err = shown.write(p.Stdout)
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus get: %v\n", err)
		return cli.ExitFailed
	}
	if incomplete != nil {
		return failed(incomplete)
	}
	return cli.ExitStopped
}

// showTopics adds the first event and the history to shown. If the event or the history is incomplete, it
// returns the reason.
func (o *getOptions) showTopics(ctx context.Context, inspector *front.Inspector, derived *rules.Derived, entry *front.Entry, shown *shownEntry) (incomplete error) {
	switch {
	case o.event && entry.Row.Seeded():
		shown.noEvent = "known from a seed: it was not emitted by this app"
	case o.event:
		rec, err := inspector.FirstEvent(ctx, derived.Route, entry)
		shown.showEvent(derived.Route, rec, err)
		if err != nil {
			incomplete = fmt.Errorf("find the first event in %s (--event=false leaves that out): %w", derived.Route.Output, err)
		}
	}
	if o.history > 0 {
		h, err := inspector.History(ctx, derived, entry, front.HistoryBound{Entries: o.history, Records: historyRecords, Time: historyTime})
		shown.History = &h
		if err != nil {
			incomplete = errors.Join(incomplete, fmt.Errorf("read the later events of the key (--history 0 leaves that out): %w", err))
		}
	}
	return incomplete
}

// lookup returns the first of the keys that has a row, or else the first key. If rows of two routes match,
// lookup returns an error, unless the user has chosen the route.
func (in *inspection) lookup(ctx context.Context, chosen bool) (*rules.Derived, front.Entry, bool, error) {
	target := &in.targets[0]
	best, entry, found := &target.Keys[0], front.Entry{}, false
	for i := range target.Keys {
		d := &target.Keys[i]
		if found && d.Route.Namespace == best.Route.Namespace {
			continue
		}
		e, has, err := in.inspector.Lookup(ctx, d)
		switch {
		case err != nil:
			return d, e, false, err
		case has && found:
			return d, e, false, front.Ambiguous(target.Text, best.Route, d.Route)
		case has:
			best, entry, found = d, e, true
		}
		if found && chosen {
			break
		}
	}
	return best, entry, found, nil
}

// shownLookup is the output of get for a key; shownEntry is nil if the key has no row. The JSON names of both
// are an interface.
type shownLookup struct {
	Found     bool   `json:"found"`
	Key       string `json:"key"`
	Digest    string `json:"digest"`
	Route     string `json:"route"`
	Namespace string `json:"namespace"`
	*shownEntry
	hint string // where else the row may be; "" if there is no other place
}

// showLookup returns the output for a key without its row.
func showLookup(d *rules.Derived) shownLookup {
	return shownLookup{Key: hex.EncodeToString(d.Key[:]), Digest: d.Digest.String(), Route: d.Route.Name, Namespace: d.Route.Namespace, hint: adjacentHint(d)}
}

// adjacentHint returns a text that says where else the row of a key may be. With adjacent buckets the row may
// have the key of another bucket, which the command can only find if the user gives the event and not just the
// key. It returns "" for any other key.
func adjacentHint(d *rules.Derived) string {
	if d.Route.AdjacentStep() == 0 || d.HasAdjacent {
		return ""
	}
	return "; the order may have its row under the key of an adjacent bucket: pass the event, or its input record by --record"
}

// shownEntry is the row of a key.
type shownEntry struct {
	Task      string `json:"task"`
	KeptUnder string `json:"kept_under,omitempty"` // digest of the row's key in an adjacent bucket; absent for the event's own key
	Status    string `json:"status"`
	First     string `json:"first"`      // topic/partition/offset
	FirstTime int64  `json:"first_time"` // event time, Unix milliseconds
	// DuplicatesUntil is the last event time at which an event with the key is a duplicate; absent if the key
	// is free. RetainedUntil is the last stream time at which the task retains the row; after that it evicts
	// the row. Both are in Unix milliseconds.
	DuplicatesUntil int64          `json:"copies_until,omitempty"`
	RetainedUntil   int64          `json:"held_until"`
	StreamTime      int64          `json:"stream_time"`
	Held            bool           `json:"held"`
	KeyState        front.KeyState `json:"key_state"`

	// Hits and LastHit (in broker time) exist for a route with count_hits; they are absent if the key has no
	// duplicate.
	Hits    uint64 `json:"hits,omitempty"`
	LastHit int64  `json:"last_hit,omitempty"`

	// The following fields are for claim mode. NextAttempt is the attempt of the next event that is not a
	// duplicate; it is absent within the window of the key.
	Attempt       uint32 `json:"attempt,omitempty"`
	NextAttempt   uint32 `json:"next_attempt,omitempty"`
	ClaimedAt     int64  `json:"claimed_at,omitempty"`
	LeaseUntil    int64  `json:"lease_until,omitempty"` // absent once the attempt has started or has ended
	StartedBy     string `json:"started_by,omitempty"`  // the start id to which the attempt was granted
	Request       string `json:"request,omitempty"`
	Waiting       int    `json:"waiting,omitempty"` // how many requests of duplicates wait for the outcome
	ResultBytes   *int   `json:"result_bytes,omitempty"`
	ResultNull    bool   `json:"result_null,omitempty"`
	ResultOmitted int    `json:"result_omitted_bytes,omitempty"`
	resultLimit   int    // result_limit of the route, in bytes

	// Event is the first event; absent if the output no longer contains it, or if it was not read.
	Event   *shownEvent `json:"event,omitempty"`
	noEvent string      // why Event is absent; "" if there is nothing to say
	// History has the records about later events in the topics of the route; absent if the command did not read
	// them.
	History *front.History `json:"history,omitempty"`
}

// showEntry returns the output for the row of a key.
func showEntry(d *rules.Derived, e *front.Entry) *shownEntry {
	r, w := d.Route, e.Window
	s := &shownEntry{
		Task: e.Task, Status: e.Row.Status.String(), First: e.First, FirstTime: e.Row.First,
		RetainedUntil: e.Row.First + w.Retention(), StreamTime: e.StreamTime, Held: e.Held(), KeyState: e.KeyState(),
		Attempt: e.Row.Attempt, resultLimit: r.Claim.ResultBytes,
	}
	if s.KeyState != front.Free {
		s.DuplicatesUntil = e.Row.First + w.Size
	}
	if s.KeyState != front.Active && inClaimMode(r) {
		s.NextAttempt = 1
		if s.Held {
			s.NextAttempt += e.Row.Attempt
		}
	}
	switch e.Row.Status {
	case dedup.ClaimInProgress:
		if e.Claim.StartID == nil {
			s.LeaseUntil = e.Claim.Since + r.ClaimRule().Lease
		}
		fallthrough
	case dedup.Submitted:
		if e.Claim.Forwarded() {
			s.Status = dedup.StatusForwarded
		}
		for i := range e.Claim.Requests {
			if e.Claim.Requests[i].At != e.Row.At { // the request of the first event is no duplicate
				s.Waiting++
			}
		}
	case dedup.Completed:
		n := len(e.Claim.Result)
		s.ResultBytes, s.ResultNull, s.ResultOmitted = &n, e.Claim.Result == nil && e.Claim.Omitted == 0, e.Claim.Omitted
	case dedup.Seen, dedup.Freed:
	}
	s.ClaimedAt, s.Hits, s.LastHit = e.Claim.Since, e.Claim.Hits, e.Claim.LastHit
	if len(e.Claim.StartID) > 0 {
		s.StartedBy = strings.ToValidUTF8(string(e.Claim.StartID), "\uFFFD")
	}
	if utf8.Valid(e.Claim.Original) {
		s.Request = string(e.Claim.Original)
	}
	return s
}

// omissionCause returns why the result was not stored. The row does not record the cause, but there are only
// two possible causes.
func (s *shownEntry) omissionCause() string {
	if s.ResultOmitted > s.resultLimit {
		return "over result_limit, " + plural(s.resultLimit, "byte")
	}
	return "its row would exceed max.message.bytes of the changelog"
}

// describeKeyState returns a text about the verdict that the next event with the key will get.
func (s *shownEntry) describeKeyState() string {
	next := "is emitted"
	if s.NextAttempt > 0 {
		next = "runs as attempt " + strconv.FormatUint(uint64(s.NextAttempt), 10)
	}
	switch {
	case !s.Held:
		return "free: its retention is over, and the row will be evicted; the next event with the key " + next
	case s.KeyState == front.Free:
		return "free: the next event with the key " + next
	case s.KeyState == front.Expired:
		return "expired: only an event within the window is a duplicate; a later event " + next
	}
	return string(front.Active)
}

// write prints the key as a table.
func (s *shownLookup) write(to io.Writer) error {
	if !s.Found {
		_, err := fmt.Fprintf(to, "no row for key %s (digest %s) in namespace %s%s\n", s.Key, s.Digest, s.Namespace, s.hint)
		return err
	}
	when := func(ms int64) string {
		return time.UnixMilli(ms).UTC().Format(time.RFC3339Nano) + " (" + strconv.FormatInt(ms, 10) + ")"
	}
	facts := []fact{
		{"key", s.Key}, {"digest", s.Digest}, {"route", s.Route}, {"namespace", s.Namespace}, {"task", s.Task}, {"status", s.Status},
		{"first seen", s.First + " at " + when(s.FirstTime)},
	}
	if s.KeptUnder != "" {
		facts = append(facts, fact{"row of", "digest " + s.KeptUnder + ", the key in an adjacent bucket: the event is a duplicate of that order"})
	}
	if s.KeyState != front.Free {
		facts = append(facts, fact{"duplicates until", when(s.DuplicatesUntil) + " in event time"})
	}
	facts = append(facts, fact{"key state", s.describeKeyState()})
	if s.Hits > 0 {
		facts = append(facts, fact{"hits", fmt.Sprintf("%s, the last at %s in broker time", plural(int(s.Hits), "duplicate"), when(s.LastHit))})
	}
	if s.Attempt > 0 {
		facts = append(facts, fact{"attempt", strconv.FormatUint(uint64(s.Attempt), 10)})
	}
	if s.Request != "" {
		facts = append(facts, fact{"request id", s.Request})
	}
	if s.ClaimedAt > 0 {
		facts = append(facts, fact{"claimed", when(s.ClaimedAt) + " in broker time"})
	}
	if s.LeaseUntil > 0 {
		facts = append(facts, fact{"lease until", "at least " + when(s.LeaseUntil)})
	}
	if s.StartedBy != "" {
		facts = append(facts, fact{"started by", fmt.Sprintf("%q, so no lease ends the attempt", s.StartedBy)})
	}
	if s.Waiting > 0 {
		facts = append(facts, fact{"waiting", plural(s.Waiting, "duplicate")})
	}
	switch {
	case s.ResultOmitted > 0:
		facts = append(facts, fact{"result", plural(s.ResultOmitted, "byte") + ", not stored: " + s.omissionCause()})
	case s.ResultNull:
		facts = append(facts, fact{"result", "null"})
	case s.ResultBytes != nil:
		facts = append(facts, fact{"result", plural(*s.ResultBytes, "byte")})
	}
	switch {
	case s.Event != nil:
		facts = append(facts, s.Event.facts()...)
	case s.noEvent != "":
		facts = append(facts, fact{"event", s.noEvent})
	}
	facts = append(facts, historyFacts(s.History)...)
	tw := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	writeFacts(tw, "", facts)
	return tw.Flush()
}
