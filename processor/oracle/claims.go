package oracle

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Claims is the set-up of a route in claim mode. For the comparison, the senders must give every event a unique
// record key, and the executors must give every outcome a unique record key. Durations are ms.
type Claims struct {
	// Route is the name of the route and of its namespace; "" if the app has no other route. NamespaceID is the
	// id of the namespace in the manifest.
	Route       string
	NamespaceID uint8

	Repartition, Changelog     string
	RepartitionNumber          uint16 // as in Config
	Output, Replies, Dead      string
	Answers                    string // topic of the answers to start and renew; "" if there is none
	Window, Grace, Skew, Lease int64
	Wait                       int // how many duplicates may wait for an outcome
	// ByClock tells that the app is of an earlier build, in which leases end by time alone.
	ByClock bool
	// Timeout is how long an HTTP request waits; 0 for a route without HTTP.
	Timeout int64
	// Group tells that the route names the consumer group of its executor.
	Group bool
	// ForwardsCollisions tells that the route forwards collisions. The oracle knows no routes with adjacent buckets.
	ForwardsCollisions bool

	// Outcomes is the topic of the outcomes, OutcomesNumber its number in the manifest. Outcomes is "" if the
	// topic was not read: then the oracle cannot find a lost outcome.
	Outcomes       string
	OutcomesNumber uint16

	// Sources has the numbers of the topics from which the namespace gets events, as in Config. From the first
	// transaction whose checkpoint has sources, a task derives stream time from these topics. With GoesOn,
	// stream time also advances while no events arrive.
	Sources []uint16
	GoesOn  bool
}

// A claim is the state of a key in claim mode. The statuses are the same as in the product. A claim that
// failed, was rejected or was erased has the status freed.
type claim struct {
	status     string // in_progress, submitted, completed, freed
	attempt    uint64
	first      int64
	at, maker  position // of the first event, and of the event that made the current attempt
	since      int64
	requesters []requester // who waits for the outcome; the first of them has the claim
	result     string      // in the form that content returns
	bypassed   bool        // an event of the key was forwarded without a claim
	ended      bool        // no outcome can arrive any more: the attempt failed, or there was none
	details    uint64      // fingerprint
	startID    string      // the start id to which the start of the attempt was granted; "" if it was not started
}

// requester is an event that waits for the outcome of a claim.
type requester struct {
	key         string // of the record
	at          position
	id, replyTo string // the sender's request id, and the return address of the HTTP request; "" if there is none
	until       int64  // broker time after which the HTTP request no longer waits; 0 if it waits without limit
}

// claimFold is the state of one partition in claim mode.
type claimFold struct {
	*Claims
	keys map[digest]*claim
	last int64 // stream time
	seen bool
	// sources are the sources that the namespace follows; nil while stream time is simply the highest event
	// time. From the input offset followsFrom on, stream time follows the sources.
	sources     *sourceTimes
	followsFrom int64
	want        []string // descriptions of the records that must be emitted

	leases   []leaseTimes // in the order of next
	bypassed []bypassedRange
	known    claimsProgress
	// showsStep has the times of those progress records in the partition that show a possible step of broker
	// time.
	showsStep map[int64]bool

	sent   map[position]*Record // outcomes that are not routed yet; nil if the outcomes were not read
	newest map[source]int64     // offset of the newest routed outcome of each partition
	counts map[string]int
}

