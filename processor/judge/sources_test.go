package judge_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// sourceWorld is a world whose route has two inputs with one partition each, in an app with route sets. Its router
// itself says how far the inputs were read.
type sourceWorld struct {
	*world

	task       *scriptTask
	sent       int
	partitions int   // of a.raw, if it has got some
	ahead      int64 // how far its router's estimate of broker time is ahead
}

func newSourceWorld(t *testing.T, more ...string) *sourceWorld {
	t.Helper()
	w := newWorld(t)
	var err error
	w.nextRoutes, err = rules.ParseRoutes("routes.yaml", []byte(`routes:
  - name: signals
    topics: [a.raw, b.raw]
    key: [{field: id}]
    window: 1h
    grace: 10m
    skew: 1h
    output: signals.unique
    dead_letter: dead
`+strings.Join(more, "")))
	must(t, err)
	w.hasSets, w.now, w.announced = true, 1_700_000_000_000, 1_700_000_000_000
	w.start()
	s := &sourceWorld{world: w}
	s.task = w.task(app.TaskID{Topic: w.app.Topology.Repartition})
	return s
}

// event routes and judges an event of a topic, and returns its verdict. The event time is in ms after the start of
// the world.
func (s *sourceWorld) event(topic string, at int64) string {
	s.t.Helper()
	return s.eventOf(topic, 0, at)
}

// eventOf is event for a partition of a topic.
func (s *sourceWorld) eventOf(topic string, partition int32, at int64) string {
	s.t.Helper()
	s.route(topic, partition, at)
	s.emitted = nil
	s.run()
	verdict := "lost"
	for _, out := range s.emitted {
		if v, ok := (*wire.Headers)(&out.Headers).Header(wire.HeaderVerdict); ok {
			verdict = string(v)
		} else if out.Topic == "signals.unique" {
			verdict = dedup.Unique.String()
		}
	}
	return verdict
}

// route routes an event, which the task judges in the next run.
func (s *sourceWorld) route(topic string, partition int32, at int64) {
	s.sent++
	id := []byte(`{"id":"` + topic + strconv.Itoa(s.sent) + `"}`)
	r := &kgo.Record{Topic: topic, Partition: partition, Key: id, Value: id, Timestamp: time.UnixMilli(1_700_000_000_000 + at)}
	r.Headers = []kgo.RecordHeader{{Key: "x-tenant", Value: []byte("acme")}}
	s.append(r)
	route(s.router, s.emitter, []*kgo.Record{r})
	s.commit()
}

// progress writes that the inputs were read to these broker times, in ms after the start of the world.
func (s *sourceWorld) progress(a, b int64, fronts ...wire.Front) {
	s.announce(a, b, fronts...)
	s.run()
}

// announce writes the same as progress, but the task applies the record only in the next run.
func (s *sourceWorld) announce(a, b int64, fronts ...wire.Front) {
	var p wire.Progress
	for topic, to := range map[string]int64{"a.raw": a, "b.raw": b} {
		in := wire.InputProgress{Topic: s.app.TopicNumbers[topic], Partitions: 1, CountedAt: s.now + s.ahead, Read: []wire.ReadProgress{{To: dedup.NoStreamTime}}}
		if to >= 0 {
			in.Read[0].To = 1_700_000_000_000 + to
		}
		if topic == "a.raw" {
			in.Partitions, in.Read[0].Fronts = max(s.partitions, 1), fronts
		}
		p.Inputs = append(p.Inputs, in)
	}
	slices.SortFunc(p.Inputs, func(x, y wire.InputProgress) int { return int(x.Topic) - int(y.Topic) })
	s.router.WriteProgress(s.emitter, &p, everyPartition)
	s.commit()
}

// wantTime checks the stream time, in ms after the start of the world; -1 means no stream time.
func (s *sourceWorld) wantTime(when string, at int64) {
	s.t.Helper()
	want := dedup.NoStreamTime
	if at >= 0 {
		want = 1_700_000_000_000 + at
	}
	if got := s.task.Committed.StreamTimes.Of(s.app.ByName["signals"].NamespaceID); got != want {
		s.t.Errorf("%s: stream time is %d, want %d", when, got-1_700_000_000_000, at)
	}
}

// TestEndOfASourceHasADate protects that the end of a source counts only up to its date: that a source was read to a
// broker time says nothing of what came later. Between this date and the progress record another source may have gone
// on.
func TestEndOfASourceHasADate(t *testing.T) {
	t.Parallel()
	const minute = 60_000
	s := newSourceWorld(t)
	s.event("a.raw", 5*minute)
	s.wantTime("nothing known of b", -1)
	s.progress(-1, -1)
	s.wantTime("b not read", -1)
	s.now += minute
	s.event("a.raw", 30*minute)
	s.progress(-1, minute-1)
	s.wantTime("b read to before the second event of a came", 5*minute)
	s.now += minute
	s.progress(-1, minute-1)
	s.wantTime("the same again, much later", 5*minute)
	s.progress(-1, 2*minute)
	s.wantTime("b read to after it", 30*minute)
	s.event("a.raw", 50*minute)
	s.event("b.raw", 40*minute)
	s.wantTime("b has gone on", 40*minute)
	s.now -= 10 * minute // the broker's clock was set back
	s.progress(-1, -1)
	s.wantTime("broker time set back", 40*minute)
}

