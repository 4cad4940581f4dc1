//go:build unix

package main_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
)

// These tests check the HTTP responses of the five systems, each with its shipped
// routes file.

// sendTwice sends a request twice at the same time and returns both responses.
func (d *sender) sendTwice(path string, sign signer, body string) [2]answer {
	var barrier, sent sync.WaitGroup
	barrier.Add(2)
	var answers [2]answer
	for n := range answers {
		sent.Go(func() {
			barrier.Done()
			barrier.Wait()
			answers[n] = <-d.later(path, sign, body)
		})
	}
	sent.Wait()
	return answers
}

// TestSystemIngressTradeSignals is section 1: a duplicate gets 409.
func TestSystemIngressTradeSignals(t *testing.T) {
	byHTTP(t, "signals.yaml", unchanged, []string{"signals.raw"}, func(t *testing.T, s *system, d *sender) {
		d.post(signalsURL, unsigned, `{"traceId":"t-1"}`, "X-Other", "no").is("a signal", http.StatusAccepted, accepted)
		duplicate := d.post(signalsURL, unsigned, `{"traceId":"t-1"}`).problem("its duplicate", http.StatusConflict, "duplicate")
		s.awaitProcessed()
		first := s.count("signals.unique", 1)[0]
		if duplicate.Key != fmt.Sprintf("%x", sha256.Sum256([]byte("t-1"))) || duplicate.First == "" || duplicate.FirstTime.Before(time.Now().Add(-time.Hour)) {
			t.Errorf("a duplicate got %+v, the first event was emitted as %v", duplicate, first.Headers)
		}
		if expect(t, first, "key", "", "verdict", "", "reply-to", ""); headerOf(first, "content-type") != "application/json" || headerOf(first, "x-other") != "" {
			t.Errorf("the signal was emitted with headers %v", first.Headers)
		}

		const pairs = 20
		for n := range pairs { // of two signals at the same instant exactly one is emitted
			pair := d.sendTwice(signalsURL, unsigned, fmt.Sprintf(`{"traceId":"pair-%d"}`, n))
			if pair[0].status != http.StatusAccepted {
				pair[0], pair[1] = pair[1], pair[0]
			}
			pair[0].is("one of two", http.StatusAccepted, accepted)
			pair[1].problem("the other of two", http.StatusConflict, "duplicate")
		}

		// Without a trace id the details are the key. The order of the fields and the
		// other fields do not matter.
		d.post(signalsURL, unsigned, `{"symbol":"AAPL","exchange":"NASDAQ","action":"buy","timestamp":1700000000000}`).is("a signal without id", http.StatusAccepted, accepted)
		d.post(signalsURL, unsigned, `{"timestamp":1700000000000,"action":"buy","exchange":"NASDAQ","symbol":"AAPL","note":"again"}`).
			problem("its duplicate", http.StatusConflict, "duplicate")
		d.post(signalsURL, unsigned, `{"symbol":"AAPL","exchange":"NASDAQ","action":"buy","timestamp":1700000000001}`).is("a later one", http.StatusAccepted, accepted)

		// An alert in words, as TradingView sends one, has its text as the key.
		const alert = "AAPL crossed 178.5 at 2026-11-28T14:30:00Z"
		d.post(signalsURL, unsigned, alert, "Content-Type", "text/plain; charset=utf-8").is("an alert", http.StatusAccepted, accepted)
		d.post(signalsURL, unsigned, alert, "Content-Type", "text/plain; charset=utf-8").problem("its duplicate", http.StatusConflict, "duplicate")

		d.post(signalsURL, unsigned, `{"note":"refused: no key"}`).problem("a signal without key", http.StatusBadRequest, "missing_key")
		d.post(signalsURL, unsigned, `{refused: no JSON`).problem("no JSON", http.StatusBadRequest, "invalid")
		large := `{"traceId":"refused: too large","pad":"` + strings.Repeat("x", 1<<20) + `"}`
		d.post(signalsURL, unsigned, large).problem("a large signal", http.StatusRequestEntityTooLarge, "")
		d.post("/signals", unsigned, `{"traceId":"refused: unsigned"}`).problem("an unsigned signal", http.StatusUnauthorized, "")
		d.post("/signals?token=token-of-signal", unsigned, `{"traceId":"refused: wrong token"}`).problem("a wrong token", http.StatusUnauthorized, "")
		s.awaitProcessed()
		s.count("signals.unique", 4+pairs)
		s.verdicts("signals", map[string]int{"unique": 4 + pairs, "duplicate": 3 + pairs})
		s.nowhere("refused")
	})
}