// CheckClaims folds the repartition topic into the records that oncebus should have emitted, and compares these
// with the records that live readers saw: one dispatch for each attempt, one reply for each request, no outcome
// lost or applied twice, and results byte for byte. It returns the differences, and how much it has compared:
// the number of records by topic, and the number of events of the fold by name.
func CheckClaims(c *Claims, live map[string][]Record) (wrong []string, counts map[string]int) {
	counts = map[string]int{}
	sent := c.outcomes(live, counts)
	leases, err := c.leases(live[c.Changelog])
	if err != nil {
		wrong = append(wrong, err.Error())
	}
	repartition := allUnwrapped(live[c.Repartition])
	bypassed, begins, steps := c.bypasses(live[c.Changelog]), c.sourcesBegin(live[c.Changelog]), stepsOf(repartition)
	folds, homes := map[int32]*claimFold{}, map[digest]int32{}
	for _, r := range repartition {
		f := folds[r.Partition]
		if f == nil {
			f = &claimFold{Claims: c, keys: map[digest]*claim{}, sent: sent, newest: map[source]int64{}, counts: counts, followsFrom: begins[r.Partition], leases: leases[r.Partition], bypassed: bypassed[r.Partition], showsStep: steps[r.Partition]}
			folds[r.Partition] = f
		}
		if err := f.take(r); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", at(r), err))
		}
	}
	for _, r := range sent {
		wrong = append(wrong, fmt.Sprintf("%s: outcome lost: it never reached %s; record key %s", at(r), c.Repartition, brief(r.Key)))
	}
	var want, got []string
	rows := map[digest]string{}
	for partition, f := range folds {
		want, wrong = append(want, f.want...), append(wrong, f.unfollowed(partition)...)
		for d, k := range f.keys {
			if home, ok := homes[d]; ok {
				wrong = append(wrong, fmt.Sprintf("key %x is claimed in partitions %d and %d", d, min(home, partition), max(home, partition)))
			}
			homes[d], rows[d] = partition, k.row()
		}
	}
	counts["keys"] = len(rows)
	for _, topic := range []string{c.Output, c.Replies, c.Dead, c.Answers} {
		for i := range live[topic] {
			if r := &live[topic][i]; c.Route == "" || text(r, headerRoute) == c.Route {
				got = append(got, c.line(r))
				counts[topic]++
			}
		}
	}
	wrong = append(wrong, differ(want, got)...)
	wrong = append(wrong, c.compareRows(rows, live[c.Changelog])...)
	slices.Sort(wrong)
	return wrong, counts
}

// outcomes returns the outcomes of the route by their positions; nil if they were not read.
func (c *Claims) outcomes(live map[string][]Record, counts map[string]int) map[position]*Record {
	if c.Outcomes == "" {
		return nil
	}
	sent := map[position]*Record{}
	for i := range live[c.Outcomes] {
		r := &live[c.Outcomes][i]
		raw, err := base64.RawURLEncoding.DecodeString(tokenOf(r))
		if err == nil && len(raw) > 1 && raw[1] == c.NamespaceID { // version 1 | namespaceID 1 | …
			sent[position{c.OutcomesNumber, r.Partition, r.Offset}] = r
			counts[c.Outcomes]++
		}
	}
	return sent
}

// tokenOf returns the claim token of an outcome. An executor may write the name of the header in any letter
// case.
func tokenOf(r *Record) string {
	for _, h := range r.Headers {
		if strings.EqualFold(h.Key, "oncebus-claim-token") {
			return string(h.Value)
		}
	}
	return ""
}

// line describes a record that was read, in the same words in which the fold describes an expected record, so
// that the two can be compared.
func (c *Claims) line(r *Record) string {
	verdict, attempt := text(r, headerVerdict), text(r, "oncebus-attempt")
	switch r.Topic {
	case c.Output:
		return fmt.Sprintf("dispatch %s: %s, attempt %s, %s", r.Key, verdict, attempt, content(r.Value, r.Headers))
	case c.Answers:
		if text(r, "oncebus-outcome") == "" {
			return noticeOf(r)
		}
		n, _ := strconv.ParseUint(attempt, 10, 32) // 0 without a claim
		return answerLine(string(r.Key), text(r, "oncebus-outcome"), text(r, "oncebus-answer"), n, text(r, "oncebus-start-id"), text(r, "oncebus-started-by"), content(r.Value, r.Headers))
	case c.Replies:
		return fmt.Sprintf("reply to %s: %s, %s, attempt %s, %s", r.Key, verdict, text(r, "oncebus-claim-status"), attempt, content(r.Value, r.Headers))
	}
	return fmt.Sprintf("dead %s: %s, %s", r.Key, verdict, content(r.Value, r.Headers))
}

// content returns the part of a record that the application wrote: value and headers, byte for byte.
func content(value []byte, headers []Header) string {
	shown := func(b []byte) string {
		if b == nil {
			return "null"
		}
		return strconv.Quote(string(b))
	}
	s := shown(value)
	for _, h := range headers {
		if foreign(h) {
			s += fmt.Sprintf(" %s=%s", h.Key, shown(h.Value))
		}
	}
	return s
}

func (f *claimFold) emit(format string, args ...any) {
	f.want = append(f.want, fmt.Sprintf(format, args...))
}

func (f *claimFold) reply(to string, verdict, status string, attempt uint64, value string) {
	f.emit("reply to %s: %s, %s, attempt %d, %s", to, verdict, status, attempt, value)
}

func (f *claimFold) dead(r *Record, verdict string) {
	f.emit("dead %s: %s, %s", r.Key, verdict, content(r.Value, r.Headers))
}

