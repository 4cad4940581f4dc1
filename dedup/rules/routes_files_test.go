package rules

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestShippedRouteFilesParse(t *testing.T) {
	files, err := filepath.Glob("../../deployments/routes/*.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("found %v, error %v: want at least signals.yaml and webhooks.yaml", files, err)
	}
	demo, err := filepath.Glob("../../cmd/oncebus/demo/*.yaml")
	if err != nil || len(demo) < 2 {
		t.Fatalf("found %v, error %v: want those of the demo", demo, err)
	}
	for _, file := range append(files, demo...) {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rs, err := ParseRoutes(filepath.Base(file), data)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if len(rs.Warnings) > 0 {
			t.Errorf("%v", rs.Warnings)
		}
		for _, r := range rs.Routes {
			t.Logf("%s: %s", filepath.Base(file), r.KeyRule())
		}
	}
}

// TestShippedWebhooksHaveTheHashesOfTheOldSystem: SHA-256 of JSON.stringify with the three sorted names, in Python:
//
//	hashlib.sha256(b'{"eventId":"e1","eventType":"paid","resourceId":"r9"}').hexdigest()
func TestShippedWebhooksHaveTheHashesOfTheOldSystem(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../deployments/routes/webhooks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := parse(t, string(data)).NewDeriver(nil).Derive(&Input{Topic: "webhooks.raw", Value: []byte(`{"resourceId":"r9", "retryCount":1, "eventType":"paid", "eventId":"e1", "timestamp":7}`)})
	if key := hex.EncodeToString(got.Key[:]); key != "0081c02e5e4ff34b34a9dd26400cff9346b3bdd8f58a05b750cb403530a0a4c4" {
		t.Errorf("key %s, %v %s", key, got.Finding, got.Reason)
	}
}

// TestShippedOrdersHaveAKeyForEachAction: events of one group are one instruction, and those of two groups are two. A
// modification or close never has the key of a placement, nor that of another order or position.
func TestShippedOrdersHaveAKeyForEachAction(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../deployments/routes/orders.yaml")
	if err != nil {
		t.Fatal(err)
	}
	d := parse(t, string(data)).NewDeriver(nil)
	const details = `"account":"A","symbol":"AAPL","side":"BUY","quantity":100,"type":"LIMIT","limit":178.5,"timestamp":1700000000000`
	group := map[string]string{} // the group of each key, with its route
	for name, events := range map[string][]string{
		"orders: placement": {
			`{"requestId":"p1",` + details + `}`, `{"requestId":"p2","action":null,"stop":null,` + details + `}`, `{"action":" Place",` + details + `}`,
		},
		"orders: placement of another account": {`{"account":"B","symbol":"AAPL","side":"BUY","quantity":100,"type":"LIMIT","limit":178.5,"timestamp":1700000000000}`},
		"order-modifications: X-7 to the placement's details": {
			`{"requestId":"m1","action":"modify","orderId":"X-7",` + details + `}`,
			`{"requestId":"m2","action":"MODIFY","orderId":"X-7","account":"A","quantity":"100.0","limit":"178.50","stop":null}`,
		},
		"order-modifications: X-8 to the same details": {`{"action":"modify","orderId":"X-8",` + details + `}`},
		"order-modifications: of another account":      {`{"action":"modify","orderId":"X-7","account":"B","quantity":100,"limit":178.5}`},
		"order-modifications: another price":           {`{"action":"modify","orderId":"X-7","account":"A","quantity":100,"limit":178.51}`},
		"order-modifications: the quantity alone":      {`{"action":"modify","orderId":"X-7","account":"A","quantity":100}`, `{"action":"modify","orderId":"X-7","account":"A","quantity":100,"limit":null,"clientOrderId":null}`},
		"order-modifications: once more":               {`{"action":"modify","orderId":"X-7","account":"A","quantity":100,"clientOrderId":"c2"}`},
		"order-closes: of a position in a minute": {
			`{"requestId":"x1","account":"A","symbol":"AAPL","timestamp":1700000000000,"action":"close"}`,
			`{"requestId":"x2","account":"A","symbol":"aapl","timestamp":1700000009999,"action":"Close","quantity":null}`,
		},
		"order-closes: in the next minute": {`{"account":"A","symbol":"AAPL","timestamp":1700000060000,"action":"close"}`},
		"order-closes: of another symbol":  {`{"account":"A","symbol":"MSFT","timestamp":1700000000000,"action":"close"}`},
		"order-closes: of another account": {`{"account":"B","symbol":"AAPL","timestamp":1700000000000,"action":"close"}`},
	} {
		for i, event := range events {
			got := d.Derive(&Input{Topic: "orders.raw", Value: []byte(event)})
			if route, _, _ := strings.Cut(name, ":"); got.Finding != Keyed || got.Route.Name != route {
				t.Errorf("%s: %s: route %s, %v %s", name, event, got.Route.Name, got.Finding, got.Reason)
			}
			key := got.Digest.String()
			if i == 0 && group[key] != "" || i > 0 && group[key] != name {
				t.Errorf("%s has its key in common with %q: %s", name, group[key], event)
			}
			group[key] = name
		}
	}
	for event, want := range map[string]string{
		`{"action":"cancel",` + details + `}`:                       "match: no route takes this record",
		`{"action":"modify",` + details + `}`:                       "field orderId: absent",
		`{"action":"modify","orderId":"X-7","quantity":1}`:          "field account: absent",
		`{"action":"close","account":"A","symbol":"AAPL"}`:          "field timestamp: absent",
		`{"account":"A","symbol":"AAPL","timestamp":1700000000000}`: "field side: absent",
	} {
		if got := d.Derive(&Input{Topic: "orders.raw", Value: []byte(event)}); got.Finding == Keyed || !strings.Contains(got.Reason, want) {
			t.Errorf("%s: %v %s, want %s", event, got.Finding, got.Reason, want)
		}
	}
}
