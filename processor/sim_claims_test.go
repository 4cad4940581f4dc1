//go:build synctests

package processor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/oracle"
	"oncebus/processor/wire"
)

// claimsShare says which share of seeds has claims instead of plain routes: one in claimsShare.
const claimsShare = 3

// drawClaims draws the only route of a seed with claims.
func drawClaims(r *rand.Rand) *oracle.Claims {
	c := &oracle.Claims{
		Repartition: "app-repartition", Changelog: "app-repartition-changelog", Output: "ops.run", Replies: "ops.replies", Answers: "ops.answers", Dead: "dead",
		Window: pick(r, time.Minute, 5*time.Minute, time.Hour).Milliseconds(), Grace: pick(r, 0, 10*time.Minute).Milliseconds(),
		Skew: pick(r, time.Minute, time.Hour).Milliseconds(), Lease: pick(r, time.Second, 10*time.Second, time.Minute).Milliseconds(), Wait: pick(r, 0, 2, 16),
		ForwardsCollisions: r.IntN(2) == 0, Group: r.IntN(2) == 0,
	}
	c.Skew = min(c.Skew, c.Window+c.Grace)
	return c
}

func claimsFile(c *oracle.Claims, failOpen bool) string {
	pending := "reject"
	if c.Wait > 0 {
		pending = fmt.Sprintf("wait\n    max_waiting: %d", c.Wait)
	}
	more := ""
	if c.Group {
		more = "    executor_group: " + simExecutors + "\n"
	}
	if c.ForwardsCollisions {
		more += "    fingerprint: [details]\n    collision: forward\n"
	}
	if failOpen {
		more += "    on_state_failure: fail_open\n"
	}
	return fmt.Sprintf(`routes:
  - name: ops
    topics: [ops.raw]
    mode: claim
    key: [{field: id}]
    window: %dms
    grace: %dms
    skew: %dms
    output: ops.run
    outcomes: ops.outcomes
    replies: ops.replies
    answers: ops.answers
    lease: %dms
    while_in_progress: %s
    dead_letter: dead
%s`, c.Window, c.Grace, c.Skew, c.Lease, pending, more)
}

// simExecutors is the consumer group of the executors.
const simExecutors = "executors"

// claimTraffic are senders, and executors that answer the events in the output, some of them wrongly. Every record
// has a record key of its own.
type claimTraffic struct {
	n     int // records made
	read  int // records of the output that executors have taken
	taken []oracle.Record
	away  time.Time       // until then the executors take nothing
	next  map[int32]int64 // offsets that their group commits, by partition
}

// claimRecords makes the records of a burst.
func (g *rawTraffic) claimRecords() []*kgo.Record {
	r, c := g.rng, &g.claimed
	var records []*kgo.Record
	for range 1 + r.IntN(g.rate) {
		id := fmt.Sprint("hot-", g.zipf.Uint64())
		if r.Float64() >= g.hot {
			id = fmt.Sprint("id-", c.n/3) // sent again by the next few
		}
		at := time.Now()
		switch n := r.IntN(400); {
		case n < 10:
			at = at.Add(-time.Duration(g.claims.Window+g.claims.Grace)*time.Millisecond - time.Minute + time.Duration(r.Int64N(int64(2*time.Minute))))
		case n == 10: // it can make all that follows late
			at = at.Add(time.Duration(g.claims.Skew)*time.Millisecond - time.Minute + time.Duration(r.Int64N(int64(2*time.Minute))))
		}
		c.n++
		records = append(records, &kgo.Record{
			Topic: "ops.raw", Partition: r.Int32N(g.rawPartitions), Key: fmt.Append(nil, "r-", c.n), Value: fmt.Appendf(nil, `{"id":%q,"details":%d}`, id, max(0, r.IntN(8)-5)), Timestamp: at,
		})
	}
	for _, event := range g.take() {
		if !slices.ContainsFunc(event.Headers, func(h oracle.Header) bool { return h.Key == wire.HeaderClaimToken }) {
			continue // forwarded without a claim: it has no outcome
		}
		c.taken = append(c.taken, event)
		if r.IntN(3) == 0 { // asks before it runs, perhaps twice, or as two executors
			records = append(records, g.question(event, "start", pick(r, "a", "a", "b")))
			if r.IntN(2) == 0 {
				records = append(records, g.question(event, "start", pick(r, "a", "a", "b")))
			}
		}
		switch r.IntN(12) {
		case 0: // the executor dies
		case 1:
			records = append(records, g.outcome(event, "failed"))
		case 10, 11:
			records = append(records, g.question(event, "renew", pick(r, "", "a")))
		case 2:
			records = append(records, g.outcome(event, "rejected"), g.outcome(event, "rejected"))
		case 3:
			records = append(records, g.outcome(event, "submitted"), g.outcome(event, "completed"))
		case 4:
			records = append(records, g.outcome(event, "submitted"))
		case 5:
			records = append(records, g.outcome(event, "completed"), g.outcome(event, "submitted"))
		default:
			records = append(records, g.outcome(event, "completed"))
		}
	}
	if len(c.taken) > 0 && r.IntN(3) == 0 { // from long ago, or once more
		records = append(records, g.outcome(c.taken[r.IntN(len(c.taken))], pick(r, "completed", "completed", "failed", "submitted", "forget", "nonsense")),
			g.question(c.taken[r.IntN(len(c.taken))], pick(r, "start", "renew"), pick(r, "a", "b")))
	}
	return records
}

