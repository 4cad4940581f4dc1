package demo

import "strconv"

// example is a set of commands to try.
type example struct {
	about    string
	commands []string // for a POSIX shell
}

// examples returns commands to try with a demo that accepts requests at addr.
func examples(addr string) []example {
	post := func(path, body string, more ...string) string {
		command := "curl -i http://" + addr + path
		for _, header := range more {
			command += " -H " + header
		}
		return command + " -d '" + body + "'"
	}
	operation := func(request, name string) string {
		return post("/operations", `{"accountId":"a1","requestId":`+strconv.Quote(request)+`,"operation":`+strconv.Quote(name)+`}`)
	}
	buy, sell, withdraw := operation("r1", "BUY"), operation("r2", "SELL"), operation("r3", "WITHDRAW")
	const delivery = `{"ref":"main"}`
	return []example{
		{"a trade signal; its duplicate, formatted differently; one with a missing key", []string{
			post("/signals", `{"traceId":"t1","symbol":"AAPL","action":"buy"}`),
			post("/signals", `{"action":"buy", "symbol":"AAPL", "traceId":"t1"}`),
			post("/signals", `{"symbol":"AAPL"}`),
		}},
		{"a webhook, and the provider's retry", []string{
			post("/webhooks", `{"eventId":"e1","resourceId":"p9","eventType":"paid","retryCount":0}`),
			post("/webhooks", `{"eventId":"e1","resourceId":"p9","eventType":"paid","retryCount":1}`),
		}},
		{"an operation; a moment later, its stored result", []string{buy, buy}},
		{"an operation that fails; a moment later it may be sent again, and succeeds", []string{sell, sell, sell}},
		{"an operation that waits for your outcome; the outcome, with the CLAIM printed here; its result", []string{
			withdraw, withdraw,
			post("/operations/outcomes", `{"withdrawn":100}`, `"Authorization: Bearer $SECRET"`, `"Oncebus-Claim-Token: $CLAIM"`, "'Oncebus-Outcome: completed'", "'Content-Type: application/json'"),
			withdraw,
		}},
		{"a webhook without a signature, with it, and captured and sent under another id", []string{
			post("/deliveries", delivery, "'X-GitHub-Delivery: d1'"),
			"SIGNATURE=$(printf %s '" + delivery + `' | openssl dgst -sha256 -hmac "$SECRET" -r | cut -d' ' -f1)`,
			post("/deliveries", delivery, "'X-GitHub-Delivery: d1'", `"X-Hub-Signature-256: sha256=$SIGNATURE"`),
			post("/deliveries", delivery, "'X-GitHub-Delivery: d2'", `"X-Hub-Signature-256: sha256=$SIGNATURE"`),
		}},
	}
}