// TestLateByItsOwnSource protects that an event is late because of earlier events of its own source, though no other
// source has come so far, and only because of these.
func TestLateByItsOwnSource(t *testing.T) {
	t.Parallel()
	const hour = 3_600_000
	s := newSourceWorld(t)
	s.now += 100 * hour
	s.progress(-1, -1)
	if v := s.event("a.raw", 10*hour); v != "unique" {
		t.Errorf("the first event is %s", v)
	}
	if v := s.event("b.raw", 0); v != "unique" {
		t.Errorf("an event of the other source is %s", v)
	}
	if v := s.event("a.raw", 0); v != "late" {
		t.Errorf("an event ten hours behind its own source is %s", v)
	}
	s.wantTime("the other source holds it back", 0)
}

// TestPartitionAddedWhileNoRouterCountedIsNotLate covers a topic that gets a partition while the app is down. Until a
// router has counted the partitions again, stream time stands still, though all known sources go on.
func TestPartitionAddedWhileNoRouterCountedIsNotLate(t *testing.T) {
	t.Parallel()
	const hour = 3_600_000
	s := newSourceWorld(t)
	s.progress(-1, -1)
	s.event("a.raw", 0)
	s.event("b.raw", 0)
	s.wantTime("both are read", 0)
	s.now += 10 * hour // the app is down, and a.raw gets a partition
	s.event("a.raw", 10*hour)
	s.event("b.raw", 10*hour)
	s.wantTime("no router has counted for hours", 0)
	if v := s.eventOf("a.raw", 1, hour); v != "unique" {
		t.Errorf("the first event of the new partition is %s", v)
	}
	s.wantTime("an event of the new partition is no count", 0)
	s.partitions = 2
	s.progress(-1, -1)
	s.wantTime("the new partition keeps time back", hour)
	s.now += 60_000
	s.eventOf("a.raw", 1, 2*hour)
	s.wantTime("the count holds for a minute", 2*hour)
	s.now++
	s.eventOf("a.raw", 1, 3*hour)
	s.wantTime("the count is too old", 2*hour)
	s.now--
	s.event("a.raw", 10*hour)
	s.wantTime("broker time was set back", 3*hour)
	s.eventOf("a.raw", 1, 4*hour)
	s.wantTime("after that", 4*hour)
}

// TestCountIsNoLaterThanItsRecord protects that a count of partitions does not hold for longer if the router's
// estimate of broker time is ahead.
func TestCountIsNoLaterThanItsRecord(t *testing.T) {
	t.Parallel()
	s := newSourceWorld(t)
	s.ahead = 5000
	s.progress(-1, -1)
	for _, topic := range s.task.Committed.Sources[0].Topics {
		if topic.CountedAt != s.now {
			t.Errorf("topic %d was counted at %d", topic.Number, topic.CountedAt)
		}
	}
}

// TestFutureEventMovesNoFront protects that an event too far ahead of broker time does not make the router say that
// its source has come so far, and that no record says more than its own time allows.
func TestFutureEventMovesNoFront(t *testing.T) {
	t.Parallel()
	const hour = 3_600_000
	s := newSourceWorld(t)
	s.event("a.raw", 2*hour)
	if len(s.router.Fronts) > 0 {
		t.Errorf("fronts %v after an event of the future", s.router.Fronts)
	}
	id := s.app.ByName["signals"].NamespaceID
	s.progress(-1, 0, wire.Front{NamespaceID: id, At: 1_700_000_000_000 + 9*hour})
	s.event("b.raw", 0)
	if got := s.task.Committed.Sources[0].Highest; got != 1_700_000_000_000+hour {
		t.Errorf("a progress record from now says that events have come to %d h after now, skew is one", (got-1_700_000_000_000)/hour)
	}
}

// TestRouteThatComesBackEndsNoKeys covers a removed route whose keys are gone and which comes back with a backlog. A
// task that has not read the new set yet judges the first events by the route's last text. These move stream time as
// events do; no retention is added that would make the events behind them late.
func TestRouteThatComesBackEndsNoKeys(t *testing.T) {
	t.Parallel()
	const minute = 60_000
	s := newSourceWorld(t)
	id := s.app.ByName["signals"].NamespaceID
	s.app.RetiredUntil, s.app.GoesOn[id] = map[uint8]int64{id: s.now + 200*minute}, false
	s.event("a.raw", 5*minute)
	s.event("b.raw", 5*minute)
	s.progress(0, 0)
	s.wantTime("live", 5*minute)
	s.now += 300 * minute
	s.progress(299*minute, 299*minute)
	s.wantTime("one retention later", 5*minute+130*minute+130*minute/32+1)
	for at := int64(150); at < 250; at += 10 {
		if verdict := s.event("a.raw", at*minute); verdict != "unique" {
			t.Errorf("the event at %d min is %s", at, verdict)
		}
		s.progress(-1, -1)
	}
}
