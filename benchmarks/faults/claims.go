//go:build unix

package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/oracle"
)

// claimRoutes are the routes in claim mode: one route for each response to a duplicate that arrives while the
// first event is in progress. The routes share all topics; a field of the event says which route its record
// belongs to. An epoch is so long that some leases end before their claims do, and that the windows of some
// events end.
var claimRoutes = []struct {
	name    string
	pending string
	rules   oracle.Claims
}{
	{"ops-wait", "wait\n    max_waiting: 3", oracle.Claims{Window: 15_000, Grace: 5_000, Skew: 20_000, Lease: 2_000, Wait: 3}},
	{"ops-reject", "reject", oracle.Claims{Window: 15_000, Grace: 5_000, Skew: 20_000, Lease: 2_000}},
}

// The topics of claim mode, without the app's prefix.
const (
	claimRaw, claimRun, claimOutcomes, claimReplies, claimDead = "ops.raw", "ops.run", "ops.outcomes", "ops.replies", "ops.dead"
)

// writeClaimRoutes appends the routes in claim mode to a routes file.
func writeClaimRoutes(b *strings.Builder) {
	for _, r := range claimRoutes {
		fmt.Fprintf(b, `  - name: %s
    topics: [APP.%s]
    match: {field: route, in: [%s]}
    mode: claim
    key: [{field: id}]
    window: %dms
    grace: %dms
    skew: %dms
    lease: %dms
    while_in_progress: %s
    output: APP.%s
    outcomes: APP.%s
    replies: APP.%s
    dead_letter: APP.%s
`, r.name, claimRaw, r.name, r.rules.Window, r.rules.Grace, r.rules.Skew, r.rules.Lease, r.pending, claimRun, claimOutcomes, claimReplies, claimDead)
	}
}

// claimTopics returns the topics that users of claim mode read, and the topic of outcomes.
func (a *app) claimTopics() []string {
	return []string{a.topic(claimRun), a.topic(claimReplies), a.topic(claimDead), a.topic(claimOutcomes)}
}

// claimsConfig returns the settings of the routes in claim mode for the oracle.
func (a *app) claimsConfig(topics map[string]uint16, namespaceID func(namespace string) (uint8, error)) ([]oracle.Claims, error) {
	var all []oracle.Claims
	for _, r := range claimRoutes {
		c := r.rules
		number, err := namespaceID(r.name)
		if err != nil {
			return nil, err
		}
		c.Route, c.NamespaceID, c.Repartition, c.Changelog = r.name, number, a.repartition(), a.changelog()
		c.Output, c.Replies, c.Dead = a.topic(claimRun), a.topic(claimReplies), a.topic(claimDead)
		c.Sources, c.GoesOn = []uint16{topics[a.topic(claimRaw)]}, true
		c.Outcomes, c.OutcomesNumber = a.topic(claimOutcomes), topics[a.topic(claimOutcomes)]
		all = append(all, c)
	}
	for i := range all {
		all[i].RepartitionNumber = topics[a.repartition()]
	}
	return all, nil
}

// claimTraffic makes the events of claim mode. Each event has its own record key, by which the oracle finds the reply
// to it.
type claimTraffic struct {
	rng  *rand.Rand
	due  float64
	made int
	ids  []string // oldest first
}

const claimIDsMax = 5_000

