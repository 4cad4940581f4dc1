//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

// keptOrders is the shipped file with the lines of its page that let no outage stop an order.
var keptOrders = strings.NewReplacer("      path: /orders\n", "      path: /orders\n      on_kafka_unavailable: keep\n      on_timeout: 202\n")

// TestSystemIngressKeepsOrders is about an outage, in section 3 and in section 4: neither Kafka nor the workers have to be there for an order. The ingress
// is killed while it keeps orders, and starts before Kafka is back. Each order is placed once, with its own time.
func TestSystemIngressKeepsOrders(t *testing.T) {
	t.Parallel()
	ran := false // like onKafka, with a broker for this test
	t.Run("kafka", func(t *testing.T) {
		broker := kafkatest.Start(t)
		ran = true
		s := newSystem(newWorldAt(t, shippedRoutes(t, "orders.yaml", keptOrders), broker.Seeds(), broker.Admin(), false))
		must := func(do func() error) func() {
			return func() {
				if err := do(); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.keepsOrders(must(broker.Pause), must(broker.Resume))
	})
	if ran && os.Getenv("ONCEBUS_TEST_EMBEDDED") != "true" {
		return
	}
	t.Run("embedded", func(t *testing.T) {
		cluster := embedded.Start(t)
		var away atomic.Bool
		cluster.Intercept(func(kmsg.Request) (kmsg.Response, error, bool) { return nil, errors.New("away"), away.Load() })
		s := newSystem(newWorldAt(t, shippedRoutes(t, "orders.yaml", keptOrders), cluster.ListenAddrs(), cluster.Admin(), false))
		s.keepsOrders(func() { away.Store(true) }, func() { away.Store(false) })
	})
}

func (s *system) keepsOrders(away, back func()) {
	s.t.Helper()
	s.settings = []string{"COMMIT_INTERVAL=20ms", "WORKERS=1"}
	s.begin("orders.raw", "orders.outcomes")
	d := s.startIngress("sender")
	order := func(request, account string) answer {
		s.t.Helper()
		return d.post("/orders", withHMAC("ORDERS"), orderOf(request, time.Now(), account, `"clientOrderId":"c1","quantity":100,"type":"market"`), async...)
	}
	order("before", "before").is("an order", http.StatusAccepted, dispatched)
	away()
	began := time.Now()
	ids := []string{"before"}
	for n := range 5 {
		id := fmt.Sprint("kept-", n)
		ids = append(ids, id)
		a := order(id, id)
		if a.is("an order without Kafka", http.StatusAccepted, `{"status":"accepted","type":"/responses/kept-unchecked"}`); a.header.Get("Location") == "" {
			s.t.Errorf("an order without Kafka got %v without its location", a)
		}
	}
	order("copy", "kept-0").is("a copy without Kafka", http.StatusAccepted, `{"status":"accepted","type":"/responses/kept-unchecked"}`)
	if status, body, err := d.Get(s.t.Context(), "/readyz"); err != nil || status != http.StatusOK {
		s.t.Errorf("readyz is %d %s, %v: no order would come", status, body, err)
	}
	ended := time.Now()
	if err := d.Kill(); err != nil {
		s.t.Fatal(err)
	}
	again := s.startAs("ingress", "sender", ingressSettings()...)
	again.await("events are kept from an earlier run")
	back()
	d = s.open(again)
	eventually(s.t, "the kept orders are delivered", func(ctx context.Context) error {
		kept, err := d.metric(ctx, "oncebus_http_kept_events")
		if err == nil && kept[""] != 0 {
			err = fmt.Errorf("%v are kept", kept)
		}
		return err
	})
	s.service.awaitReady()
	s.awaitProcessed()
	s.onceEach("orders.unique", "requestId", ids)
	for _, r := range s.count("orders.unique", len(ids)) {
		if !strings.Contains(string(r.Value), "before") && (r.Timestamp.Before(began.Add(-time.Second)) || r.Timestamp.After(ended)) {
			s.t.Errorf("an order that came between %v and %v has the time %v", began, ended, r.Timestamp)
		}
	}
	order("later", "kept-0").problem("a copy later", http.StatusConflict, "in_progress")

	s.service.signal(syscall.SIGSTOP)
	if a := order("unjudged", "unjudged"); a.status != http.StatusAccepted || a.body != accepted || a.header.Get("Location") == "" {
		s.t.Errorf("an order without workers got %v, want 202 with its location", a)
	}
	s.service.signal(syscall.SIGCONT)
	s.service.awaitReady()
	s.awaitProcessed()
	s.onceEach("orders.unique", "requestId", append(ids, "unjudged"))
	s.count("oncebus.dead-letter", 0)
	d.stop()
	s.service.stop()
}
