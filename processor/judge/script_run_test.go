package judge_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// scriptRun is a scenario in progress.
type scriptRun struct {
	*world
	prepartitioned bool
	base           int64 // ms
	routesText     string
	shapes         map[string]shape
	remembered     map[string]*kgo.Record
	erasures       map[string]scriptErasure // by the position that the first step named
}

// shape is a record with gaps that an event fills.
type shape struct {
	topic  string
	fields []field
}

func runScenario(t *testing.T, steps []step, prepartitioned bool) {
	t.Helper()
	r := &scriptRun{world: newWorld(t), prepartitioned: prepartitioned, shapes: map[string]shape{}, remembered: map[string]*kgo.Record{}, erasures: map[string]scriptErasure{}}
	for _, st := range steps {
		r.emitted = nil
		if err := r.do(&st); err != nil {
			t.Fatalf("%s: %v", st.at, err)
		}
		if checks[st.command] && (st.nothing || len(st.expects) > 0) {
			t.Fatalf("%s: a check emits nothing", st.at)
		}
		r.expect(&st)
	}
	if t.Failed() {
		t.Logf("log:\n%s", r.logs.String())
	}
}

// emitting are the steps that must state what they emit, even if it is nothing.
var emitting = map[string]bool{"event": true, "outcome": true, "query": true, "erase": true, "resume": true, "abort": true, "restore": true}

// do runs a step.
func (r *scriptRun) do(st *step) error {
	if emitting[st.command] && !r.heldBack(st) && !st.nothing && len(st.expects) == 0 {
		return errors.New("the step says neither what it emits nor that it emits nothing")
	}
	switch st.command {
	case "base", "both", "partitions", "sets", "topic", "routes", "also", "change", "shape", "at":
		return r.set(st)
	case "event":
		return r.event(st)
	case "outcome":
		return r.outcome(st)
	case "query":
		return r.query(st)
	case "counts", "outcomes", "expired", "unanswered", "ended", "hits", "keys", "known", "duplicates", "log":
		return r.check(st)
	case "refuse":
		return r.setRefusing(st)
	case "progress":
		return r.progress(st)
	case "erase":
		return r.erase(st)
	case "seed":
		return r.seed(st)
	case "streamtime":
		return r.streamTime(st)
	case "seeds":
		return r.checkSeeds(st)
	}
	if len(st.fields) > 0 {
		return fmt.Errorf("%s takes no fields", st.command)
	}
	switch strings.TrimSpace(st.command + " " + strings.Join(st.words, " ")) {
	case "hold":
		r.held = true
	case "resume":
		r.held = false
		r.run()
	case "abort":
		if !r.judge() {
			return errors.New("no transaction to abort")
		}
		r.abort()
	case "restart":
		r.restart(false)
	case "rebuild":
		r.restart(true)
	case "lose store":
		r.lost = true
		for _, t := range r.sorted() {
			r.lose(t)
		}
		r.run()
	case "restore store":
		r.lost = false
		for _, t := range r.sorted() {
			r.restore(t)
		}
		r.run()
	default:
		return fmt.Errorf("unknown step %s %s", st.command, strings.Join(st.words, " "))
	}
	return nil
}

// query asks for the outcome of an event, as the ingress does.
func (r *scriptRun) query(st *step) error {
	if len(st.words) != 1 {
		return errors.New("want query SHAPE-OR-TOPIC/PARTITION FIELDS")
	}
	rec, err := r.recordOf(st.words[0], st.fields, 0)
	if err != nil {
		return err
	}
	r.startOnce()
	headers := wire.Headers(rec.Headers)
	d := r.routes.NewDeriver(nil).Derive(&rules.Input{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Headers: &headers, Timestamp: rec.Timestamp.UnixMilli()})
	if d.Finding != rules.Keyed {
		return fmt.Errorf("the event has no key: %s", d.Reason)
	}
	env := wire.Envelope{
		Route: []byte(d.Route.WireName()), Digest: d.Digest, Key: d.Key, EventTime: d.Time, Timestamp: r.now, Details: wire.DetailsOf(&d), IsQuery: true, FromIngress: true,
		ReplyTo: r.app.Routes[d.Route.Index].ReplyAddress(rec),
	}
	out := &kgo.Record{Topic: r.app.Topology.Repartition, Partition: r.app.Hasher.Partition(&d.Routing), Key: env.Append(nil), Timestamp: time.UnixMilli(r.now)}
	r.append(out)
	r.task(app.TaskID{Topic: out.Topic, Partition: out.Partition})
	if !r.held {
		r.run()
	}
	return nil
}