// TestSystemIngressAfterTheWindow is the end of section 1, with a short window: after
// it the id is unused again.
func TestSystemIngressAfterTheWindow(t *testing.T) {
	inOneProcess(t, "signals.yaml", strings.NewReplacer("window: 24h", "window: 2s"), []string{"signals.raw"}, func(t *testing.T, s *system, d *sender) {
		d.post(signalsURL, unsigned, `{"traceId":"t-1"}`).is("a signal", http.StatusAccepted, accepted)
		eventually(t, "the window is over", func(context.Context) error {
			a := d.post(signalsURL, unsigned, `{"traceId":"t-1"}`)
			if a.status == http.StatusConflict {
				return errNotYet
			}
			a.is("a duplicate after its window", http.StatusAccepted, accepted)
			return nil
		})
		s.awaitProcessed()
		s.count("signals.unique", 2)
	})
}

// TestSystemIngressUserOperations is section 2: DUPLICATE_REQUEST while in progress, then the stored result byte for byte.
func TestSystemIngressUserOperations(t *testing.T) {
	inputs := []string{"operations.raw", "operations.outcomes"}
	byHTTP(t, "user-operations.yaml", strings.NewReplacer("lease: 5m", "lease: 3s"), inputs, func(t *testing.T, s *system, d *sender) {
		const duplicateRequest = `{"error":"DUPLICATE_REQUEST"}`
		send := func(account, request, operation string) answer {
			t.Helper()
			return d.post("/operations", withHMAC("OPERATIONS"), fmt.Sprintf(`{"accountId":%q,"requestId":%q,"operation":%q}`, account, request, operation), async...)
		}
		runs := func(what string, a answer) *kgo.Record {
			t.Helper()
			a.is(what, http.StatusAccepted, dispatched)
			a.replays(what, false)
			s.awaitProcessed()
			return s.newest("operations.run", what)
		}
		pending := func(what string, a answer) {
			t.Helper()
			if a.is(what, http.StatusConflict, duplicateRequest); a.header.Get("Retry-After") == "" {
				t.Errorf("%s is answered %v without Retry-After", what, a)
			}
		}

		// The same request id with another operation or account is another key.
		buy := runs(`"BUY"`, send("a1", "r1", "BUY"))
		runs(`"SELL"`, send("a1", "r1", "SELL"))
		runs(`"a2"`, send("a2", "r1", "BUY"))
		// Submitted, so that no lease ends meanwhile.
		d.outcome("/operations", "OPERATIONS_EXECUTOR", buy, "submitted", "")
		s.awaitProcessed()
		pending("a duplicate while it is processed", send("a1", "r1", "BUY"))

		// An executor without a Kafka client, with a result that is neither JSON nor text.
		const result = "bought: \x00\xff\r\n 1"
		d.outcome("/operations", "OPERATIONS_EXECUTOR", buy, "completed", result, "Oncebus-Result-Status", "201", "Content-Type", "application/x.result; v=1")
		s.awaitProcessed()
		for range 2 {
			a := send("a1", "r1", "BUY")
			a.isOf("a duplicate of a completed operation", http.StatusCreated, "application/x.result; v=1", result)
			a.replays("a duplicate of a completed operation", true)
		}
		// An executor with a Kafka client.
		s.answer("operations.outcomes", s.newest("operations.run", `"SELL"`), "completed", []byte(`{"sold":1}`))
		sold := send("a1", "r1", "SELL")
		sold.is("a duplicate of what was completed by Kafka", http.StatusOK, `{"sold":1}`)
		sold.replays("a duplicate of what was completed by Kafka", true)

		// A failure frees the key: a retry runs.
		for n, kind := range []string{"failed", "rejected", "forget"} {
			attempt := runs(kind, send("a3", kind, "BUY"))
			d.outcome("/operations", "OPERATIONS_EXECUTOR", attempt, kind, "no funds")
			s.awaitProcessed()
			again := runs(kind, send("a3", kind, "BUY"))
			if n < 2 { // forget allows a new claim
				expect(t, again, "attempt", "2", "verdict", "unique")
			}
			d.outcome("/operations", "OPERATIONS_EXECUTOR", again, "completed", "second")
			s.awaitProcessed()
			send("a3", kind, "BUY").is("a duplicate of the second attempt", http.StatusOK, "second")
		}

		// RESET changes the account: its key does not contain the account, and the token identifies the claim.
		change := func(user, account, operation string) answer {
			t.Helper()
			return d.post("/operations", withHMAC("OPERATIONS"), fmt.Sprintf(`{"userId":%q,"accountId":%q,"requestId":"r-reset","operation":%q}`, user, account, operation), async...)
		}
		reset := runs("r-reset", change("u1", "before", "RESET"))
		expect(t, reset, "route", "account-changes")
		d.outcome("/operations", "OPERATIONS_EXECUTOR", reset, "submitted", "")
		s.awaitProcessed()
		pending("a RESET from the account's new name", change("u1", "after", "RESET"))
		d.outcome("/operations", "OPERATIONS_EXECUTOR", reset, "completed", `{"account":"after"}`)
		s.awaitProcessed()
		change("u1", "after", "reset").is("a duplicate of RESET", http.StatusOK, `{"account":"after"}`)
		change("u2", "before", "RESET").problem("the same request id of another owner", http.StatusUnprocessableEntity, "collision")
		runs("START_CHALLENGE", change("u1", "after", "START_CHALLENGE"))

		// Without a request id it is forwarded and not stored, so a retry is forwarded too.
		for range 2 {
			d.post("/operations", withHMAC("OPERATIONS"), `{"accountId":"a4","operation":"BUY","note":"no id"}`, async...).is("no request id", http.StatusAccepted, accepted)
		}
		s.awaitProcessed()
		passed := 0
		for _, r := range s.output("operations.run") {
			if strings.Contains(string(r.Value), "no id") {
				passed++
				expect(t, r, "verdict", "missing_key", "claim-token", "")
			}
		}
		if passed != 2 {
			t.Errorf("%d operations without id ran, want 2", passed)
		}

		// A void operation completes with null, and a duplicate gets null.
		for _, kafka := range []bool{true, false} {
			request := fmt.Sprint("void-", kafka)
			void := runs(request, send("a5", request, "CLOSE"))
			if kafka {
				s.answer("operations.outcomes", void, "completed", nil)
			} else {
				d.outcome("/operations", "OPERATIONS_EXECUTOR", void, "completed", "")
				s.awaitProcessed()
			}
			a := send("a5", request, "CLOSE")
			a.isOf("a duplicate of a void operation", http.StatusNoContent, "", "")
			a.replays("a duplicate of a void operation", true)
		}

		operationsThatCrash(t, s, d, send)
		operationsRefused(s, d)
	})
}

