package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/kafka"
)

// inspection is what 'oncebus get' and 'oncebus forget' have in common: an
// event, the key that its route derives, and a look at the app's topics.
type inspection struct {
	derived   rules.Derived
	inspector *processor.Inspector
}

// inspectOptions are their flags.
type inspectOptions struct {
	eventFlags
	routesFile string
	route      string
	json       bool
}

const inspectAbout = "The event is read from FILE, else from standard input: as much of it as its key is made of.\n" +
	"Settings are those of 'oncebus run', from the environment: brokers, app, credentials. It reads\n" +
	"the app's topics alone, so it runs anywhere, whether the service runs or not.\n"

// inspect parses the command line, derives the event's key and connects. fits
// says what is wrong with a route, if there is something. When the command is
// over already, done is true and code is the exit code.
func inspect(
	ctx context.Context, name, about string, args []string, p process, fits func(*rules.Routes, *rules.Route) error,
) (in inspection, o inspectOptions, code int, done bool) {
	fs := newFlags(name, "--route NAME [OPTIONS] [FILE|-]", about)
	fs.StringVar(&o.routesFile, "routes", "", "the routes `file`; default: $ONCEBUS_ROUTES, or routes.yaml")
	fs.StringVar(&o.route, "route", "", "the `name` of the route")
	o.register(fs)
	fs.BoolVar(&o.json, "json", false, "print JSON")
	rest, code, done := parseFlags(fs, args, 1, p)
	if done {
		return in, o, code, true
	}
	if o.route == "" {
		return in, o, usageError(fs, p, "--route is missing: it says how the key is derived"), true
	}
	fail := func(code int, err error) (inspection, inspectOptions, int, bool) {
		printf(p.stderr, "oncebus %s: %v\n", name, err)
		return in, o, code, true
	}
	s, routes, err := load(p.environ, o.routesFile)
	if err != nil {
		return fail(exitWrong, err)
	}
	route, err := findRoute(routes, s.Routes, o.route)
	if err == nil {
		err = fits(routes, route)
	}
	if err != nil {
		return fail(exitWrong, err)
	}
	payload, err := readEvent(rest, p.stdin)
	if err != nil {
		return fail(exitWrong, err)
	}
	if in.derived, err = o.derive(routes, route, s.Processor.KeySecret.Bytes(), payload); err != nil {
		return fail(exitWrong, err)
	}
	log := newLogger(p.stderr, slog.LevelError, s.LogFormat)
	if in.inspector, err = processor.NewInspector(ctx, s.Processor, routes, log); err != nil {
		return fail(codeOf(err), err)
	}
	return in, o, 0, false
}

// codeOf is the exit code for an error of the inspector: settings or routes may
// turn out to be wrong only when the app's manifest is read.
func codeOf(err error) int {
	if kafka.IsOperatorError(err) {
		return exitWrong
	}
	return exitFailed
}

// readEvent reads the whole payload.
func readEvent(rest []string, stdin io.Reader) ([]byte, error) {
	in, err := openPayload(rest, stdin)
	if err != nil {
		return nil, err
	}
	defer in.Close() //nolint:errcheck // it was only read
	payload, err := io.ReadAll(in)
	if err != nil {
		return nil, fmt.Errorf("read the event: %w", err)
	}
	return payload, nil
}

// findRoute returns the route that a flag names.
func findRoute(routes *rules.Routes, file, name string) (*rules.Route, error) {
	if route := routes.Route(name); route != nil {
		return route, nil
	}
	return nil, fmt.Errorf("%s has no route %q; it has %s", file, name, routeNames(routes, anyRoute))
}

func anyRoute(*rules.Route) bool { return true }

func inClaimMode(r *rules.Route) bool { return r.Mode == rules.ClaimMode }