// progress writes a progress record.
func (r *scriptRun) progress(st *step) error {
	at := func(text string) (int64, error) {
		d, err := time.ParseDuration(text)
		return r.base + d.Milliseconds(), err
	}
	if len(st.words) != 1 {
		return errors.New("want progress DURATION FIELDS")
	}
	readTo, failed := at(st.words[0])
	partitions, unread, executor, heartbeats := int(r.partitions), -1, int64(0), true
	for _, f := range st.fields {
		var err error
		switch f.name {
		case "executor":
			executor, err = at(f.value)
		case "unread":
			unread, err = strconv.Atoi(f.value)
		case "heartbeats":
			heartbeats, err = strconv.ParseBool(f.value)
		case "partitions":
			partitions, err = strconv.Atoi(f.value)
		default:
			err = fmt.Errorf("unknown field %s", f.name)
		}
		failed = cmp.Or(failed, err)
	}
	if failed != nil {
		return failed
	}
	if heartbeats {
		r.writeHeartbeats()
	}
	r.writeProgress(readTo, executor, partitions, unread)
	return nil
}

// heldBack reports whether a step produces while the tasks judge nothing.
func (r *scriptRun) heldBack(st *step) bool {
	return r.held && (st.command == "event" || st.command == "outcome" || st.command == "query")
}

// set runs a step that prepares others.
func (r *scriptRun) set(st *step) error {
	switch st.command {
	case "base":
		base, err := time.Parse(time.RFC3339, st.rest)
		r.base, r.now = base.UnixMilli(), base.UnixMilli()
		return err
	case "both":
		if st.rest != "ways" {
			return fmt.Errorf("unknown step both %s", st.rest)
		}
	case "sets":
		r.hasSets = true
	case "partitions":
		n, err := strconv.Atoi(st.rest)
		r.partitions = int32(n)
		return err
	case "topic":
		return r.setLimits(st)
	case "routes":
		r.routesText = st.text
		if len(st.words) == 1 {
			file, err := os.ReadFile(filepath.Join("..", "..", st.words[0]))
			if err != nil {
				return err
			}
			r.routesText = string(file)
		}
		return r.setRoutes(st.at)
	case "also":
		r.routesText += st.text
		return r.setRoutes(st.at)
	case "change":
		if len(st.fields) != 2 || st.fields[0].name != "from" || st.fields[1].name != "to" || !strings.Contains(r.routesText, st.fields[0].value) {
			return errors.New("want change from=TEXT to=TEXT, and TEXT in the routes")
		}
		r.routesText = strings.ReplaceAll(r.routesText, st.fields[0].value, st.fields[1].value)
		return r.setRoutes(st.at)
	case "shape":
		if len(st.words) != 2 {
			return errors.New("want shape NAME TOPIC FIELDS")
		}
		r.shapes[st.words[0]] = shape{st.words[1], st.fields}
	case "at":
		d, err := time.ParseDuration(st.rest)
		if err != nil {
			return err
		}
		r.now = r.base + d.Milliseconds()
		if r.app != nil {
			r.app.Clock = frozen(r.now)
		}
	}
	return nil
}

func (r *scriptRun) setRoutes(at string) (err error) {
	text := r.routesText
	if r.prepartitioned {
		text = strings.ReplaceAll(text, "    key:", "    prepartitioned: true\n    key:")
	}
	r.nextRoutes, err = rules.ParseRoutes(at, []byte(text))
	return err
}

