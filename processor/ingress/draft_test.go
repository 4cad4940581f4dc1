package ingress

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// exampleKey is the key of the draft's example, section 2.2.
const exampleKey = `"8e03978e-40d5-43e8-bc93-6894a57f9324"`

// draftCase is a case of draft-ietf-httpapi-idempotency-key-header-07, by its section.
type draftCase struct {
	section, name string
	run           func(t *testing.T, b *bench, i *instance)
}

// draftCases are the examples and the error cases of the draft.
var draftCases = []draftCase{
	{"2.1", "KeyIsAString", func(t *testing.T, _ *bench, i *instance) {
		for n, key := range []string{exampleKey, `"a b"`, `"a\"b\\c"`, `"x";v=1;w`, ` "y" `} {
			i.post("/payments", `{"amount":1}`, draftHeaders(key, "Prefer", "respond-async")...).want(t, fmt.Sprint(n, " ", key), 202)
		}
	}},
	{"2.1", "AnotherItemIsMalformed", func(t *testing.T, _ *bench, i *instance) {
		for _, key := range []string{"8e03978e", "17", "1.5", "?1", ":cTE=:", `"open`, `"a" "b"`, `"a", "b"`, `"a"x`, `("a")`, "\"\u00e9\"", `""`, ``} {
			i.post("/payments", `{"amount":1}`, draftHeaders(key)...).draftProblem(t, key, 400, "idempotency-key-malformed", "Idempotency-Key is malformed")
		}
		i.post("/payments", `{"amount":1}`, draftHeaders(`"a"`, "Idempotency-Key", `"a"`)...).draftProblem(t, "twice", 400, "idempotency-key-malformed", "Idempotency-Key is malformed")
	}},
	{"2.2", "ExampleOfAUUID", func(t *testing.T, b *bench, i *instance) {
		i.pay(t, b, exampleKey, 1)
		i.post("/payments", `{"amount":1}`, draftHeaders(exampleKey)...).want(t, "again", 201, `{"paid":1}`)
	}},
	{"2.2", "KeysAreIndependent", func(t *testing.T, b *bench, i *instance) {
		i.pay(t, b, `"a"`, 1)
		i.pay(t, b, `"A"`, 2)
	}},
	{"2.3", "ExpiredKeyIsFree", func(t *testing.T, b *bench, i *instance) {
		headers := []string{"Authorization", "Bearer token-of-sender-b", "Idempotency-Key", exampleKey, "Prefer", "respond-async"}
		i.post("/short", `{}`, headers...).want(t, "first", 202).header(t, "first", "Oncebus-Attempt", "1")
		b.wait("the key to be free", func() bool {
			got := i.post("/short", `{}`, headers...)
			return got.StatusCode == http.StatusAccepted && got.Header.Get("Oncebus-Verdict") == "after_window"
		})
	}},
	{"2.4", "FingerprintOfSelectedElements", func(t *testing.T, b *bench, i *instance) {
		i.pay(t, b, exampleKey, 1)
		i.post("/payments", `{"requestId":"r2", "amount" : 1.0}`, draftHeaders(exampleKey)...).want(t, "another spelling", 201, `{"paid":1}`)
	}},
	{"2.6", "FirstTimeRequest", func(t *testing.T, b *bench, i *instance) {
		i.pay(t, b, exampleKey, 1)
	}},
	{"2.6", "RetryAfterSuccess", func(t *testing.T, b *bench, i *instance) {
		i.pay(t, b, exampleKey, 1)
		i.post("/payments", `{"amount":1}`, draftHeaders(exampleKey)...).want(t, "retry", 201, `{"paid":1}`).header(t, "retry", "Idempotent-Replayed", "true").header(t, "retry", "Content-Type", "application/json")
		if n := len(b.read("payments.unique", 1)); n != 1 {
			t.Errorf("processed %d times", n)
		}
	}},
	{"2.6", "RetryAfterError", func(t *testing.T, b *bench, i *instance) {
		first := i.later("/payments", `{"amount":1}`, draftHeaders(exampleKey)...)
		i.postOutcome("/payments", b.tokens("payments.unique", 1)[0], "completed", "no funds", "Content-Type", "text/plain", "Oncebus-Result-Status", "402").want(t, "outcome", 202)
		(<-first).want(t, "first", 402, "no funds")
		i.post("/payments", `{"amount":1}`, draftHeaders(exampleKey)...).want(t, "retry", 402, "no funds").header(t, "retry", "Content-Type", "text/plain")
	}},
	{"2.6", "ConcurrentRequest", func(t *testing.T, b *bench, i *instance) {
		first := i.later("/payments", `{"amount":1}`, draftHeaders(exampleKey)...)
		token := b.tokens("payments.unique", 1)[0]
		i.post("/payments", `{"amount":1}`, draftHeaders(exampleKey)...).want(t, "concurrent", 409)
		i.postOutcome("/payments", token, "completed", "1").want(t, "outcome", 202)
		(<-first).want(t, "first", 200, "1")
	}},
	{"2.7", "MissingKey", func(t *testing.T, _ *bench, i *instance) {
		p := i.post("/payments", `{"amount":1}`, bearer...).draftProblem(t, "missing", 400, "idempotency-key-missing", "Idempotency-Key is missing")
		if want := "This operation is idempotent and it requires correct usage of Idempotency Key."; p.Detail != want {
			t.Errorf("detail %q, want %q", p.Detail, want)
		}
		i.get("/payments", bearer...).draftProblem(t, "missing in a GET", 400, "idempotency-key-missing", "Idempotency-Key is missing")
	}},
	{"2.7", "ReusedWithAnotherPayload", func(t *testing.T, b *bench, i *instance) {
		i.pay(t, b, exampleKey, 1)
		p := i.post("/payments", `{"amount":2}`, draftHeaders(exampleKey)...).draftProblem(t, "reused", 422, "idempotency-key-reused", "Idempotency-Key is already used")
		if !strings.HasSuffix(p.Detail, "Idempotency Key MUST not be reused across different payloads of this operation.") {
			t.Errorf("detail %q", p.Detail)
		}
		i.post("/payments", `{}`, draftHeaders(exampleKey)...).draftProblem(t, "without the field", 422, "idempotency-key-reused", "Idempotency-Key is already used")
	}},
	{"2.7", "ReusedWhileInProcess", func(t *testing.T, _ *bench, i *instance) {
		i.post("/payments", `{"amount":1}`, draftHeaders(exampleKey, "Prefer", "respond-async")...).want(t, "first", 202)
		i.post("/payments", `{"amount":2}`, draftHeaders(exampleKey)...).draftProblem(t, "reused", 422, "idempotency-key-reused", "Idempotency-Key is already used")
	}},
	{"2.7", "OutstandingRequest", func(t *testing.T, _ *bench, i *instance) {
		i.post("/payments", `{"amount":1}`, draftHeaders(exampleKey, "Prefer", "respond-async")...).want(t, "first", 202)
		got := i.post("/payments", `{"amount":1}`, draftHeaders(exampleKey)...)
		p := got.header(t, "outstanding", "Retry-After", "1").draftProblem(t, "outstanding", 409, "idempotency-key-outstanding", "A request is outstanding for this Idempotency-Key")
		if p.Detail != "A request with the same Idempotency-Key for the same operation is being processed or is outstanding." || !strings.HasPrefix(got.Header.Get("Location"), "/payments/requests/") {
			t.Errorf("%+v, %v", p, got.Header)
		}
	}},
	{"2.7", "CorrectedRequestIsProcessed", func(t *testing.T, b *bench, i *instance) {
		i.post("/payments", `{"amount":1}`, bearer...).want(t, "missing", 400)
		i.post("/payments", `{"amount":1}`, draftHeaders("k")...).want(t, "malformed", 400)
		i.pay(t, b, `"k"`, 1)
	}},
	{"2.7", "OtherErrorsAreTheServers", func(t *testing.T, _ *bench, i *instance) {
		i.post("/payments", `{"amount":1}`, "Idempotency-Key", exampleKey).problem(t, "no credentials", "signature", 401)
		i.post("/payments", `{"amount":`, draftHeaders(exampleKey)...).problem(t, "no JSON", "invalid", 400)
	}},
}