// routeNames lists the routes that are wanted, for a message.
func routeNames(routes *rules.Routes, wanted func(*rules.Route) bool) string {
	var names []string
	for _, r := range routes.Routes {
		if wanted(r) {
			names = append(names, r.Name)
		}
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

func (o *inspectOptions) derive(routes *rules.Routes, route *rules.Route, secret, payload []byte) (rules.Derived, error) {
	derived := routes.NewDeriver(secret).Derive(o.input(route.Topics[0], payload))
	switch {
	case derived.Finding != rules.Keyed && len(payload) == 0:
		return derived, fmt.Errorf("%w: the event is empty: name its FILE, or write it to standard input; %s", errNoKey, derived.Reason)
	case derived.Finding != rules.Keyed:
		return derived, fmt.Errorf("%w: %s", errNoKey, derived.Reason)
	case derived.Route != route:
		return derived, fmt.Errorf("route %s takes this event before %s", derived.Route.Name, o.route)
	}
	return derived, nil
}

func runGet(ctx context.Context, args []string, p process) int {
	in, o, code, done := inspect(ctx, "get", "Shows what is kept of an event's key: when and where it was first seen, its status, how often it\n"+
		"was claimed, the size of its result and until when it counts, or that nothing is kept. "+inspectAbout, args, p,
		func(*rules.Routes, *rules.Route) error { return nil })
	if done {
		return code
	}
	entry, found, err := in.inspector.Lookup(ctx, &in.derived)
	err = errors.Join(err, in.inspector.Close())
	if err != nil {
		printf(p.stderr, "oncebus get: %v\n", err)
		return codeOf(err)
	}
	shown := showLookup(&in.derived)
	if found {
		shown.Found, shown.shownEntry = true, showEntry(&in.derived, &entry)
		if entry.Row.Digest != in.derived.Digest {
			shown.KeptUnder = entry.Row.Digest.String()
		}
	}
	if o.json {
		encoder := json.NewEncoder(p.stdout)
		encoder.SetEscapeHTML(false)
		err = encoder.Encode(shown)
	} else {
		err = shown.write(p.stdout)
	}
	if err != nil {
		printf(p.stderr, "oncebus get: %v\n", err)
		return exitFailed
	}
	return exitStopped
}

// shownLookup is the answer about a key, as printed; without shownEntry where
// nothing is kept of it. The field names of both are an interface.
type shownLookup struct {
	Found     bool   `json:"found"`
	Key       string `json:"key"`
	Digest    string `json:"digest"`
	Route     string `json:"route"`
	Namespace string `json:"namespace"`
	*shownEntry
}

func showLookup(d *rules.Derived) shownLookup {
	return shownLookup{Key: hex.EncodeToString(d.Key[:]), Digest: d.Digest.String(), Route: d.Route.Name, Namespace: d.Route.Namespace}
}

// shownEntry is a key's row.
type shownEntry struct {
	Task      string `json:"task"`
	KeptUnder string `json:"kept_under,omitempty"` // digest of the neighbouring key whose row it is; absent for the event's own
	Status    string `json:"status"`
	First     string `json:"first"`      // topic/partition/offset
	FirstTime int64  `json:"first_time"` // event time, Unix milliseconds
	// CopiesUntil is the last event time of a copy, absent where the key is
	// free. HeldUntil is the stream time until which the row is held; at later
	// ones it is not, and will be removed.
	CopiesUntil int64              `json:"copies_until,omitempty"`
	HeldUntil   int64              `json:"held_until"`
	StreamTime  int64              `json:"stream_time"`
	Held        bool               `json:"held"`
	KeyState    processor.KeyState `json:"key_state"`

	// Of claim mode. NextAttempt is the one as which the next event runs that
	// is no copy; absent while the key's window is not over.
	Attempt       uint32 `json:"attempt,omitempty"`
	NextAttempt   uint32 `json:"next_attempt,omitempty"`
	ClaimedAt     int64  `json:"claimed_at,omitempty"`
	LeaseUntil    int64  `json:"lease_until,omitempty"` // while in progress
	Request       string `json:"request,omitempty"`
	Waiting       int    `json:"waiting,omitempty"` // copies
	ResultBytes   *int   `json:"result_bytes,omitempty"`
	ResultNull    bool   `json:"result_null,omitempty"`
	ResultOmitted int    `json:"result_omitted_bytes,omitempty"`
}

func showEntry(d *rules.Derived, e *processor.Entry) *shownEntry {
	r, w := d.Route, d.Route.Span()
	s := &shownEntry{
		Task: e.Task, Status: e.Row.Status.String(), First: e.First, FirstTime: e.Row.First,
		HeldUntil: e.Row.First + w.Retention(), StreamTime: e.StreamTime, Held: e.Held(r), KeyState: e.KeyState(r),
		Attempt: e.Row.Attempt,
	}
	if s.KeyState != processor.Free {
		s.CopiesUntil = e.Row.First + w.Size
	}
	if s.KeyState != processor.Active && inClaimMode(r) {
		s.NextAttempt = 1
		if s.Held {
			s.NextAttempt += e.Row.Attempt
		}
	}
	switch e.Row.Status {
	case dedup.ClaimInProgress:
		s.LeaseUntil = e.Claim.Since + r.ClaimRule().Lease
		fallthrough
	case dedup.Submitted:
		s.Waiting = max(0, len(e.Claim.Requests)-1)
	case dedup.Completed:
		n := len(e.Claim.Result)
		s.ResultBytes, s.ResultNull, s.ResultOmitted = &n, e.Claim.Result == nil && e.Claim.Omitted == 0, e.Claim.Omitted
	case dedup.Seen, dedup.Freed:
	}
	s.ClaimedAt = e.Claim.Since
	if utf8.Valid(e.Claim.Original) {
		s.Request = string(e.Claim.Original)
	}
	return s
}

// describeKeyState says what the row means for events to come.
func (s *shownEntry) describeKeyState() string {
	next := "goes out"
	if s.NextAttempt > 0 {
		next = "runs as attempt " + strconv.FormatUint(uint64(s.NextAttempt), 10)
	}
	switch {
	case !s.Held:
		return "free: its retention is over, the row will be evicted; the next event under this key " + next
	case s.KeyState == processor.Free:
		return "free: the next event under the key " + next
	case s.KeyState == processor.Expired:
		return "expired: only an event within the window is a duplicate, a later event " + next
	}
	return string(processor.Active)
}

// write prints the answer for people.
func (s *shownLookup) write(to io.Writer) error {
	if !s.Found {
		_, err := fmt.Fprintf(to, "nothing is kept of key %s (digest %s) in namespace %s\n", s.Key, s.Digest, s.Namespace)
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
		facts = append(facts, fact{"kept under", "digest " + s.KeptUnder + ", a neighbouring key: the event is judged as the same order's copy"})
	}
	if s.KeyState != processor.Free {
		facts = append(facts, fact{"copies until", when(s.CopiesUntil) + " by event time"})
	}
	facts = append(facts, fact{"key state", s.describeKeyState()})
	if s.Attempt > 0 {
		facts = append(facts, fact{"attempt", strconv.FormatUint(uint64(s.Attempt), 10)})
	}
	if s.Request != "" {
		facts = append(facts, fact{"request id", s.Request})
	}
	if s.ClaimedAt > 0 {
		facts = append(facts, fact{"claimed", when(s.ClaimedAt) + " by the broker's clock"})
	}
	if s.LeaseUntil > 0 {
		facts = append(facts, fact{"lease until", when(s.LeaseUntil) + " at least"})
	}
	if s.Waiting > 0 {
		facts = append(facts, fact{"waiting", plural(s.Waiting, "copy")})
	}
	switch {
	case s.ResultOmitted > 0:
		facts = append(facts, fact{"result", plural(s.ResultOmitted, "byte") + ", not kept: over result_limit"})
	case s.ResultNull:
		facts = append(facts, fact{"result", "null"})
	case s.ResultBytes != nil:
		facts = append(facts, fact{"result", plural(*s.ResultBytes, "byte")})
	}
	tw := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	writeFacts(tw, "", facts)
	return tw.Flush()
}

// mayForget refuses routes without claims.
func mayForget(routes *rules.Routes, route *rules.Route) error {
	if inClaimMode(route) {
		return nil
	}
	return fmt.Errorf("route %s is not in claim mode: its keys count until their window is over; those of routes in claim mode can be forgotten: %s",
		route.Name, routeNames(routes, inClaimMode))
}

func runForget(ctx context.Context, args []string, p process) int {
	in, o, code, done := inspect(ctx, "forget", "Erases what is kept of an event's key, so that the event may run again. For routes in claim\n"+
		"mode: it goes by way of the route's outcomes topic, and is done when the service has read it.\n"+inspectAbout, args, p,
		mayForget)
	if done {
		return code
	}
	digest, err := in.inspector.Forget(ctx, &in.derived)
	if err = errors.Join(err, in.inspector.Close()); err != nil {
		printf(p.stderr, "oncebus forget: %v\n", err)
		return codeOf(err)
	}
	key := hex.EncodeToString(in.derived.Key[:])
	if o.json {
		err = json.NewEncoder(p.stdout).Encode(map[string]string{"route": o.route, "key": key, "digest": digest.String(), "asked": in.derived.Route.Claim.Outcomes})
	} else {
		beside := ""
		if digest != in.derived.Digest {
			beside = fmt.Sprintf(", kept under the neighbouring digest %v,", digest)
		}
		_, err = fmt.Fprintf(p.stdout, "asked to forget key %s%s of route %s, on topic %s\n", key, beside, o.route, in.derived.Route.Claim.Outcomes)
	}
	if err != nil {
		printf(p.stderr, "oncebus forget: %v\n", err)
		return exitFailed
	}
	return exitStopped
}