// setRefusing sets which records the broker refuses for good from now on.
func (r *scriptRun) setRefusing(st *step) error {
	if len(st.words) == 0 || len(st.words) > 2 {
		return errors.New("want refuse TOPIC, refuse TOPIC TEXT, or refuse nothing")
	}
	r.refuse = refusing{topic: st.words[0]}
	if len(st.words) == 2 {
		r.refuse.text = st.words[1]
	}
	return nil
}

// setLimits sets which records a topic accepts, from the next start on.
func (r *scriptRun) setLimits(st *step) error {
	limits := app.TopicLimits{MaxBytes: 1 << 20, BytesSetting: "max.message.bytes", BeforeMaxMS: app.Forever, AfterMaxMS: app.Forever}
	if len(st.words) != 1 {
		return errors.New("want topic NAME FIELDS")
	}
	for _, f := range st.fields {
		var err error
		var d time.Duration
		switch f.name {
		case "max.message.bytes":
			var n int
			n, err = strconv.Atoi(f.value)
			limits.MaxBytes = int32(n)
		case "before.max":
			d, err = time.ParseDuration(f.value)
			limits.BeforeMaxMS = d.Milliseconds()
		case "after.max":
			d, err = time.ParseDuration(f.value)
			limits.AfterMaxMS = d.Milliseconds()
		case "compacted":
			limits.Compacted = f.value == "true"
		default:
			err = fmt.Errorf("unknown setting %s", f.name)
		}
		if err != nil {
			return err
		}
	}
	r.limits[st.words[0]] = limits
	return nil
}

// event produces the records of an event step.
func (r *scriptRun) event(st *step) error {
	if len(st.words) != 1 {
		return errors.New("want event SHAPE-OR-TOPIC/PARTITION FIELDS")
	}
	for n := range st.repeat {
		rec, err := r.recordOf(st.words[0], st.fields, n)
		if err != nil {
			return err
		}
		r.startOnce()
		r.produce(rec)
	}
	return nil
}

func (r *scriptRun) startOnce() {
	if r.app == nil {
		r.start()
	}
}

// recordOf makes the record of a shape, or a record of a topic.
func (r *scriptRun) recordOf(target string, fields []field, n int) (*kgo.Record, error) {
	name, partition, ok := strings.Cut(target, "/")
	number, err := strconv.Atoi(partition)
	if !ok || err != nil {
		return nil, fmt.Errorf("%s has no partition", target)
	}
	rec := &kgo.Record{Topic: name, Partition: int32(number), Timestamp: time.UnixMilli(r.base)}
	if s, ok := r.shapes[name]; ok {
		rec.Topic = s.topic
		fields = slices.Concat(s.fields, fields)
	}
	gaps := values{"n": strconv.Itoa(n)}
	used := map[string]bool{"n": true}
	var parts []field
	for _, f := range fields {
		if f.approx {
			return nil, fmt.Errorf("field %s of an event has ~", f.name)
		}
		switch {
		case f.name == "key" || f.name == "value" || f.name == "time" || f.name == "ask" || f.name == "as" || strings.HasPrefix(f.name, "header."):
			parts = append(parts, f)
		default:
			if gaps[f.name], err = gaps.fill(f.value, r.base, used); err != nil {
				return nil, fmt.Errorf("field %s: %w", f.name, err)
			}
		}
	}
	for _, f := range parts {
		value, err := gaps.fill(f.value, r.base, used)
		if err == nil {
			err = r.setPart(rec, f, value)
		}
		if err != nil {
			return nil, fmt.Errorf("field %s: %w", f.name, err)
		}
	}
	for name := range gaps {
		if !used[name] {
			return nil, fmt.Errorf("unknown field %s: it fills no gap", name)
		}
	}
	return rec, nil
}

