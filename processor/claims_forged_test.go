package processor_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// payRoute has the namespace that the holder of route ops tries to get at.
var payRoute = strings.ReplaceAll(strings.TrimPrefix(claimRoutes, "routes:\n"), "ops", "pay")

// forgery is the token of a claim of route pay with the namespace of route ops
// in it. A client with write access to ops.outcomes alone can make it.
func (b *bench) forgery(i *instance) dedup.Token {
	b.t.Helper()
	pay := operation("1", "first", 0)
	pay.Topic = "pay.raw"
	b.produce(pay)
	b.drain(i, "ops.raw", "ops.outcomes", "pay.raw", "pay.outcomes")
	token, err := dedup.ParseToken([]byte(header(b.read("pay.run")[0], wire.HeaderClaimToken)))
	must(b.t, err)
	token.NamespaceID = i.App().ByName["ops"].NamespaceID
	return token
}

// TestTokenOfAnotherNamespaceIsRefused, whatever it says, also if the ingress client
// writes the outcome: the claim stands, and the outcome is refused like one of a key
// without a row.
func TestTokenOfAnotherNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	for _, kind := range dedup.OutcomeKinds {
		t.Run(kind.String(), func(t *testing.T) {
			t.Parallel()
			b := newHTTPBench(t, fmt.Sprintf(claimRoutes+payRoute, "reject", "reject"))
			i := b.ready(b.start(b.config("one")))
			token := b.forgery(i)
			must(t, b.ingress("front").SubmitOutcome(t.Context(), b.routes.Routes[0], token.Append(nil), kind, []byte("forged"), nil))
			b.drainClaims(i)
			again := operation("1", "again", 1)
			again.Topic = "pay.raw"
			b.produce(again)
			b.drain(i, "ops.raw", "ops.outcomes", "pay.raw", "pay.outcomes")
			if n := len(b.read("pay.run")); n != 1 {
				t.Errorf("%d events of route pay went to the executor", n)
			}
			replies := b.replies("pay.replies")
			if len(replies) != 1 {
				t.Errorf("%d replies of route pay, want one", len(replies))
			}
			assertHeaders(t, replies["pay.raw/1/0"], map[string]string{wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "in_progress", wire.HeaderAttempt: "1"})
			if n := len(b.read("ops.replies")); n != 0 {
				t.Errorf("%d replies of route ops", n)
			}
			dead := b.read("dead")
			if len(dead) != 1 {
				t.Fatalf("%d dead letters, want the forged outcome", len(dead))
			}
			assertHeaders(t, dead[0], map[string]string{wire.HeaderReason: "outcome refused: no claim: the key has no row", wire.HeaderRoute: "ops", wire.HeaderKey: ""})
			if n := gather(t, i)[fmt.Sprintf(`oncebus_outcomes_total{kind="%v",result="refused",route="ops"}`, kind)]; n != 1 {
				t.Errorf("%v outcomes are counted as refused", n)
			}
		})
	}
}

// TestIngressClientRefusesATokenWithoutAnAttempt, as the command forget of older builds
// made it.
func TestIngressClientRefusesATokenWithoutAnAttempt(t *testing.T) {
	t.Parallel()
	b := newHTTPBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one")))
	f := b.ingress("front")
	assertAnswer(t, f.submit(request("1", "first")), "unique in_progress attempt 1 forwarded")
	token, err := dedup.ParseToken([]byte(header(b.lastRun("1"), wire.HeaderClaimToken)))
	must(t, err)
	token.Attempt, token.At = 0, dedup.Position{}
	err = f.SubmitOutcome(t.Context(), b.routes.Routes[0], token.Append(nil), dedup.OutcomeForget, nil, nil)
	if !errors.Is(err, front.ErrOutcome) || !strings.Contains(err.Error(), "names no attempt") {
		t.Errorf("a token without an attempt: %v", err)
	}
	must(t, f.conclude(b.lastRun("1"), dedup.OutcomeForget, nil))
	b.drainClaims(i)
	assertAnswer(t, f.submit(request("1", "second")), "unique in_progress attempt 2 forwarded")
}