// take judges the next record of the repartition topic.
func (f *claimFold) take(r *Record) error {
	f.beginSources(r.Offset)
	if isProgress(r) {
		// The routing stage writes progress records even without input, so the last one may lie behind
		// everything that the task has processed.
		if n := len(f.leases); n > 0 && r.Offset >= f.leases[n-1].next {
			return nil
		}
		return f.progress(r)
	}
	e, err := openEnvelope(r, f.RepartitionNumber)
	switch {
	case err != nil:
		return err
	case f.Route != "" && f.Route != string(e.route):
		return nil
	case e.seed:
		if e.streamTime && !f.seen {
			f.last, f.seen = e.time, true
		}
		return nil
	case e.outcome != nil:
		return errors.Join(f.arrived(r, e.from), f.outcome(r, &e))
	}
	f.counts["events"]++
	if e.ingress {
		f.counts["by http"]++
	}
	if b := f.bypassOf(r.Offset); b != nil {
		f.forwarded(r, &e, b)
		return nil
	}
	f.event(r, &e)
	return nil
}

// arrived removes a routed outcome from sent. oncebus must route each outcome once, unchanged and in order.
func (f *claimFold) arrived(r *Record, from position) error {
	if f.sent == nil {
		return nil
	}
	outcome, of := f.sent[from], source{from.topic, from.partition}
	last, later := f.newest[of]
	switch {
	case outcome == nil:
		return fmt.Errorf("is an outcome from %s/%d/%d, which is missing there or was routed before", f.Outcomes, from.partition, from.offset)
	case !same(outcome.Key, r.Key) || content(outcome.Value, outcome.Headers) != content(r.Value, r.Headers):
		return fmt.Errorf("differs from the outcome in %s", at(outcome))
	case later && from.offset < last:
		return fmt.Errorf("is the outcome of %s, and that of offset %d came before it", at(outcome), last)
	}
	f.newest[of] = from.offset
	delete(f.sent, from)
	return nil
}

func (f *claimFold) isRetained(k *claim) bool {
	return k != nil && (!f.seen || k.first >= f.last-2*f.Window-f.Grace)
}

// event judges an event: it is invalid, late or a duplicate, or it makes a new claim and is dispatched.
func (f *claimFold) event(r *Record, e *envelope) {
	key, time, from := string(r.Key), e.time, e.from
	switch {
	case time > r.Timestamp+f.Skew:
		f.dead(r, "invalid")
		f.reply(key, "invalid", "", 0, content(nil, nil))
		return
	case f.tooOld(e, f.last, f.seen, f.sources):
		f.late(r, e)
		return
	}
	defer f.moveTime(e, r.Timestamp)
	d, collided := f.keyOf(e)
	k, verdict, attempt := f.keys[d], "unique", uint64(1)
	if f.isRetained(k) {
		attempt = k.attempt + 1
		if k.status != "freed" {
			switch {
			case f.covers(k, time):
				f.duplicate(r, k, e)
				return
			case time < k.first:
				f.counts["late"]++
				f.dead(r, "late")
				f.reply(key, "late", k.shown(), k.attempt, content(nil, nil))
				return
			}
			verdict = "after_window"
			f.keepFormer(d, k)
		}
	}
	fresh := &claim{status: "in_progress", attempt: attempt, first: time, at: from, maker: from, since: f.dispatchedAt(r), details: e.fingerprint}
	fresh.requesters = []requester{{key: key, at: from, id: e.request, replyTo: e.replyTo}}
	f.keys[d] = fresh
	if collided {
		verdict = "collision"
		f.counts["collided"]++
	}
	f.dispatch(r, verdict, attempt)
}

// covers reports whether an event with this event time is a duplicate of a claim.
func (f *claimFold) covers(k *claim, time int64) bool {
	return time >= k.first-f.Window && time <= k.first+f.Window
}

// late judges an event that is too far behind stream time or behind its source. The event is a duplicate if the
// claim of its key is still stored. If the event comes after the window of that claim, which is possible if its
// source is ahead of other sources, it is another operation, and the reply to it says nothing about the claim.
func (f *claimFold) late(r *Record, e *envelope) {
	d, _ := f.keyOf(e)
	k := f.keys[d]
	status, attempt := "", uint64(0)
	if f.isRetained(k) && k.status != "freed" {
		switch {
		case f.covers(k, e.time):
			f.counts["late duplicates"]++
			f.duplicate(r, k, e)
			return
		case e.time < k.first:
			status, attempt = k.shown(), k.attempt
		default:
			f.counts["late after the window"]++
		}
	}
	f.counts["late"]++
	f.dead(r, "late")
	f.reply(string(r.Key), "late", status, attempt, content(nil, nil))
}

func (f *claimFold) dispatch(r *Record, verdict string, attempt uint64) {
	f.emit("dispatch %s: %s, attempt %d, %s", r.Key, verdict, attempt, content(r.Value, r.Headers))
}

