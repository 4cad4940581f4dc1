//go:build linux

package main_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// TestSystemIngressWithoutState: local state cannot be used. Webhooks and orders are accepted, duplicates too; deduplication resumes
// by itself.
func TestSystemIngressWithoutState(t *testing.T) {
	taken := func(what string, a answer) {
		t.Helper()
		if a.is(what, http.StatusAccepted, `{"status":"accepted","type":"/responses/forwarded-unchecked"}`); a.header.Get("Oncebus-Verdict") != "bypassed" {
			t.Errorf("%s got %v, want the verdict bypassed", what, a)
		}
	}
	t.Run("webhooks", func(t *testing.T) {
		t.Parallel()
		s := onEmbedded(t, "webhooks.yaml", unchanged)
		disk := newSmallDisk(s)
		s.settings = append(s.settings, "COMMIT_INTERVAL=20ms")
		s.begin("webhooks.raw")
		d := s.startIngress("sender")
		send := func(id string) answer {
			return d.post("/webhooks", asWebhook, fmt.Sprintf(`{"eventId":%q,"resourceId":"r9","eventType":"paid"}`, id))
		}
		send("known").is("a webhook", http.StatusOK, `{"received":true}`)
		disk.fill()
		disk.bypassing(6)
		taken("a duplicate that is not recognized", send("known"))
		taken("a webhook that cannot be checked", send("new"))
		disk.end()
		for _, id := range []string{"known", "new"} {
			send(id).is("a duplicate", http.StatusOK, `{"received":true}`)
		}
		s.awaitProcessed()
		s.count("webhooks.unique", 3)
		s.verdicts("webhooks", map[string]int{"unique": 1, "bypassed": 2, "duplicate": 2})
		d.stop()
		s.service.stop()
	})
	t.Run("orders", func(t *testing.T) {
		t.Parallel()
		s := onEmbedded(t, "orders.yaml", unchanged)
		disk := newSmallDisk(s)
		s.settings = append(s.settings, "COMMIT_INTERVAL=20ms")
		s.begin("orders.raw", "orders.outcomes")
		d := s.startIngress("sender")
		now := time.Now()
		order := func(request, account string) answer {
			return d.post("/orders", withHMAC("ORDERS"), orderOf(request, now, account, `"clientOrderId":"c","quantity":1,"type":"market"`), async...)
		}
		order("q1", "A").is("an order", http.StatusAccepted, dispatched)
		disk.fill()
		disk.bypassing(6)
		taken("an order that cannot be checked", order("q2", "B"))
		disk.end()
		order("q3", "B").problem("its duplicate", http.StatusConflict, "duplicate")
		order("q4", "A").problem("a duplicate of the order before", http.StatusConflict, "in_progress")
		s.awaitProcessed()
		s.count("orders.unique", 2)
		d.stop()
		s.service.stop()
	})
}