func (r *scriptRun) setPart(rec *kgo.Record, f field, value string) error {
	b := []byte(value)
	if f.null {
		b = nil
	}
	switch f.name {
	case "key":
		rec.Key = b
	case "value":
		rec.Value = b
	case "time":
		d, err := time.ParseDuration(value)
		rec.Timestamp = time.UnixMilli(r.base + d.Milliseconds())
		return err
	case "as":
		r.remembered[value] = rec
	case "ask":
		n, err := strconv.ParseUint(value, 10, 64)
		address := dedup.Address{Ingress: 1, Request: n}
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: wire.HeaderReplyTo, Value: address.AppendText(nil)})
		return err
	default:
		name, times, many := strings.Cut(strings.TrimPrefix(f.name, "header."), "*")
		n := 1
		if many {
			var err error
			if n, err = strconv.Atoi(times); err != nil {
				return err
			}
		}
		if unquoted, err := strconv.Unquote(`"` + name + `"`); err == nil {
			name = unquoted
		}
		for range n {
			rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: name, Value: b})
		}
	}
	return nil
}

// outcome produces an outcome, by default with the token of a remembered record.
func (r *scriptRun) outcome(st *step) error {
	if len(st.words) != 2 {
		return errors.New("want outcome TOPIC/PARTITION KIND FIELDS")
	}
	var of *kgo.Record
	var plain, token []field
	for _, f := range st.fields {
		switch {
		case f.name == "of":
			if of = r.remembered[f.value]; of == nil {
				return fmt.Errorf("no record is remembered as %s", f.value)
			}
		case strings.HasPrefix(f.name, "token."):
			token = append(token, f)
		default:
			plain = append(plain, f)
		}
	}
	rec, err := r.recordOf(st.words[0], plain, 0)
	if err != nil {
		return err
	}
	if of != nil {
		if rec.Key == nil {
			rec.Key = of.Key
		}
		name, text := wire.HeaderReplyTo, []byte(headerOf(of, wire.HeaderReplyTo)) // as executors do for an event without a claim
		if unchanged := headerOf(of, wire.HeaderClaimToken); unchanged != "" {
			name = wire.HeaderClaimToken
			if text, err = r.changed([]byte(unchanged), token); err != nil {
				return err
			}
		}
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: name, Value: text})
	}
	kind, err := values{}.fill(st.words[1], r.base, map[string]bool{})
	if err != nil {
		return err
	}
	if kind != "none" {
		rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: wire.HeaderOutcome, Value: []byte(kind)})
	}
	r.startOnce()
	r.produce(rec)
	return nil
}

// changed returns a token in which some parts are replaced.
func (r *scriptRun) changed(text []byte, fields []field) ([]byte, error) {
	token, err := dedup.ParseToken(text)
	if err != nil || len(fields) == 0 {
		return text, err
	}
	tail := ""
	for _, f := range fields {
		switch f.name {
		case "token.tail":
			tail = f.value
		case "token.namespace":
			if id, err := strconv.Atoi(f.value); err == nil {
				token.NamespaceID = uint8(id)
				continue
			}
			route := r.app.ByName[f.value]
			if route == nil {
				return nil, fmt.Errorf("no route %s", f.value)
			}
			token.NamespaceID = route.NamespaceID
		case "token.app":
			token.App++ // of another app
			if f.value == "none" {
				token.App = 0
			}
		case "token.attempt":
			n, err := strconv.Atoi(f.value)
			if err != nil {
				return nil, err
			}
			token.Attempt = uint32(n)
			if n == 0 {
				token.At = dedup.Position{} // as the command forget of older builds made it
			}
		case "token.partition":
			n, err := strconv.Atoi(f.value)
			if err != nil {
				return nil, err
			}
			token.Partition = int32(n)
		case "token.digest":
			token.Digest[0]++
		default:
			return nil, fmt.Errorf("unknown field %s", f.name)
		}
	}
	return append(token.Append(nil), tail...), nil
}

