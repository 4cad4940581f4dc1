//go:build unix

package main_test

import (
	"net/http"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestSystemOperationWithoutARequestIDAnswersItsCaller: nothing is stored of it, so it runs each time, and each caller gets the outcome
// of its own run, from an executor on Kafka or by HTTP.
func TestSystemOperationWithoutARequestIDAnswersItsCaller(t *testing.T) {
	inOneProcess(t, "user-operations.yaml", unchanged, []string{"operations.raw", "operations.outcomes"}, func(t *testing.T, s *system, d *sender) {
		runs := 0
		run := func(account string) (caller <-chan answer, event *kgo.Record) {
			t.Helper()
			caller = d.later("/operations", withHMAC("OPERATIONS"), `{"operation":"BUY","accountId":"`+account+`"}`)
			runs++
			s.awaitVerdicts("user-operations/missing_key", runs)
			s.awaitProcessed()
			event = s.newest("operations.run", `"`+account+`"`)
			expect(t, event, "verdict", "missing_key", "claim-token", "", "route", "user-operations")
			return caller, event
		}
		caller, event := run("a1")
		second, again := run("a2")
		reply := func(event *kgo.Record) kgo.RecordHeader {
			return withHeader("oncebus-reply-to", []byte(headerOf(event, "oncebus-reply-to")))
		}
		s.produce(&kgo.Record{Topic: s.topic("operations.outcomes"), Value: []byte(`{"bought":2}`), Headers: []kgo.RecordHeader{reply(again), withHeader("oncebus-outcome", []byte("completed"))}})
		(<-second).is("the second operation", http.StatusOK, `{"bought":2}`)
		s.produce(&kgo.Record{Topic: s.topic("operations.outcomes"), Value: []byte("no funds"), Headers: []kgo.RecordHeader{reply(event), withHeader("oncebus-outcome", []byte("rejected"))}})
		rejected := <-caller
		if p := rejected.problem("a rejected operation", http.StatusUnprocessableEntity, "missing_key"); p.Detail != "no funds" {
			t.Errorf("a rejected operation got %v without the executor's text", rejected)
		}

		caller, event = run("a3")
		executor := withBearer(shippedSecrets["OPERATIONS_EXECUTOR"])
		to := headerOf(event, "oncebus-reply-to")
		d.post("/operations/outcomes", executor, "", "Oncebus-Reply-To", to, "Oncebus-Outcome", "submitted").problem("submitted without a claim", http.StatusBadRequest, "")
		d.post("/operations/outcomes", executor, "", "Oncebus-Reply-To", "x", "Oncebus-Outcome", "completed").problem("an address of no request", http.StatusBadRequest, "")
		d.post("/operations/outcomes", executor, `{"bought":3}`, "Oncebus-Reply-To", to, "Oncebus-Outcome", "completed", "Oncebus-Result-Status", "201").is("its outcome", http.StatusAccepted, accepted)
		done := <-caller
		done.is("an operation of an executor by HTTP", http.StatusCreated, `{"bought":3}`)
		done.replays("an operation without a request id", false)
		s.awaitProcessed()
		s.count("operations.run", 3)
		s.count("oncebus.dead-letter", 0)
	})
}