// duplicate judges a duplicate within the window.
func (f *claimFold) duplicate(r *Record, k *claim, e *envelope) {
	key := string(r.Key)
	switch {
	case k.status == "completed":
		f.counts["replayed"]++
		f.reply(key, "replayed", "completed", k.attempt, k.result)
	case k.status == "in_progress" && k.startID == "" && f.leaseIsOver(k, r):
		f.announce(k)
		k.attempt, k.since, k.maker = k.attempt+1, f.dispatchedAt(r), e.from
		k.requesters = append(k.requesters, requester{key: key, at: e.from, id: e.request, replyTo: e.replyTo})
		f.counts["dispatched again"]++
		f.dispatch(r, "unique", k.attempt)
	case k.status == "submitted" && k.ended:
		f.counts["of a forwarded one"]++
		f.reply(key, "duplicate", "forwarded", k.attempt, content(nil, nil))
	case f.waitAt(k, r, e):
		f.counts["waited"]++
	default:
		f.counts["in progress"]++
		f.reply(key, "in_progress", k.status, k.attempt, content(nil, nil))
	}
}

// outcomeKinds has the kinds of outcomes by their number.
var outcomeKinds = [...]string{"submitted", "completed", "failed", "rejected", "forget", "start", "renew"}

// outcome applies an outcome that an executor has sent. The format is: kind 1 | length 1 | token | of a start
// or renewal: length 1 | start id.
func (f *claimFold) outcome(r *Record, e *envelope) error {
	b := e.outcome
	if len(b) < 2 || len(b) < 2+int(b[1]) || int(b[0]) >= len(outcomeKinds) {
		return fmt.Errorf("has an invalid outcome: %x", b)
	}
	kind := outcomeKinds[b[0]]
	token, err := readToken(string(b[2 : 2+int(b[1])]))
	if err != nil {
		return err
	}
	if token.home != r.Partition {
		return fmt.Errorf("is an outcome of a claim in partition %d, which another task reads", token.home)
	}
	k := f.claimOf(token.key, token.attempt)
	current := f.isRetained(k) && token.attempt == k.attempt && token.first == k.at
	if b[0] >= kindStart {
		f.question(r, kind, string(b[3+int(b[1]):]), k, current, e.replyTo != "")
		return nil
	}
	if !current || !f.apply(k, kind, content(r.Value, r.Headers)) {
		f.counts["refused"]++
		f.dead(r, "invalid")
	}
	return nil
}

// apply applies an outcome of this kind to its claim. It returns false if the status or the result of the claim
// does not allow the outcome. An outcome that repeats an earlier outcome has no effect.
func (f *claimFold) apply(k *claim, kind, result string) bool {
	status := kind
	if kind != "submitted" && kind != "completed" {
		status = "freed"
	}
	if k.status == status {
		return kind != "completed" || result == k.result
	}
	running := k.status == "in_progress" || k.status == "submitted"
	switch {
	case kind == "submitted" && k.status != "in_progress", kind != "forget" && !running:
		return false
	case status == "freed" && kind != "forget" && k.bypassed:
		if !k.ended {
			f.replyToAll(k, "forwarded", result)
			k.ended = true
		}
		return true
	case status == "completed":
		f.replyToAll(k, kind, result)
		k.result = result
	case status == "freed":
		f.replyToAll(k, kind, result)
		k.result = ""
	}
	if kind == "forget" && running && !k.ended {
		f.announce(k)
	}
	k.status = status
	return true
}

// replyToAll replies to all requesters.
func (f *claimFold) replyToAll(k *claim, status, value string) {
	if status == "forget" {
		status = "erased"
	}
	for _, a := range k.requesters {
		verdict := "replayed"
		if a.at == k.maker {
			verdict = "unique"
		}
		f.reply(a.key, verdict, status, k.attempt, value)
	}
	k.requesters = nil
}

// differ lists the lines that are only in want or only in got.
func differ(want, got []string) (wrong []string) {
	slices.Sort(want)
	slices.Sort(got)
	for len(want) > 0 || len(got) > 0 {
		switch c := order(want, got); {
		case c == 0:
			want, got = want[1:], got[1:]
		case c < 0:
			wrong, want = append(wrong, "missing: "+want[0]), want[1:]
		default:
			wrong, got = append(wrong, "extra: "+got[0]), got[1:]
		}
	}
	return wrong
}

// order compares the first elements of two lists. An empty list comes last.
func order(a, b []string) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return cmp.Compare(a[0], b[0])
}

// text returns the value of a header; "" if the record does not have it.
func text(r *Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