// take returns the events that the executors read now. At times the executors are away for some leases.
func (g *rawTraffic) take() []oracle.Record {
	c, r := &g.claimed, g.rng
	if r.IntN(60) == 0 {
		c.away = time.Now().Add(time.Duration(r.Int64N(4*g.claims.Lease)) * time.Millisecond)
	}
	if time.Now().Before(c.away) {
		return nil
	}
	fresh := g.seen("ops.run", c.read)
	c.read += len(fresh)
	if c.next == nil {
		c.next = map[int32]int64{}
	}
	for _, event := range fresh {
		c.next[event.Partition] = event.Offset + 1
	}
	return fresh
}

// commitTaken commits the offsets of the events that the executors have taken, or leaves the commit to a later burst.
func (g *rawTraffic) commitTaken() {
	if !g.claims.Group || g.rng.IntN(3) == 0 || time.Now().Before(g.claimed.away) {
		return
	}
	offsets := kadm.Offsets{}
	for partition, next := range g.claimed.next {
		offsets.AddOffset("ops.run", partition, next, -1)
	}
	g.commit(offsets)
}

// commitEnds commits the offsets of all dispatched events. Otherwise leases could run, and progress records be
// written, for ever.
func (g *rawTraffic) commitEnds() {
	if g.claims == nil || !g.claims.Group {
		return
	}
	ends, err := kadm.NewClient(g.client).ListEndOffsets(context.Background(), "ops.run")
	if err == nil {
		g.commit(ends.Offsets())
	}
}

// commit commits offsets of the executors' group. If a fault prevents the commit, the next call makes it.
func (g *rawTraffic) commit(offsets kadm.Offsets) {
	if len(offsets) > 0 {
		_ = kadm.NewClient(g.client).CommitAllOffsets(context.Background(), simExecutors, offsets)
	}
}

// question makes a start or a renewal of an event's attempt.
func (g *rawTraffic) question(event oracle.Record, kind, id string) *kgo.Record {
	record := g.outcome(event, kind)
	record.Value = nil
	record.Headers = append(record.Headers, kgo.RecordHeader{Key: wire.HeaderStartID, Value: []byte(id)})
	return record
}

func (g *rawTraffic) outcome(event oracle.Record, kind string) *kgo.Record {
	g.claimed.n++
	record := &kgo.Record{
		Topic: "ops.outcomes", Partition: g.rng.Int32N(g.rawPartitions), Key: fmt.Append(nil, "o-", g.claimed.n), Value: fmt.Append(nil, "v-", g.claimed.n),
		Timestamp: time.Now(), Headers: []kgo.RecordHeader{{Key: wire.HeaderOutcome, Value: []byte(kind)}},
	}
	for _, h := range event.Headers {
		if h.Key == wire.HeaderClaimToken {
			record.Headers = append(record.Headers, kgo.RecordHeader{Key: wire.HeaderClaimToken, Value: h.Value})
		}
	}
	return record
}

// checkClaims lets the oracle judge the observations of a seed with claims. The router dead-lettered an outcome that
// says nothing, so the fold has no such outcome.
func (s *sim) checkClaims(h *oracle.History) {
	for topic, records := range h.Live {
		if topic != s.set.claims.Dead {
			continue
		}
		var kept []oracle.Record
		for _, r := range records {
			if !strings.Contains(reasonOf(&r), "is unknown, want one of") {
				kept = append(kept, r)
			}
		}
		h.Live[topic] = kept
	}
	ops := s.lives[0].App().Manifest.NamespaceID("ops")
	s.set.claims.Sources, s.set.claims.GoesOn = s.sources()[ops], s.goesOn()[ops]
	wrong, emitted := oracle.CheckClaims(s.set.claims, h.Live)
	s.t.Logf("seed %d: claims, compared %v", s.seed, emitted)
	if emitted["ops.run"] == 0 {
		s.t.Errorf("nothing was shown: %v", emitted)
	}
	for n, what := range wrong {
		if n < 20 {
			s.t.Error(what)
		}
	}
	for _, open := range h.Open {
		s.t.Errorf("%s has an open transaction", open)
	}
	if s.violations = len(wrong); s.violations > 0 {
		s.keep("violations", []byte(strings.Join(wrong, "\n")))
	}
}

func reasonOf(r *oracle.Record) string {
	for _, h := range r.Headers {
		if h.Key == wire.HeaderReason {
			return string(h.Value)
		}
	}
	return ""
}