// operationsThatCrash: after the lease of a crashed executor the next event takes over the claim, and the old token is rejected.
func operationsThatCrash(t *testing.T, s *system, d *sender, send func(account, request, operation string) answer) {
	t.Helper()
	send("a6", "crashed", "BUY").is("an operation", http.StatusAccepted, dispatched)
	s.awaitProcessed()
	old := s.newest("operations.run", "crashed")
	eventually(t, "the lease is over", func(context.Context) error {
		a := send("a6", "crashed", "BUY")
		if a.status == http.StatusConflict {
			return errNotYet
		}
		a.is("an operation after its lease", http.StatusAccepted, dispatched)
		return nil
	})
	s.awaitProcessed()
	again := s.newest("operations.run", "crashed")
	expect(t, again, "attempt", "2")
	d.outcome("/operations", "OPERATIONS_EXECUTOR", old, "completed", "first") // taken, and refused by who judges it
	d.outcome("/operations", "OPERATIONS_EXECUTOR", again, "completed", "second")
	s.awaitProcessed()
	send("a6", "crashed", "BUY").is("a duplicate after a crash", http.StatusOK, "second")
	dead := s.count("oncebus.dead-letter", 1) // the old outcome: another owner's RESET is no alarm
	if !slices.ContainsFunc(dead, func(r *kgo.Record) bool { return headerOf(r, "oncebus-verdict") == "invalid" }) {
		t.Errorf("dead letters %v, want the outcome of the first attempt", dead)
	}
}