// check compares counts and logs.
func (r *scriptRun) check(st *step) error {
	if st.command == "log" {
		if !strings.Contains(r.logs.String(), st.rest) {
			r.t.Errorf("%s: the log has no line with %q:\n%s", st.at, st.rest, r.logs.String())
		}
		return nil
	}
	got := map[string]string{}
	switch st.command {
	case "counts", "outcomes", "expired", "unanswered", "ended":
		if len(st.words) == 0 || r.app.ByName[st.words[0]] == nil {
			return fmt.Errorf("no route %v", st.words)
		}
		got = r.series(st.command, st.words[0])
		if st.command == "expired" && len(st.words) == 2 {
			st.fields = []field{{name: "leases", value: st.words[1]}}
		}
	case "hits":
		if len(st.words) != 1 || r.app.ByName[st.words[0]] == nil {
			return fmt.Errorf("no route %v", st.words)
		}
		for _, f := range st.fields {
			got[f.name] = r.hits(r.app.ByName[st.words[0]], f.name)
		}
	case "keys":
		if len(st.words) != 1 || !slices.Contains(r.app.Namespaces, st.words[0]) {
			return fmt.Errorf("no namespace %v", st.words)
		}
		got = r.keys(st.words[0])
	case "known":
		if len(st.words) != 1 || !slices.Contains(r.app.Namespaces, st.words[0]) {
			return fmt.Errorf("no namespace %v", st.words)
		}
		got = r.known(st.words[0])
	case "duplicates":
		if len(st.words) != 1 || r.app.ByName[st.words[0]] == nil {
			return fmt.Errorf("no route %v", st.words)
		}
		got = r.duplicates(st.words[0])
	}
	if len(st.fields) == 0 {
		return errors.New("the check expects nothing")
	}
	for _, f := range st.fields {
		value, ok := got[f.name]
		if !ok {
			return fmt.Errorf("unknown count %s, there are %v", f.name, slices.Sorted(maps.Keys(got)))
		}
		if value != f.value {
			r.t.Errorf("%s: %s is %s, want %s", st.at, f.name, value, f.value)
		}
	}
	return nil
}

// series returns the counters of a route.
func (r *scriptRun) series(of, route string) map[string]string {
	families, err := prometheus.Gatherer(r.registry).Gather()
	must(r.t, err)
	name := map[string]string{"counts": "oncebus_events_total", "outcomes": "oncebus_outcomes_total", "expired": "oncebus_lease_expirations_total", "unanswered": "oncebus_unanswered_requests_total", "ended": "oncebus_keys_ended_total"}[of]
	got := map[string]string{}
	if of == "ended" {
		got = map[string]string{"window": "0", "retention": "0"} // a series begins with its first key
	}
	for _, family := range families {
		alarms := of == "counts" && family.GetName() == "oncebus_collisions_total"
		if family.GetName() != name && !alarms {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			if labels["route"] != route && labels["namespace"] != route {
				continue
			}
			series := map[string]string{"counts": labels["verdict"], "outcomes": labels["kind"] + "/" + labels["result"], "expired": "leases", "unanswered": labels["cause"], "ended": labels["ended"]}[of]
			if alarms {
				series = "alarming-collisions"
			}
			got[series] = strconv.Itoa(int(m.GetCounter().GetValue()))
		}
	}
	return got
}

// hits returns the number of duplicates in the stored row of an id, or "none" without a row.
func (r *scriptRun) hits(route *app.Route, id string) string {
	derived, err := r.routes.NewDeriver(nil).OfID(route.Route, id)
	must(r.t, err)
	for _, t := range r.sorted() {
		row, found, err := t.store.Get(derived[0].Digest)
		must(r.t, err)
		if found {
			claim, err := dedup.DecodeClaim(row.Result)
			must(r.t, err)
			return strconv.FormatUint(claim.Hits, 10)
		}
	}
	return "none"
}

// keys sums the key counts of all tasks in a namespace.
func (r *scriptRun) keys(namespace string) map[string]string {
	sums := map[string]uint64{"waiting": 0}
	for _, t := range r.sorted() {
		for _, k := range t.Counts.List(r.app, &t.Committed) {
			if k.Namespace == namespace {
				sums[k.Status] += k.Total
				sums["waiting"] += k.Waiting
			}
		}
	}
	got := map[string]string{}
	for name, n := range sums {
		got[name] = strconv.FormatUint(n, 10)
	}
	return got
}

