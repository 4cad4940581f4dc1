//go:build unix

package main_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// TestSystemOrdersPlaceModifyAndClose: a modification to the details of a placement of the same minute runs, and so do that of
// another order and a close. Each twin gets the result of its own first, by HTTP and by Kafka.
func TestSystemOrdersPlaceModifyAndClose(t *testing.T) {
	inOneProcess(t, "orders.yaml", unchanged, []string{"orders.raw", "orders.outcomes"}, func(t *testing.T, s *system, d *sender) {
		now := time.Now()
		details := fmt.Sprintf(`"account":"M","symbol":"AAPL","side":"BUY","quantity":100,"type":"LIMIT","limit":178.5,"timestamp":%d`, now.UnixMilli())
		instructions := []struct {
			name, route string
			unique      int // of the route, with this one
			event       string
		}{
			{"placement", "orders", 1, details},
			{"modification of X-7", "order-modifications", 1, `"action":"modify","orderId":"X-7",` + details},
			{"modification of X-8", "order-modifications", 2, `"action":"modify","orderId":"X-8",` + details},
			{"close", "order-closes", 1, fmt.Sprintf(`"action":"close","account":"M","symbol":"AAPL","timestamp":%d`, now.UnixMilli())},
		}
		for n, x := range instructions {
			firstRequest := fmt.Sprintf("first-%d", n)
			first := d.later("/orders", withHMAC("ORDERS"), fmt.Sprintf(`{"requestId":%q,%s}`, firstRequest, x.event))
			s.awaitVerdicts(x.route+"/unique", x.unique)
			s.awaitProcessed()
			run := s.newest("orders.unique", firstRequest)
			expect(t, run, "route", x.route, "verdict", "unique", "attempt", "1")
			result := fmt.Sprintf(`{"result":%q}`, x.name)
			s.answer("orders.outcomes", run, "completed", []byte(result))
			(<-first).is("the first "+x.name, http.StatusOK, result)
			twin := d.post("/orders", withHMAC("ORDERS"), fmt.Sprintf(`{"stop":null,"requestId":"twin",%s}`, x.event))
			twin.is("the twin of the "+x.name, http.StatusOK, result)
			twin.replays("the twin of the "+x.name, true)
			s.send("orders.raw", 1, now, `{%s,"requestId":"kafka-%d"}`, x.event, n)
			reply := s.reply("orders.replies", fmt.Sprintf("kafka-%d", n))
			if expect(t, reply, "route", x.route, "verdict", "replayed", "first-request", firstRequest); string(reply.Value) != result {
				t.Errorf("the twin of the %s by Kafka got %q", x.name, reply.Value)
			}
		}
		s.count("orders.unique", len(instructions))
		// Only a key is missing, or a route: nothing is taken for a placement.
		d.post("/orders", withHMAC("ORDERS"), `{"action":"modify",`+details+`}`).problem("a modification without order id", http.StatusBadRequest, "missing_key")
		d.post("/orders", withHMAC("ORDERS"), `{"action":"cancel",`+details+`}`).problem("an unknown action", http.StatusBadRequest, "invalid")
		s.awaitProcessed()
		s.count("orders.unique", len(instructions))
	})
}