// draw makes an event: a new event, or a duplicate of an event whose claim is in progress or completed, or
// whose window is over.
func (c *claimTraffic) draw(topic string, partition int32, now time.Time) (r *kgo.Record, route, id string) {
	at := now
	switch n := c.rng.IntN(2 * odd); {
	case n < 10: // just within the grace period
		at = at.Add(-20 * time.Second).Add(time.Duration(c.rng.Int64N(int64(4 * time.Second))))
	case n == 10: // events that are even later may be judged late
		at = at.Add(time.Duration(c.rng.Int64N(int64(20 * time.Second))))
	case n == 11:
		at = at.Add(time.Hour)
	}
	c.made++
	switch n := c.rng.IntN(20); {
	case n < 8 || len(c.ids) == 0:
		id = fmt.Sprint("op-", c.made)
		c.ids = append(c.ids[max(0, len(c.ids)+1-claimIDsMax):], id)
	case n == 8:
		id = fmt.Sprint("hot-", c.rng.IntN(5))
	case n < 18:
		id = c.ids[max(0, len(c.ids)-1-c.rng.IntN(60))]
	default:
		id = c.ids[c.rng.IntN(len(c.ids))]
	}
	route = claimRoutes[int(id[len(id)-1])%len(claimRoutes)].name // derived from the id, so all duplicates of an event have the same route
	r = &kgo.Record{
		Topic: topic, Partition: partition, Timestamp: at, Key: fmt.Append(nil, "r-", c.made),
		Value: fmt.Appendf(nil, `{"route":%q,"id":%q,"n":%d}`, route, id, c.rng.IntN(1_000_000)),
	}
	return r, route, id
}

// produceClaims produces the events of claim mode that are due after n other raw records.
func (t *traffic) produceClaims(n int, now time.Time) {
	c := &t.claims
	for c.due += float64(n) / float64(claimShare); c.due >= 1; c.due-- {
		partition := c.rng.Int32N(int32(rawPartitions))
		r, route, id := c.draw(t.app.topic(claimRaw), partition, now)
		r.Headers = []kgo.RecordHeader{{Key: headerFlow, Value: appendFlow(len(routes)*rawPartitions+int(partition), now)}}
		t.client.Produce(context.Background(), r, func(r *kgo.Record, err error) { t.acknowledged(route, id, r, err) })
	}
}

// judgeClaims lets the oracle check the routes in claim mode: dispatches, replies and the changelog must be exactly
// what the log of events and outcomes requires. It returns how many records of each kind it compared.
func judgeClaims(cfg *oracle.Config, h *oracle.History) (counts map[string]int, violations []oracle.Violation) {
	counts = map[string]int{}
	add := func(format string, args ...any) {
		violations = append(violations, oracle.Violation{Invariant: claimPromise, Message: fmt.Sprintf(format, args...)})
	}
	topics := map[string]bool{}
	for i := range cfg.Claims {
		c := &cfg.Claims[i]
		wrong, compared := oracle.CheckClaims(c, h.Live)
		for _, message := range wrong[:min(len(wrong), oracle.MaxMessages)] {
			add("%s: %s", c.Route, message)
		}
		if more := len(wrong) - oracle.MaxMessages; more > 0 {
			add("%s: and %d more", c.Route, more)
		}
		if compared[c.Output] == 0 || compared[c.Replies] == 0 || compared[c.Outcomes] == 0 {
			add("%s: no record to compare: %v", c.Route, compared)
		}
		for name, n := range compared {
			counts[name] += n
		}
		for _, topic := range []string{c.Output, c.Replies, c.Dead, c.Outcomes} {
			topics[topic] = true
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		if n := len(h.Live[topic]); n != counts[topic] {
			add("%s has %d records, %d of them of its routes", topic, n, counts[topic])
		}
	}
	return counts, violations
}

// claimPromise is the name of the promise in the violations that judgeClaims finds.
const claimPromise = "claims"

// claimWords has the counts of claim mode in the order in which the report shows them.
var claimWords = []struct{ name, topic string }{
	{"events", ""}, {"keys", ""},
	{"runs", claimRun}, {"dispatched again", ""},
	{"replies", claimReplies}, {"waited", ""}, {"in progress", ""}, {"replayed", ""},
	{"outcomes", claimOutcomes}, {"refused", ""}, {"late", ""},
}

// tellClaims replaces each topic in the names of the counts by a word for the records in that topic.
func (a *app) tellClaims(counts map[string]int) map[string]int {
	numbers := map[string]int{}
	for _, w := range claimWords {
		name := w.name
		if w.topic != "" {
			name = a.topic(w.topic)
		}
		numbers[w.name] = counts[name]
	}
	return numbers
}

func claimsLine(numbers map[string]int) string {
	var parts []string
	for _, w := range claimWords {
		parts = append(parts, fmt.Sprintf("%d %s", numbers[w.name], w.name))
	}
	return strings.Join(parts, ", ")
}