// duplicates sums the duplicates of a route in all tasks, under the names that the check duplicates of a script uses.
func (r *scriptRun) duplicates(route string) map[string]string {
	var tasks [][]app.RouteDuplicates
	for _, t := range r.sorted() {
		tasks = append(tasks, t.Counts.Duplicates(r.app))
	}
	got := map[string]string{"days": "0", "senders": "0"}
	for _, one := range app.SumDuplicates(tasks...) {
		if one.Route != route {
			continue
		}
		got["days"], got["senders"] = strconv.Itoa(len(one.Days)), strconv.Itoa(len(one.Senders.Counters))
		for _, day := range one.Days {
			got[day.Day] = strconv.FormatUint(day.Duplicates, 10)
		}
		for i, n := range one.Delays {
			bound := "over"
			if i < len(app.DelayBounds) {
				bound = strconv.FormatFloat(app.DelayBounds[i], 'f', -1, 64)
			}
			got["within."+bound] = strconv.FormatUint(n, 10)
		}
		for _, c := range one.Senders.Counters {
			got["from."+c.Name] = strconv.FormatUint(c.Count, 10)
		}
	}
	return got
}

// expect compares what a step emitted with its expectations.
func (r *scriptRun) expect(st *step) {
	r.t.Helper()
	left := r.emitted
	for _, e := range st.expects {
		for range e.repeat {
			if len(left) == 0 {
				r.t.Errorf("%s: got no record, want one to %s", e.at, e.topic)
				return
			}
			got := left[0]
			left = left[1:]
			if got.Topic != e.topic {
				r.t.Errorf("%s: got a record to %s, want one to %s: %s", e.at, got.Topic, e.topic, describe(got))
				continue
			}
			for _, mistake := range r.compare(got, &e) {
				r.t.Errorf("%s: %s\nthe record: %s", e.at, mistake, describe(got))
			}
		}
	}
	for _, got := range left {
		r.t.Errorf("%s: got a record more than expected: %s", st.at, describe(got))
	}
}

func describe(r *kgo.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s key=%.80q value=%.200q time=%d", r.Topic, r.Key, r.Value, r.Timestamp.UnixMilli())
	for n, h := range r.Headers {
		if n == 20 {
			fmt.Fprintf(&b, " and %d headers", len(r.Headers)-n)
			break
		}
		fmt.Fprintf(&b, " %s=%.200q", h.Key, h.Value)
	}
	return b.String()
}

// compare returns the differences between a record and its expectation.
func (r *scriptRun) compare(got *kgo.Record, e *expectation) (mistakes []string) {
	say := func(format string, args ...any) { mistakes = append(mistakes, fmt.Sprintf(format, args...)) }
	for _, word := range e.words {
		switch word {
		case "same":
			mistakes = append(mistakes, compareUntouched(got, r.produced)...)
		case "unmarked":
			for _, h := range got.Headers {
				if wire.IsReserved(h.Key) && h.Key != wire.HeaderRoute && h.Key != wire.HeaderKey && h.Key != wire.HeaderVerdict {
					say("got header %s, want none of oncebus but route, key and verdict", h.Key)
				}
			}
		default:
			say("unknown word %s", word)
		}
	}
	own := map[string]bool{}
	for _, h := range got.Headers {
		if own[h.Key] || wire.IsReserved(h.Key) && h.Key != strings.ToLower(h.Key) || h.Key == wire.HeaderKey && len(h.Value) != 64 {
			say("got header %s=%q, want each oncebus header once, and a key of 64 digits", h.Key, h.Value)
		}
		own[h.Key] = wire.IsReserved(h.Key)
	}
	for _, f := range e.fields {
		if f.name == "as" {
			r.remembered[f.value] = got
			continue
		}
		if mistake := r.compareField(got, f); mistake != "" {
			say("%s: %s", f.name, mistake)
		}
	}
	return mistakes
}