// TestIdempotencyKeyDraft runs each case of the draft on an app of its own.
func TestIdempotencyKeyDraft(t *testing.T) {
	for _, c := range draftCases {
		t.Run(c.section+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			b, i := answerBench(t)
			c.run(t, b, i)
		})
	}
}

func draftHeaders(key string, more ...string) []string {
	return append(append([]string{"Idempotency-Key", key}, bearer...), more...)
}

// pay sends a payment that is the n-th of the topic, and its outcome.
func (i *instance) pay(t *testing.T, b *bench, key string, n int) {
	t.Helper()
	body, result := fmt.Sprintf(`{"amount":%d}`, n), fmt.Sprintf(`{"paid":%d}`, n)
	first := i.later("/payments", body, draftHeaders(key)...)
	i.postOutcome("/payments", b.tokens("payments.unique", n)[n-1], "completed", result, "Content-Type", "application/json", "Oncebus-Result-Status", "201").want(t, key, 202)
	(<-first).want(t, key, 201, result)
}

// draftProblem checks that a reply is a problem with a link to the documentation, in the body
// and as a header.
func (r reply) draftProblem(t *testing.T, what string, status int, name, title string) problemBody {
	t.Helper()
	p := r.problem(t, what, name, status)
	const docs = "https://developer.example.com/idempotency"
	if p.Title != title || p.Docs != docs {
		t.Errorf("%s: %+v", what, p)
	}
	r.header(t, what, "Link", "<"+docs+`>; rel="describedby"; type="text/html"`).header(t, what, "Content-Language", "en")
	if !json.Valid([]byte(r.text)) || r.StatusCode == http.StatusOK {
		t.Errorf("%s: %s", what, r.text)
	}
	return p
}
