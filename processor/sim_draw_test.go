//go:build synctests

package processor_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kversion"

	"oncebus/dedup/rules"
	"oncebus/processor/oracle"
	"oncebus/state"
)

// simLength is the virtual time for which a seed runs by default.
const simLength = 8 * time.Minute

// simSettings are the settings that a seed draws before it starts.
type simSettings struct {
	brokers, slots int
	partitions     int32 // of the repartition topic
	rawPartitions  int32
	latency        time.Duration
	versions       *kversion.Versions // nil: the newest
	session, txn   time.Duration
	state          state.Config
	routes         []oracle.Route
	inputs         []string        // by route
	clockOff       []time.Duration // of the producers, by raw partition
	hot            float64         // share of records for few keys
	hotKeys        int
	rate           int             // records of a burst at most
	workers        []int           // by slot
	commit         []time.Duration // by slot
	claims         *oracle.Claims  // of a seed with claims, which has no plain routes
	http           float64         // share of bursts with events by HTTP, of plain routes; 0: no ingress
	failOpen       bool            // the first route fails open, and disks fill
	level1         bool            // an earlier build began the app
	changes        bool            // windows change, and a route comes and goes
	inForce        []oracle.Route  // as the operator last put them in force
	extra          bool            // with extraRoute
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func drawSettings(r *rand.Rand) *simSettings {
	s := &simSettings{
		brokers: 1 + r.IntN(3), slots: 2 + r.IntN(2), partitions: 1 + r.Int32N(4), rawPartitions: 1 + r.Int32N(4),
		latency: pick(r, 200*time.Microsecond, time.Millisecond, 5*time.Millisecond),
		session: pick(r, 3*time.Second, 6*time.Second, 10*time.Second),
		txn:     pick(r, 5*time.Second, 10*time.Second, 15*time.Second),
		hot:     pick(r, 0, 0.3, 0.5), hotKeys: pick(r, 1, 1, 30), rate: pick(r, 5, 20, 40),
	}
	if r.IntN(5) == 0 {
		// These are brokers without KIP-890's second part: the client announces partitions and offsets to the
		// transaction by requests of their own. These brokers take a late request of an old transaction for a request
		// of the next one (C2).
		s.versions = kversion.V3_6_0()
	}
	for range s.slots {
		s.workers = append(s.workers, 1+r.IntN(2))
		s.commit = append(s.commit, pick(r, 5*time.Millisecond, 50*time.Millisecond, 200*time.Millisecond, time.Second))
	}
	for range s.rawPartitions {
		s.clockOff = append(s.clockOff, pick(r, 0, 0, -30*time.Second, 30*time.Second, -2*time.Minute))
	}
	s.state = state.DefaultConfig()
	s.state.FlushRows, s.state.FlushAge = pick(r, 16, 64, 512), pick(r, time.Second, 5*time.Second, time.Minute)
	s.state.MergeFanIn = pick(r, 2, 4)
	s.routes = []oracle.Route{
		drawRoute(r, oracle.Route{Name: "signals", Output: "signals.unique"}),
		drawRoute(r, oracle.Route{Name: "orders", Output: "orders.unique"}),
	}
	s.inputs = []string{"signals.raw", "orders.raw"}
	// Claims are drawn last, so that all other seeds are what they were before claims existed.
	if r.IntN(claimsShare) == 0 {
		s.claims, s.routes, s.inputs = drawClaims(r), nil, []string{"ops.raw", "ops.outcomes"}
		s.failOpen = r.IntN(edgesShare) == 0
		s.level1 = r.IntN(2) == 0
		return s
	}
	s.http = pick(r, 0, 0.3, 0.6)
	if r.IntN(edgesShare) == 0 {
		s.failOpen = true
		for n := range s.routes {
			s.routes[n].LiveKeys, s.routes[n].OnLimit = pick(r, int64(3), 20, 200), pick(r, oracle.DeadLetter, oracle.Forward)
		}
		s.routes[0].FailOpen = true
	}
	for n := range s.routes {
		s.routes[n].Sender = pick(r, "", "traceparent")
		s.routes[n].Headers = pick(r, oracle.Headers{}, oracle.Headers{Key: true}, oracle.Headers{Route: true, Verdict: true}, oracle.Headers{Route: true, Key: true, Verdict: true})
	}
	s.level1 = r.IntN(2) == 0
	// Seeds with limits are left out: the oracle does not know how many keys count towards a limit after a change.
	s.changes = r.IntN(3) > 0 && !s.failOpen
	s.inForce = s.routes
	return s
}

// edgesShare says which share of plain seeds has routes with limits and one route that fails open: one in edgesShare.
const edgesShare = 3

func drawRoute(r *rand.Rand, route oracle.Route) oracle.Route {
	route.DeadLetter = "dead"
	route.Window = pick(r, time.Minute, 5*time.Minute, time.Hour).Milliseconds()
	route.Grace = pick(r, 0, 10*time.Second, 10*time.Minute).Milliseconds()
	route.Skew = min(pick(r, time.Minute, time.Hour).Milliseconds(), route.Window+route.Grace)
	route.Duplicates = pick(r, oracle.Drop, oracle.Forward, oracle.To)
	if route.Duplicates == oracle.To {
		route.DuplicatesTo = "duplicates"
	}
	route.Late = pick(r, oracle.DeadLetter, oracle.Forward, oracle.Drop)
	route.Future = pick(r, oracle.DeadLetter, oracle.Clamp)
	return route
}

// routesFile writes the routes as an operator would. The key of signals is a field of their payload, and the key of
// orders is the record key.
func (s *simSettings) routesFile() string {
	if s.claims != nil {
		return claimsFile(s.claims, s.failOpen)
	}
	file := "routes:\n"
	for n, route := range s.routes {
		duplicates := string(route.Duplicates)
		if route.Duplicates == oracle.To {
			duplicates = "{to: " + route.DuplicatesTo + "}"
		}
		file += fmt.Sprintf(`  - name: %s
    topics: [%s]
    key: [%s]
    window: %dms
    grace: %dms
    skew: %dms
    output: %s
    duplicates: %s
    on_late: %s
    on_future: %s
    dead_letter: %s
%s`, route.Name, s.inputs[n], [...]string{"field: id", "record_key"}[n], route.Window, route.Grace, route.Skew, route.Output, duplicates, route.Late, route.Future, route.DeadLetter, s.edges(n))
	}
	if s.extra {
		file += extraRoute
	}
	return file
}

// edges writes the parts of a route that only some seeds have.
func (s *simSettings) edges(n int) string {
	text := ""
	if route := s.routes[n]; route.LiveKeys > 0 {
		text += fmt.Sprintf("    limits: {live_keys: %d, on_limit: %s}\n", route.LiveKeys, route.OnLimit)
	}
	if names := rules.Headers(s.routes[n].Headers).Names(); len(names) > 0 {
		text += "    headers: [" + strings.Join(names, ", ") + "]\n"
	}
	if sender := s.routes[n].Sender; sender != "" {
		text += "    sender: {header: " + sender + "}\n"
	}
	if s.routes[n].FailOpen {
		text += "    on_state_failure: fail_open\n"
	}
	if s.http > 0 && n == 0 {
		text += fmt.Sprintf("    http: {path: %s, signature: {scheme: none}, timeout: %v}\n", simPath, simAnswerMax)
	}
	return text
}

// outputs returns the topics that oncebus emits to.
func (s *simSettings) outputs() []string {
	if s.claims != nil {
		return []string{s.claims.Dead, s.claims.Output, s.claims.Replies, s.claims.Answers}
	}
	topics := []string{"dead"}
	duplicates := false
	for _, route := range s.routes {
		topics = append(topics, route.Output)
		duplicates = duplicates || route.DuplicatesTo != ""
	}
	if duplicates {
		topics = append(topics, "duplicates")
	}
	if s.http > 0 {
		topics = append(topics, simVerdicts)
	}
	return topics
}
