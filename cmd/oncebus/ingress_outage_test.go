//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

// outageRoutes has one route for each on_kafka_unavailable. Those that wait do so longer than the outage, except for brief.
const outageRoutes = `
routes:
  - name: refuse
    topics: [APP.refuse.raw]
    key: [{field: id}]
    window: 1h
    output: APP.refuse.unique
    dead_letter: APP.dead-letter
    http: {path: /refuse, signature: {scheme: none}, timeout: 45s}
  - name: hold
    topics: [APP.hold.raw]
    key: [{field: id}]
    window: 1h
    output: APP.hold.unique
    dead_letter: APP.dead-letter
    http: {path: /hold, signature: {scheme: none}, timeout: 45s, on_kafka_unavailable: wait}
  - name: brief
    topics: [APP.brief.raw]
    key: [{field: id}]
    window: 1h
    output: APP.brief.unique
    dead_letter: APP.dead-letter
    http: {path: /brief, signature: {scheme: none}, timeout: 3s, on_kafka_unavailable: wait}
`

// outage stops the broker and starts it again.
type outage struct {
	lasts      time.Duration
	away, back func()
}

// TestSystemIngressWithoutBus: no broker responds for 30 s. Requests are rejected immediately, or they wait for the broker or for
// the timeout. Memory does not grow, and no accepted event is missing.
func TestSystemIngressWithoutBus(t *testing.T) {
	t.Parallel()
	ran := false // like onKafka, with a broker for this test
	t.Run("kafka", func(t *testing.T) {
		broker := kafkatest.Start(t)
		ran = true
		s := newSystem(newWorldAt(t, outageRoutes, broker.Seeds(), broker.Admin(), false))
		must := func(do func() error) func() {
			return func() {
				if err := do(); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.withoutBus(outage{30 * time.Second, must(broker.Pause), must(broker.Resume)})
	})
	if ran && os.Getenv("ONCEBUS_TEST_EMBEDDED") != "true" {
		return
	}
	t.Run("embedded", func(t *testing.T) {
		cluster := embedded.Start(t)
		var away atomic.Bool
		cluster.Intercept(func(kmsg.Request) (kmsg.Response, error, bool) {
			return nil, errors.New("away"), away.Load()
		})
		s := newSystem(newWorldAt(t, outageRoutes, cluster.ListenAddrs(), cluster.Admin(), false))
		s.withoutBus(outage{5 * time.Second, func() { away.Store(true) }, func() { away.Store(false) }})
	})
}

// refusedBytes is the body size of a rejected request, refusedRequests their number.
// Their product exceeds the allowed growth of memory.
const (
	refusedBytes, refusedRequests, refusedAtOnce = 32 << 10, 5000, 200
	memoryGrowthMax                              = 96 << 20
)

func (s *system) withoutBus(o outage) {
	s.t.Helper()
	s.settings = []string{"COMMIT_INTERVAL=20ms"}
	s.begin("refuse.raw", "hold.raw", "brief.raw")
	// A busy machine needs long to read so many bodies.
	d := s.startIngress("sender", "INGRESS_READ_TIMEOUT=1m", "INGRESS_WRITE_TIMEOUT=2m")
	d.post("/refuse", unsigned, `{"id":"before"}`).is("an event before the outage", http.StatusAccepted, accepted)
	calm := d.memory()

	o.away()
	began := time.Now()
	refused := d.refusals()
	brief := d.briefly()
	// During the rest of the outage every request is rejected. In its second half
	// some requests wait.
	var held []<-chan answer
	ticker := time.NewTicker(kafkatest.AwaitInterval)
	defer ticker.Stop()
	for n := 0; time.Since(began) < o.lasts; n++ {
		<-ticker.C
		if held == nil && time.Since(began) > o.lasts/2 {
			held = d.hold()
		}
		id := fmt.Sprint("later-", n)
		refused = append(refused, id)
		if err := d.refuse(id, 0); err != nil {
			s.t.Error(err)
		}
	}
	if held == nil {
		held = d.hold()
	}
	if status, body, err := d.Get(s.t.Context(), "/readyz"); err != nil || status != http.StatusServiceUnavailable {
		s.t.Errorf("readyz is %d %s, %v without a broker", status, body, err)
	}
	o.back()
	most := d.memory()
	s.t.Logf("broker stopped for %v; memory before %d MiB, at most %d MiB; %d MiB were sent", time.Since(began), calm>>20, most>>20, refusedBytes*refusedRequests>>20)
	if most-calm > memoryGrowthMax {
		s.t.Errorf("memory grew from %d to %d bytes without a broker", calm, most)
	}

	// It recovers by itself, and the clients send the rejected events again.
	d.awaitReady()
	s.service.awaitReady()
	var kept []string
	for n, promise := range held {
		(<-promise).is("an event that waited", http.StatusAccepted, accepted)
		kept = append(kept, fmt.Sprint("hold-", n))
	}
	d.resend("/refuse", refused)
	d.resend("/brief", brief)
	s.drained(s.inputs, nil)
	s.onceEach("refuse.unique", "id", append(refused, "before"))
	s.onceEach("brief.unique", "id", brief)
	s.onceEach("hold.unique", "id", kept)
	d.stop()
	s.service.stop()
}

// refuse sends an event with a body of that size while Kafka is unavailable. It is
// rejected before its timeout.
func (d *sender) refuse(id string, size int) error {
	ctx, cancel := context.WithTimeout(d.t.Context(), 40*time.Second)
	defer cancel()
	body := fmt.Sprintf(`{"id":%q,"pad":%q}`, id, strings.Repeat("x", size))
	a, err := d.try(ctx, "/refuse", unsigned, time.Now(), body)
	if err == nil && (a.status != http.StatusServiceUnavailable || a.header.Get("Retry-After") == "") {
		err = fmt.Errorf("got %v, want 503 with Retry-After", a)
	}
	if err != nil {
		return fmt.Errorf("event %s without a broker: %w", id, err)
	}
	return nil
}

// each calls do for every id, at most atOnce at the same time.
func (d *sender) each(ids []string, atOnce int, do func(id string) error) {
	d.t.Helper()
	work := make(chan string, len(ids))
	for _, id := range ids {
		work <- id
	}
	close(work)
	errs := make([]error, atOnce)
	var workers sync.WaitGroup
	for n := range errs {
		workers.Go(func() {
			for id := range work {
				errs[n] = errors.Join(errs[n], do(id))
			}
		})
	}
	workers.Wait()
	if err := errors.Join(errs...); err != nil {
		d.t.Error(firstLines(err.Error(), 10))
	}
}

func (d *sender) refusals() []string {
	d.t.Helper()
	ids := numbered("refused", refusedRequests)
	d.each(ids, refusedAtOnce, func(id string) error { return d.refuse(id, refusedBytes) })
	return ids
}

// briefly sends events that time out before the broker runs again.
func (d *sender) briefly() []string {
	d.t.Helper()
	ids := numbered("brief", 200)
	began := time.Now()
	var promises []<-chan answer
	for _, id := range ids {
		promises = append(promises, d.later("/brief", unsigned, fmt.Sprintf(`{"id":%q}`, id)))
	}
	for _, promise := range promises {
		(<-promise).problem("an event after its timeout", http.StatusServiceUnavailable, "")
		if waited := time.Since(began); waited < 3*time.Second {
			d.t.Errorf("an event waited for %v, want its timeout of 3s", waited)
		}
	}
	return ids
}

// hold sends events that wait for Kafka.
func (d *sender) hold() (promises []<-chan answer) {
	for _, id := range numbered("hold", 200) {
		promises = append(promises, d.later("/hold", unsigned, fmt.Sprintf(`{"id":%q,"pad":%q}`, id, strings.Repeat("x", refusedBytes))))
	}
	return promises
}

// resend sends events until they have a verdict. Kafka may have accepted some of them late; those are
// duplicates.
func (d *sender) resend(path string, ids []string) {
	d.t.Helper()
	d.each(ids, 100, func(id string) error {
		ctx, cancel := context.WithTimeout(d.t.Context(), realDeadline)
		defer cancel()
		for {
			a, err := d.try(ctx, path, unsigned, time.Now(), fmt.Sprintf(`{"id":%q}`, id))
			switch {
			case err != nil || a.status == http.StatusAccepted || a.status == http.StatusConflict:
				return err
			case a.status != http.StatusServiceUnavailable && a.status != http.StatusGatewayTimeout:
				return fmt.Errorf("event %s, sent again: got %v", id, a)
			}
		}
	})
}

func numbered(name string, n int) []string {
	var ids []string
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%d", name, i))
	}
	return ids
}

// memory is the largest resident size that the process ever had, in bytes, without the shadow memory of the race detector, which
// is several times as large.
func (d *sender) memory() int {
	d.t.Helper()
	m, err := d.Metrics(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	bytes := int(m.Sum("go_memstats_sys_bytes"))
	if bytes == 0 {
		d.t.Fatal("no metric go_memstats_sys_bytes")
	}
	return bytes
}

func firstLines(text string, n int) string {
	lines := strings.SplitN(text, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "\n")
}
