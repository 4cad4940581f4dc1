package app

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/state/failpoint"
)

// BrokerClock estimates broker time: one observed broker timestamp plus the time that has passed since on this
// machine's monotonic clock. The app needs the estimate where the log has no broker time: for records whose
// timestamp a producer set, and at the start of a task or transaction.
//
// The estimate becomes wrong in two cases: if this machine was suspended, because the monotonic clock does not
// run meanwhile, and if somebody sets the broker's clock. The app therefore compares every fetch with the
// estimate. If the estimate is doubtful, the app observes the broker time again before it judges the next event.
type BrokerClock struct {
	// Machine reads this machine's clocks; tests and simulations replace it.
	Machine func() Instant
	// OnStep is called after each change of the estimate by stepMin or more.
	OnStep func(by time.Duration)

	mu    sync.Mutex
	at    observation
	steps uint64
}

// Instant is one reading of this machine's clocks.
type Instant struct {
	Wall int64         // Unix ms
	Mono time.Duration // since some instant; does not run while the machine is suspended
}

// observation is a broker time in ms, with the readings of this machine's clocks at that time.
type observation struct {
	broker int64
	Instant
	known bool
}

const (
	// agreeMax is how far two clocks may differ without being suspicious: the clocks of two brokers, or the wall
	// clock and the monotonic clock of this machine.
	agreeMax = time.Second
	// stepMin is how much the estimate has to change for the change to count as a step.
	stepMin = 10 * time.Second
	// freshMax is the age of an observation up to which no record makes the estimate doubtful.
	// freshByWallMax is the age up to which this machine's wall clock does not make it doubtful; it is longer,
	// because the wall clock may itself be wrong.
	freshMax       = 10 * time.Second
	freshByWallMax = 10 * time.Minute
	// observeMax is how long an observation may take. It is short, because rebalance callbacks may wait for it.
	observeMax = 5 * time.Second
)

// NewBrokerClock returns a clock that has observed nothing.
func NewBrokerClock() *BrokerClock {
	began := time.Now()
	return &BrokerClock{Machine: func() Instant {
		now := time.Now()
		return Instant{Wall: now.Add(failpoint.WallStep()).UnixMilli(), Mono: now.Sub(began)}
	}}
}

// Now returns the estimate of the broker time, in ms.
func (c *BrokerClock) Now() int64 {
	now := c.Machine()
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at.estimate(now.Mono)
}

func (o *observation) estimate(mono time.Duration) int64 {
	return o.broker + (mono - o.Mono).Milliseconds()
}

// Set replaces the estimate by a broker time, in ms.
func (c *BrokerClock) Set(broker int64) {
	now := c.Machine()
	c.mu.Lock()
	c.at = observation{broker, now, true}
	c.mu.Unlock()
}

// Steps counts the steps of the estimate. A broker time that was measured before a step cannot be compared with
// one that was measured after it.
func (c *BrokerClock) Steps() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.steps
}

// Offset returns broker time minus the time of this machine's wall clock; 0 before the first observation.
func (c *BrokerClock) Offset() time.Duration {
	now := c.Machine()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.known {
		return 0
	}
	return time.Duration(c.at.estimate(now.Mono)-now.Wall) * time.Millisecond
}

// Suspended reports whether this machine's two clocks disagree about how long ago the last observation was.
// Then either the machine was suspended or its wall clock was set; only another observation can tell which.
func (c *BrokerClock) Suspended() bool {
	now := c.Machine()
	c.mu.Lock()
	defer c.mu.Unlock()
	apart := time.Duration(now.Wall-c.at.Wall)*time.Millisecond - (now.Mono - c.at.Mono)
	return c.at.known && apart.Abs() > agreeMax
}

