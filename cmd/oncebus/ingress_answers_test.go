//go:build unix

package main_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

// answersRoutes is a route whose first senders wait for their outcomes.
const answersRoutes = `routes:
  - name: payments
    topics: [APP.payments.raw]
    mode: claim
    key: [{header: idempotency-key}]
    fingerprint: [amount]
    window: 1h
    output: APP.payments.unique
    outcomes: APP.payments.outcomes
    replies: APP.payments.replies
    lease: 10m
    dead_letter: APP.dead
    http:
      path: /payments
      signature: {scheme: bearer, secret: SIGNALS}
      timeout: 45s
      answer: outcome
      answer_timeout: 45s
      events: {}
      idempotency_key: {docs: "https://developer.example.com/idempotency"}
      outcomes:
        signature: {scheme: bearer, secret: ORDERS_EXECUTOR}
`

// TestSystemFirstSenderOfAKilledInstance: first senders wait for their outcomes, and their ingress is killed with SIGKILL. After a
// restart of the processor too, each gets its outcome by GET from another instance, by its location or by its key, and by sending the
// request again. A client that followed the outcomes at the killed instance goes on from its last id at another one, and misses none.
// Every payment is executed once.
func TestSystemFirstSenderOfAKilledInstance(t *testing.T) {
	t.Parallel()
	scenario := func(w *world) {
		s := newSystem(w)
		s.settings = []string{"COMMIT_INTERVAL=20ms", "WORKERS=1"}
		s.begin("payments.raw")
		all := s.startInstances(3)
		sign := withBearer(shippedSecrets["SIGNALS"])
		const payments = 24
		lastID := all[0].events(sign, "", nil)
		location := all[0].post("/payments", sign, `{"amount":0}`, "Idempotency-Key", `"k0"`, "Prefer", "respond-async")
		if location.status != http.StatusAccepted || location.header.Get("Location") == "" {
			w.t.Fatalf("respond-async got %v", location)
		}
		errs := make([]error, payments)
		var clients sync.WaitGroup
		for n := 1; n < payments; n++ {
			clients.Go(func() {
				ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
				defer cancel()
				a, err := all[0].try(ctx, "/payments", sign, time.Now(), fmt.Sprintf(`{"amount":%d}`, n), "Idempotency-Key", fmt.Sprintf(`"k%d"`, n))
				if err == nil {
					errs[n] = fmt.Errorf("payment %d: got %v before its outcome", n, a)
				}
			})
		}
		eventually(w.t, "every payment is dispatched", func(context.Context) error {
			if n := len(w.output("payments.unique")); n < payments {
				return fmt.Errorf("%d of %d", n, payments)
			}
			return nil
		})
		all[0].kill()
		clients.Wait()
		if err := errors.Join(errs...); err != nil {
			w.t.Fatal(err)
		}
		s.service.kill()
		s.service = s.start("a", s.settings...)
		s.service.awaitReady()
		for _, r := range s.count("payments.unique", payments) {
			all[1].outcome("/payments", "ORDERS_EXECUTOR", r, "completed", strings.Replace(string(r.Value), "amount", "paid", 1), "Content-Type", "application/json", "Oncebus-Result-Status", "201")
		}
		for n := range payments {
			path, headers := "/payments", []string{"Idempotency-Key", fmt.Sprintf(`"k%d"`, n)}
			if n == 0 {
				path, headers = location.header.Get("Location"), nil
			}
			result := fmt.Sprintf(`{"paid":%d}`, n)
			all[1+n%2].awaitOutcome(path, sign, headers...).is(path, http.StatusCreated, result)
			all[2-n%2].post("/payments", sign, fmt.Sprintf(`{"amount":%d}`, n), "Idempotency-Key", fmt.Sprintf(`"k%d"`, n)).is("again", http.StatusCreated, result)
		}
		var want []string
		for n := range payments {
			want = append(want, fmt.Sprintf(`"body":"{\"paid\":%d}"`, n))
		}
		all[2].events(sign, lastID, want)
		s.count("payments.unique", payments)
		for _, d := range all[1:] {
			d.stop()
		}
		s.service.stop()
	}
	onKafka(t, func(t *testing.T, broker *kafkatest.Broker) {
		scenario(newWorldAt(t, answersRoutes, broker.Seeds(), broker.Admin(), broker.External()))
	}, func(t *testing.T) {
		cluster := embedded.Start(t)
		scenario(newWorldAt(t, answersRoutes, cluster.ListenAddrs(), cluster.Admin(), false))
	})
}

// awaitOutcome asks for an outcome until it is there.
func (d *sender) awaitOutcome(path string, sign signer, headers ...string) (a answer) {
	d.t.Helper()
	eventually(d.t, "the outcome of "+path, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+path, http.NoBody)
		if err != nil {
			return err
		}
		for n := 0; n < len(headers); n += 2 {
			req.Header.Set(headers[n], headers[n+1])
		}
		sign(req.Header, "", time.Now())
		if a, err = d.do(req); err == nil && (a.status == http.StatusAccepted || a.status == http.StatusServiceUnavailable) {
			err = fmt.Errorf("got %v", a)
		}
		return err
	})
	return a
}

// events follows the outcomes from an id on until each of the texts is in one, and returns the last id. The connection stays open until
// the test or its process ends.
func (d *sender) events(sign signer, lastID string, texts []string) (id string) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), realDeadline)
	d.t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+"/payments/events", http.NoBody)
	if err != nil {
		d.t.Fatal(err)
	}
	sign(req.Header, "", time.Now())
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	resp, err := d.client.Do(req)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { _ = resp.Body.Close() })
	lines := bufio.NewScanner(resp.Body)
	for (id == "" || len(texts) > 0) && lines.Scan() {
		field, value, _ := strings.Cut(lines.Text(), ": ")
		switch field {
		case "id":
			id = value
		case "data":
			texts = slices.DeleteFunc(texts, func(text string) bool { return strings.Contains(value, text) })
		}
	}
	if resp.StatusCode != http.StatusOK || id == "" || len(texts) > 0 {
		d.t.Fatalf("status %d, no outcome has %q: %v", resp.StatusCode, texts, lines.Err())
	}
	return id
}