// operationsRefused: requests with a wrong signature and invalid outcomes never reach Kafka.
func operationsRefused(s *system, d *sender) {
	s.t.Helper()
	const body = `{"accountId":"a7","requestId":"refused","operation":"BUY"}`
	d.post("/operations", unsigned, body).problem("an unsigned operation", http.StatusUnauthorized, "")
	d.post("/operations", withHMAC("OPERATIONS_EXECUTOR"), body).problem("another's signature", http.StatusUnauthorized, "")
	stale := func(h http.Header, body string, at time.Time) { withHMAC("OPERATIONS")(h, body, at.Add(-time.Hour)) }
	d.post("/operations", stale, body).problem("a stale operation", http.StatusUnauthorized, "")
	token := headerOf(s.newest("operations.run", "crashed"), "oncebus-claim-token")
	outcome := func(sign signer, headers ...string) answer {
		return d.post("/operations/outcomes", sign, "refused", headers...)
	}
	outcome(unsigned, "Oncebus-Claim-Token", token, "Oncebus-Outcome", "completed").problem("an unsigned outcome", http.StatusUnauthorized, "")
	outcome(withBearer(shippedSecrets["OPERATIONS"]), "Oncebus-Claim-Token", token, "Oncebus-Outcome", "completed").problem("a sender's outcome", http.StatusUnauthorized, "")
	executor := withBearer(shippedSecrets["OPERATIONS_EXECUTOR"])
	outcome(executor, "Oncebus-Outcome", "completed").problem("an outcome without token", http.StatusBadRequest, "")
	outcome(executor, "Oncebus-Claim-Token", token+"x", "Oncebus-Outcome", "completed").problem("an outcome with a broken token", http.StatusBadRequest, "")
	outcome(executor, "Oncebus-Claim-Token", token, "Oncebus-Outcome", "done").problem("an unknown outcome", http.StatusBadRequest, "")
	s.nowhere("refused")
}