// oncebusHeaders are the headers that an expectation may name without their prefix.
var oncebusHeaders = []string{
	wire.HeaderRoute, wire.HeaderVerdict, wire.HeaderReason, wire.HeaderFirst, wire.HeaderFirstTime, wire.HeaderSource, wire.HeaderTimestamp,
	wire.HeaderValueHash, wire.HeaderValueSize, wire.HeaderClaimToken, wire.HeaderAttempt, wire.HeaderOutcome,
	wire.HeaderClaimStatus, wire.HeaderRequestID, wire.HeaderFirstRequest, wire.HeaderReplyTo,
	wire.HeaderStartID, wire.HeaderAnswer, wire.HeaderStartedBy, wire.HeaderRedriveAttempt,
	"oncebus-has-outcome", "oncebus-forwarded", "oncebus-outcome-follows", "oncebus-omitted",
}

// partOf returns a part of a record by the name that an expectation uses.
func partOf(rec *kgo.Record, name string, base int64) (value string, absent, known bool) {
	text := func(b []byte) (string, bool, bool) { return string(b), b == nil, true }
	switch {
	case name == "key":
		return text(rec.Key)
	case name == "value":
		return text(rec.Value)
	case name == "value.bytes":
		return strconv.Itoa(len(rec.Value)), false, true
	case name == "time":
		return (time.Duration(rec.Timestamp.UnixMilli()-base) * time.Millisecond).String(), false, true
	case name == "place":
		return strconv.Itoa(int(rec.Partition)), false, true
	case name == "dedup-key":
		name = wire.HeaderKey
	case strings.HasPrefix(name, "header."):
		name = strings.TrimPrefix(name, "header.")
	case slices.Contains(oncebusHeaders, "oncebus-"+name):
		name = "oncebus-" + name
	default:
		return "", false, false
	}
	at := slices.IndexFunc(rec.Headers, func(h kgo.RecordHeader) bool { return h.Key == name })
	if at < 0 {
		return "", true, true
	}
	return string(rec.Headers[at].Value), false, true
}

func (r *scriptRun) compareField(got *kgo.Record, f field) string {
	if f.name == "same" {
		want := r.remembered[f.value]
		if want == nil {
			return "no record is remembered as " + f.value
		}
		return strings.Join(compareUntouched(got, want), "; ")
	}
	have, absent, known := partOf(got, f.name, r.base)
	if !known {
		return "no field of an expectation has this name"
	}
	want, err := values{}.fill(f.value, r.base, map[string]bool{})
	if err != nil {
		return err.Error()
	}
	switch name, ok := strings.CutPrefix(want, "@"); {
	case ok:
		other := r.remembered[name]
		if other == nil {
			return "no record is remembered as " + name
		}
		want, _, _ = partOf(other, f.name, r.base)
	case f.approx:
		if !strings.Contains(have, want) {
			return fmt.Sprintf("got %q, want %q in it", have, want)
		}
		return ""
	case want == "absent" || f.null:
		if !absent {
			return fmt.Sprintf("got %.200q, want none", have)
		}
		return ""
	case f.name == "time":
		d, err := time.ParseDuration(want)
		if err != nil {
			return err.Error()
		}
		want = d.String()
	}
	if absent || have != want {
		return fmt.Sprintf("got %.200q (absent: %v), want %.200q", have, absent, want)
	}
	return ""
}

// compareUntouched checks that the parts which a producer wrote are unchanged.
func compareUntouched(got, want *kgo.Record) (mistakes []string) {
	equal := func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }
	if !equal(got.Key, want.Key) || !equal(got.Value, want.Value) || !got.Timestamp.Equal(want.Timestamp) {
		mistakes = append(mistakes, fmt.Sprintf("not the same record: want %s", describe(want)))
	}
	foreign := func(r *kgo.Record) []kgo.RecordHeader {
		return slices.DeleteFunc(slices.Clone(r.Headers), func(h kgo.RecordHeader) bool { return wire.IsReserved(h.Key) })
	}
	if !slices.EqualFunc(foreign(got), foreign(want), func(a, b kgo.RecordHeader) bool { return a.Key == b.Key && equal(a.Value, b.Value) }) {
		mistakes = append(mistakes, fmt.Sprintf("foreign headers %.300q, want %.300q", foreign(got), foreign(want)))
	}
	return mistakes
}

func headerOf(r *kgo.Record, name string) string {
	value, _, _ := partOf(r, "header."+name, 0)
	return value
}
