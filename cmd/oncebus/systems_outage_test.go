//go:build linux

package main_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// smallDisk is a separate disk for the state of the system's process.
type smallDisk struct {
	*kafkatest.Disk
	s *system
}

func newSmallDisk(s *system) *smallDisk {
	s.t.Helper()
	// Only the percentage pauses tasks, whatever the size of the disk.
	s.settings = []string{"STATE_FAIL_OPEN_AFTER=100ms", "DISK_MIN_FREE_PERCENT=10", "DISK_MIN_FREE_BYTES=0"}
	return &smallDisk{kafkatest.MountDisk(s.t, s.stateDir("a"), "96m"), s}
}

// fill fills the disk until tasks pause.
func (d *smallDisk) fill() {
	d.s.t.Helper()
	d.Fill(8)
}

// bypassing waits until that many tasks bypass their stores.
func (d *smallDisk) bypassing(want int) {
	d.s.t.Helper()
	eventually(d.s.t, fmt.Sprintf("%d tasks bypass their stores", want), func(ctx context.Context) error {
		tasks, err := d.s.service.metric(ctx, "oncebus_tasks")
		if err == nil && tasks["bypassing"] != want {
			err = fmt.Errorf("tasks by state: %v", tasks)
		}
		return err
	})
}

// end clears the disk and waits until every task uses its store.
func (d *smallDisk) end() {
	d.s.t.Helper()
	d.Clear()
	d.bypassing(0)
	d.s.service.awaitReady()
	d.s.awaitProcessed()
}

// pass produces an event, and waits until it is emitted as bypassed.
func (s *system) pass(topic, output string, at time.Time, format string, args ...any) {
	s.t.Helper()
	unchecked := func() (n int) {
		for _, r := range s.output(output) {
			if headerOf(r, "oncebus-verdict") == "bypassed" {
				n++
			}
		}
		return n
	}
	before := unchecked()
	s.produce(&kgo.Record{Topic: s.topic(topic), Timestamp: at.Truncate(time.Millisecond), Value: fmt.Appendf(nil, format, args...)})
	eventually(s.t, "an event is bypassed", func(context.Context) error {
		if n := unchecked(); n != before+1 {
			return fmt.Errorf("%d bypassed events in %s, before %d", n, output, before)
		}
		return nil
	})
}

// TestSystemWebhooksWithoutState is the end of section 3: when the store fails, events
// are forwarded with the verdict bypassed, and counted.
func TestSystemWebhooksWithoutState(t *testing.T) {
	onEveryBroker(t, "webhooks.yaml", unchanged, func(_ *testing.T, s *system) {
		d := newSmallDisk(s)
		s.begin("webhooks.raw")
		now := time.Now()
		const event = `{"eventId":%q,"resourceId":"r9","eventType":"paid"}`
		s.send("webhooks.raw", 0, now, event, "known")
		d.fill()
		d.bypassing(6)
		s.pass("webhooks.raw", "webhooks.unique", now, event, "known")
		s.pass("webhooks.raw", "webhooks.unique", now, event, "new")
		s.verdicts("webhooks", map[string]int{"unique": 1, "bypassed": 2})
		d.end()
		s.send("webhooks.raw", 1, now, event, "known")
		s.send("webhooks.raw", 2, now, event, "new")
		s.send("webhooks.raw", 3, now, event, "later")
		s.count("webhooks.unique", 4)
		s.verdicts("webhooks", map[string]int{"unique": 2, "bypassed": 2, "duplicate": 2})
		s.service.stop()
	})
}

// TestSystemOrdersWithoutState is the same in section 4: orders are bypassed, and deduplication resumes by itself.
func TestSystemOrdersWithoutState(t *testing.T) {
	onEveryBroker(t, "orders.yaml", unchanged, func(t *testing.T, s *system) {
		d := newSmallDisk(s)
		s.begin("orders.raw", "orders.outcomes")
		now := time.Now()
		order := fmt.Sprintf(`{"requestId":%%q,"timestamp":%d,"account":%%q,"symbol":"AAPL","side":"BUY","clientOrderId":"c","quantity":1,"type":"market"}`, now.UnixMilli())
		s.send("orders.raw", 0, now, order, "q1", "A")
		d.fill()
		d.bypassing(6)
		s.pass("orders.raw", "orders.unique", now, order, "q2", "B")
		expect(t, s.newest("orders.unique", "q2"), "verdict", "bypassed", "claim-token", "")
		expect(t, s.reply("orders.replies", "q2"), "verdict", "bypassed", "request-id", "q2")
		d.end()
		s.send("orders.raw", 1, now, order, "q3", "B")
		expect(t, s.reply("orders.replies", "q3"), "verdict", "duplicate", "claim-status", "forwarded")
		s.answer("orders.outcomes", s.newest("orders.unique", "q1"), "completed", []byte("X-1"))
		s.send("orders.raw", 2, now, order, "q4", "A")
		expect(t, s.reply("orders.replies", "q4"), "verdict", "replayed")
		s.count("orders.unique", 2)
		s.service.stop()
	})
}

// TestSystemStopWithoutState: with on_state_failure: fail_closed events wait, and none is lost.
func TestSystemStopWithoutState(t *testing.T) {
	onEveryBroker(t, "webhooks.yaml", strings.NewReplacer("on_state_failure: fail_open", "on_state_failure: fail_closed"), func(t *testing.T, s *system) {
		d := newSmallDisk(s)
		s.begin("webhooks.raw")
		now := time.Now()
		const event = `{"eventId":%q,"resourceId":"r9","eventType":"paid"}`
		s.send("webhooks.raw", 0, now, event, "known")
		d.fill()
		eventually(t, "both dedup workers pause fetching", func(context.Context) error {
			if s.service.Log.Count("fetching paused") < 2 {
				return errNotYet
			}
			return nil
		})
		s.produce(&kgo.Record{Topic: s.topic("webhooks.raw"), Timestamp: now, Value: fmt.Appendf(nil, event, "new")})
		// The task has fetched the event, and begins no transaction.
		s.taken(s.topicsOf(s.inputs))
		s.count("webhooks.unique", 1)
		s.verdicts("webhooks", map[string]int{"unique": 1, "bypassed": 0})
		d.Clear()
		s.service.awaitReady()
		s.awaitProcessed()
		s.count("webhooks.unique", 2)
		s.service.stop()
	})
}