// Received compares the estimate with the broker's timestamp of a fetched record, in ms. The broker's clock has
// shown this time, so an estimate before it is wrong, and Received corrects it. newest says that the record was
// the newest of its partition when it was fetched. If the timestamp of such a record is long before the
// estimate, the estimate is doubtful.
func (c *BrokerClock) Received(timestamp int64, newest bool) (doubtful bool) {
	c.change(func(now Instant) time.Duration {
		ahead := time.Duration(timestamp-c.at.estimate(now.Mono)) * time.Millisecond
		doubtful = newest && ahead < -stepMin && c.at.age(now) >= freshMax
		if ahead > agreeMax {
			return ahead
		}
		return 0
	})
	return doubtful
}

// Certain returns an event time, in ms, up to which Doubts returns false for any skew: the earlier of the
// estimate and this machine's wall clock.
func (c *BrokerClock) Certain() int64 {
	now := c.Machine()
	c.mu.Lock()
	defer c.mu.Unlock()
	return min(c.at.estimate(now.Mono), now.Wall)
}

// Doubts reports whether an event time, in ms, shows that the estimate of broker time may be wrong. That is so
// if the event time is more than skew, in ms, after the estimate, and the last observation of the brokers is at
// least freshMax old; or if it is more than skew after this machine's wall clock, and the observation is at
// least freshByWallMax old.
func (c *BrokerClock) Doubts(eventTime, skew int64) bool {
	now := c.Machine()
	c.mu.Lock()
	defer c.mu.Unlock()
	age := c.at.age(now)
	return eventTime-c.at.estimate(now.Mono) > skew && age >= freshMax || eventTime-now.Wall > skew && age >= freshByWallMax
}

func (o *observation) age(now Instant) time.Duration { return (now.Mono - o.Mono).Abs() }

// observed uses the timestamp, in ms, that the broker gave to a record. This machine sent the record at sent,
// and the broker has acknowledged the record by now. So the broker's clock showed the timestamp between these
// two times.
func (c *BrokerClock) observed(timestamp int64, sent Instant) {
	c.change(func(now Instant) (by time.Duration) {
		switch earliest, latest := c.at.estimate(sent.Mono), c.at.estimate(now.Mono); {
		case !c.at.known || timestamp > latest:
			by = time.Duration(timestamp-latest) * time.Millisecond
		case timestamp < earliest:
			by = time.Duration(timestamp-earliest) * time.Millisecond
		}
		c.at.broker, c.at.Instant = c.at.estimate(now.Mono), now // fresh again, because it agrees with the broker
		return by
	})
}

// change changes the estimate by what fn returns. It calls fn under the lock, because two workers may notice
// the same step: only the first of them must change the estimate.
func (c *BrokerClock) change(fn func(now Instant) (by time.Duration)) {
	now := c.Machine()
	c.mu.Lock()
	by := fn(now)
	step := c.at.known && by.Abs() >= stepMin
	if by != 0 {
		c.at = observation{c.at.estimate(now.Mono) + by.Milliseconds(), now, true}
	}
	c.at.known = true
	if step {
		c.steps++
	}
	c.mu.Unlock()
	if step && c.OnStep != nil {
		c.OnStep(by)
	}
}

// ObserveClock observes the broker time: it appends a record to the manifest topic, reads the timestamp that
// the broker gave to the record, and compares this timestamp with the estimate.
func (rt *App) ObserveClock(ctx context.Context, client *kgo.Client, instance string) error {
	ctx, cancel := context.WithTimeout(ctx, observeMax)
	defer cancel()
	sent := rt.Clock.Machine()
	rec := &kgo.Record{Topic: rt.Topology.Manifest, Key: []byte(clockKey), Value: []byte(instance)}
	if err := client.ProduceSync(ctx, rec).FirstErr(); err != nil {
		return fmt.Errorf("write to %s: %w", rec.Topic, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
	}
	reader := kafka.NewReader(client, rec.Topic, rt.Topology.Topics[rec.Topic].ID, rec.Partition)
	return reader.Read(ctx, rec.Offset, rec.Offset+1, func(records []*kgo.Record, _ int64) error {
		for _, r := range records {
			if r.Offset == rec.Offset {
				rt.Clock.observed(r.Timestamp.UnixMilli(), sent)
			}
		}
		return nil
	})
}