// TestSystemIngressWebhooks is section 3: a duplicate gets a success.
func TestSystemIngressWebhooks(t *testing.T) {
	byHTTP(t, "webhooks.yaml", unchanged, []string{"webhooks.raw"}, func(t *testing.T, s *system, d *sender) {
		const received = `{"received":true}`
		// What the old system had in Redis: a webhook of which it knew the hash is a duplicate.
		hashes := filepath.Join(s.dir, "hashes.txt")
		if err := os.WriteFile(hashes, fmt.Appendf(nil, "webhook:%x\n", sha256.Sum256([]byte(`{"eventId":"old","eventType":"paid","resourceId":"r9"}`))), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, stderr, code := s.oncebus("", "seed", "--route", "webhooks", "--first-seen", fmt.Sprint(time.Now().Add(-time.Hour).UnixMilli()), hashes); code != cli.ExitStopped {
			t.Fatalf("seed: %d, %s%s", code, out, stderr)
		}
		d.post("/webhooks", asWebhook, `{"eventId":"old","resourceId":"r9","eventType":"paid","timestamp":1}`).is("a webhook of before", http.StatusOK, received)
		d.post("/webhooks", asWebhook, `{"eventId":"e1","resourceId":"r9","eventType":"paid","timestamp":1}`).is("a webhook", http.StatusOK, received)
		for _, duplicate := range []string{
			`{"eventId":"e1","resourceId":"r9","eventType":"paid","timestamp":1}`,
			`{"eventId":"e1","resourceId":"r9","eventType":"paid","timestamp":2}`,
			`{"eventId":"e1","resourceId":"r9","eventType":"paid","timestamp":1,"retryCount":3}`,
			`{ "eventType":"paid", "retryCount":2, "timestamp":9, "resourceId":"r9", "eventId":"e1" }`,
		} {
			d.post("/webhooks", asWebhook, duplicate).is("a duplicate", http.StatusOK, received)
		}
		d.post("/webhooks", asWebhook, `{"eventType":"refunded","resourceId":"r9","eventId":"e1"}`).is("another type", http.StatusOK, received)
		const refused = `{"eventId":"refused","resourceId":"r9","eventType":"paid"}`
		d.post("/webhooks", unsigned, refused).problem("an unsigned webhook", http.StatusUnauthorized, "")
		stale := func(h http.Header, body string, at time.Time) { asWebhook(h, body, at.Add(-10*time.Minute)) }
		d.post("/webhooks", stale, refused).problem("a stale webhook", http.StatusUnauthorized, "")
		forged := func(h http.Header, body string, at time.Time) { asWebhook(h, body+" ", at) }
		d.post("/webhooks", forged, refused).problem("a forged webhook", http.StatusUnauthorized, "")
		d.post("/webhooks", asWebhook, `{"eventId":"refused"}`).problem("half a webhook", http.StatusBadRequest, "missing_key")
		s.awaitProcessed()
		for _, r := range s.count("webhooks.unique", 2) {
			expect(t, r, "verdict", "", "route", "")
		}
		s.verdicts("webhooks", map[string]int{"unique": 2, "duplicate": 5})
		s.nowhere("refused")
		// The log has response and verdict of duplicates.
		logged := 0
		for _, line := range d.lines() {
			if line["msg"] == "request" && line["verdict"] == "duplicate" && line["status"] == float64(http.StatusOK) && line["route"] == "webhooks" {
				logged++
			}
		}
		if logged != 5 {
			t.Errorf("%d duplicates are in the access log, want 5", logged)
		}
	})
}

// orderOf is an order for this minute.
func orderOf(request string, at time.Time, account, details string) string {
	return fmt.Sprintf(`{"requestId":%q,"timestamp":%d,"account":%q,"symbol":"aapl","side":"Buy",%s}`, request, at.UnixMilli(), account, details)
}

// TestSystemIngressOrders is section 4: "processing" with the original request id, then the order id byte for byte.
func TestSystemIngressOrders(t *testing.T) {
	byHTTP(t, "orders.yaml", unchanged, []string{"orders.raw", "orders.outcomes"}, func(t *testing.T, s *system, d *sender) {
		minute := time.Now().Add(-30 * time.Minute).Truncate(time.Minute)
		order := func(request string, at time.Time, details string) answer {
			t.Helper()
			return d.post("/orders", withHMAC("ORDERS"), orderOf(request, at, "ACC123456", details), async...)
		}
		processing := func(what, status string, a answer) {
			t.Helper()
			if p := a.problem(what, http.StatusConflict, "in_progress"); p.FirstRequest != "q1" || a.header.Get("Oncebus-Claim-Status") != status {
				t.Errorf("%s is answered %v, want the original request q1 and status %s", what, a, status)
			}
		}
		const market = `"clientOrderId":"c1","quantity":100,"type":"market"`
		order("q1", minute.Add(59*time.Second), market).is("an order", http.StatusAccepted, dispatched)
		processing("a duplicate", "in_progress", order("q2", minute.Add(59*time.Second), market))
		s.awaitProcessed()
		placed := s.count("orders.unique", 1)[0]
		d.outcome("/orders", "ORDERS_EXECUTOR", placed, "submitted", "")
		s.awaitProcessed()
		processing("a duplicate past the minute's edge, of a submitted order", "submitted", order("q3", minute.Add(61*time.Second), market))
		d.outcome("/orders", "ORDERS_EXECUTOR", placed, "completed", `{"orderId":"X-1"}`, "Oncebus-Result-Status", "201")
		s.awaitProcessed()
		for _, at := range []time.Time{minute.Add(59 * time.Second), minute.Add(62 * time.Second)} {
			cached := order("q4", at, market)
			cached.is("a duplicate of a completed order", http.StatusCreated, `{"orderId":"X-1"}`)
			cached.replays("a duplicate of a completed order", true)
			if got := cached.header.Get("Oncebus-First-Request"); got != "q1" {
				t.Errorf("a duplicate of a completed order is answered %v, want the original request q1", cached)
			}
		}
		// The same key with other details: forwarded as a collision.
		collided := order("q5", minute.Add(59*time.Second), strings.Replace(market, "c1", "c2", 1))
		if collided.is("another order with the key", http.StatusAccepted, dispatched); collided.header.Get("Oncebus-Verdict") != "collision" {
			t.Errorf("another order with the key is answered %v, want the verdict collision", collided)
		}
		s.service.await("collision: two events with one key and different details")
		// A failed order may run again.
		const limit = `"clientOrderId":"c3","quantity":"1.000000005","type":"limit","limit":"187.25"`
		order("f1", minute, limit).is("a limit order", http.StatusAccepted, dispatched)
		s.awaitProcessed()
		d.outcome("/orders", "ORDERS_EXECUTOR", s.newest("orders.unique", "f1"), "failed", "the exchange is closed")
		s.awaitProcessed()
		if entry, stderr, _ := s.oncebus(orderOf("f1", minute, "ACC123456", limit), "get", "--route", "orders"); !strings.Contains(entry, "the exchange is closed") {
			t.Errorf("get shows no reason of the failure:\n%s%s", entry, stderr)
		}
		order("f2", minute, limit).is("an order that failed", http.StatusAccepted, dispatched)
		s.awaitProcessed()
		expect(t, s.newest("orders.unique", "f2"), "attempt", "2")
		// Accounts do not share keys.
		d.post("/orders", withHMAC("ORDERS"), orderOf("o1", minute.Add(59*time.Second), "OTHER", market), async...).is("another account's", http.StatusAccepted, dispatched)
		d.post("/orders", withHMAC("ECONOMY"), orderOf("refused", minute, "ACC123456", market)).problem("another's signature", http.StatusUnauthorized, "")
		s.awaitProcessed()
		s.count("orders.unique", 5)
		s.nowhere("refused")
	})
}

// TestSystemIngressCollision uses a key again with other details, on a route that rejects collisions.
func TestSystemIngressCollision(t *testing.T) {
	change := strings.NewReplacer("collision: forward", "collision: dead_letter")
	inOneProcess(t, "orders.yaml", change, []string{"orders.raw", "orders.outcomes"}, func(t *testing.T, s *system, d *sender) {
		now := time.Now()
		const details = `"clientOrderId":"c1","quantity":100,"type":"market"`
		d.post("/orders", withHMAC("ORDERS"), orderOf("q1", now, "A", details), async...).is("an order", http.StatusAccepted, dispatched)
		other := strings.Replace(details, "c1", "c2", 1)
		d.post("/orders", withHMAC("ORDERS"), orderOf("q2", now, "A", other)).problem("other details", http.StatusUnprocessableEntity, "collision")
		s.awaitProcessed()
		s.count("orders.unique", 1)
		expect(t, s.count("oncebus.dead-letter", 1)[0], "verdict", "collision")
	})
}

// TestSystemIngressEconomyOperations is section 5, with both policies.
func TestSystemIngressEconomyOperations(t *testing.T) {
	inputs := []string{"economy.raw", "economy.outcomes", "economy.webhooks.raw"}
	const grantBody = `{"account":"a","requestId":%q,"operation":"grant"}`
	grant := func(d *sender, request string) <-chan answer {
		return d.later("/economy", withHMAC("ECONOMY"), fmt.Sprintf(grantBody, request))
	}
	first := func(d *sender, request string) answer {
		return d.post("/economy", withHMAC("ECONOMY"), fmt.Sprintf(grantBody, request), async...)
	}
	t.Run("wait", func(t *testing.T) {
		// Longer than a test may take, so that every response came before the timeout.
		change := strings.NewReplacer("answer_timeout: 30s", "answer_timeout: 45s")
		byHTTP(t, "operations.yaml", change, inputs, func(t *testing.T, s *system, d *sender) {
			first(d, "r1").is("the first", http.StatusAccepted, dispatched)
			s.awaitProcessed()
			granted := s.newest("economy.run", "r1")
			waiting := []<-chan answer{grant(d, "r1"), grant(d, "r1")}
			s.awaitVerdicts("operations/in_progress", len(waiting))
			d.outcome("/economy", "ECONOMY_EXECUTOR", granted, "completed", "granted: \xff", "Oncebus-Result-Status", "201", "Content-Type", "text/x-grant")
			for _, duplicate := range append(waiting, nil) {
				what := "a duplicate that waited"
				if duplicate == nil {
					what, duplicate = "a duplicate", grant(d, "r1")
				}
				a := <-duplicate
				a.isOf(what, http.StatusCreated, "text/x-grant", "granted: \xff")
				a.replays(what, true)
			}
			for kind, status := range map[string]int{"failed": http.StatusBadGateway, "rejected": http.StatusUnprocessableEntity} { // neither consumes the key
				first(d, kind).is("the first", http.StatusAccepted, dispatched)
				s.awaitProcessed()
				before := s.service.events()["operations/in_progress"]
				duplicate := grant(d, kind)
				s.awaitVerdicts("operations/in_progress", before+1)
				d.outcome("/economy", "ECONOMY_EXECUTOR", s.newest("economy.run", kind), kind, "")
				(<-duplicate).problem("a duplicate of what is "+kind, status, "replayed")
				s.awaitProcessed()
				first(d, kind).is("the second attempt", http.StatusAccepted, dispatched)
				s.awaitProcessed()
				again := s.newest("economy.run", kind)
				expect(t, again, "attempt", "2")
				s.answer("economy.outcomes", again, "completed", []byte("granted"))
				(<-grant(d, kind)).is("a duplicate of the second attempt", http.StatusOK, "granted")
			}
			s.economyWebhooks(d)
		})
	})
	t.Run("reject", func(t *testing.T) {
		change := strings.NewReplacer("while_in_progress: wait", "while_in_progress: reject", "    max_waiting: 64\n", "")
		byHTTP(t, "operations.yaml", change, inputs, func(_ *testing.T, s *system, d *sender) {
			first(d, "r1").is("the first", http.StatusAccepted, dispatched)
			duplicate := <-grant(d, "r1")
			if p := duplicate.problem("its duplicate", http.StatusConflict, "in_progress"); p.FirstRequest != "r1" {
				s.t.Errorf("a duplicate is answered %v without the first's request id", duplicate)
			}
			s.awaitProcessed()
			d.outcome("/economy", "ECONOMY_EXECUTOR", s.newest("economy.run", "r1"), "completed", "granted")
			s.awaitProcessed()
			a := <-grant(d, "r1")
			a.is("a duplicate", http.StatusOK, "granted")
			a.replays("a duplicate", true)
			s.economyWebhooks(d)
		})
	})
	t.Run("no outcome", func(t *testing.T) {
		change := strings.NewReplacer("answer_timeout: 30s", "answer_timeout: 1s")
		inOneProcess(t, "operations.yaml", change, inputs, func(_ *testing.T, s *system, d *sender) {
			first(d, "r1").is("the first", http.StatusAccepted, dispatched)
			late := <-grant(d, "r1")
			if late.is("its duplicate, for which no outcome came", http.StatusAccepted, dispatched); late.header.Get("Location") == "" {
				s.t.Errorf("a duplicate without an outcome got %v without its location", late)
			}
			s.awaitProcessed()
			d.outcome("/economy", "ECONOMY_EXECUTOR", s.newest("economy.run", "r1"), "completed", "granted")
			s.awaitProcessed()
			(<-grant(d, "r1")).is("a duplicate", http.StatusOK, "granted")
		})
	})
}

// economyWebhooks: inbound webhooks have a namespace of their own, apart from operations.
func (s *system) economyWebhooks(d *sender) {
	s.t.Helper()
	d.post("/economy/webhooks", asWebhook, `{"eventId":"r1"}`).is("a webhook with an operation's id", http.StatusOK, `{"received":true}`)
	d.post("/economy/webhooks", asWebhook, `{"eventId":"r1"}`).is("its duplicate", http.StatusOK, `{"received":true}`)
	d.post("/economy/webhooks", withHMAC("ECONOMY"), `{"eventId":"refused"}`).problem("an operation's signature", http.StatusUnauthorized, "")
	d.post("/economy", asWebhook, `{"account":"a","requestId":"refused","operation":"grant"}`).problem("a webhook's signature", http.StatusUnauthorized, "")
	s.awaitProcessed()
	s.count("economy.webhooks.unique", 1)
	s.nowhere("refused")
}

// awaitVerdicts waits until at least so many events have a verdict, given as route/verdict.
func (s *system) awaitVerdicts(verdict string, want int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d events are %s", want, verdict), func(context.Context) error {
		if n := s.service.events()[verdict]; n < want {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}
