package processor_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/front"
	"oncebus/processor/wire"
)

// payRoute has the namespace that the token holder of route ops tries to reach.
var payRoute = strings.ReplaceAll(strings.TrimPrefix(claimRoutes, "routes:\n"), "ops", "pay")

// forgery returns the token of a claim of route pay, changed to name the namespace of route ops. A client that can
// write only to ops.outcomes can make it.
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

// TestTokenOfAnotherNamespaceIsRefused protects claims against a token of another namespace, whatever the outcome
// says and also if the ingress client writes it: the claim stands, and the outcome is refused like an outcome for a
// key without a row.
func TestTokenOfAnotherNamespaceIsRefused(t *testing.T) {
	t.Parallel()
	for _, kind := range dedup.OutcomeKinds {
		if kind.Asks() {
			continue // it gets an answer: TestScripts/starts
		}
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

// TestIngressClientRefusesATokenWithoutAnAttempt covers a token without an attempt, as the command forget of older
// builds made it.
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

// TestTokenOfAnotherAppIsRefused runs two apps with the same routes, whose executors send outcomes to one topic. Each
// app refuses the outcomes with the other app's tokens, and its own claims stand.
func TestTokenOfAnotherAppIsRefused(t *testing.T) {
	t.Parallel()
	routes := fmt.Sprintf(claimRoutes, "reject")
	b := newBench(t, routes)
	i := b.ready(b.start(b.config("one")))
	b.useRoutes(strings.NewReplacer("ops.run", "shadow.run", "ops.replies", "shadow.replies", "dead_letter: dead", "dead_letter: shadow.dead").Replace(routes))
	cfg := b.config("two")
	cfg.AppID = "shadow"
	shadow := b.ready(b.start(cfg))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	b.drainClaims(shadow)
	b.produce(outcomeOf(b.read("shadow.run")[0], "completed", []byte("of the shadow")))
	b.drainClaims(i)
	b.drainClaims(shadow)
	if replies := b.read("ops.replies"); len(replies) != 0 {
		t.Errorf("the shadow's outcome is replied to our sender: %q", replies[0].Value)
	}
	dead := b.read("dead")
	if len(dead) != 1 || !strings.Contains(header(dead[0], wire.HeaderReason), "the token is of another app: give each app outcomes topics of its own") {
		t.Errorf("dead letters %v, want the shadow's outcome with its reason", dead)
	}
	b.produce(outcomeOf(b.read("ops.run")[0], "completed", []byte("ours")))
	b.drainClaims(i)
	b.drainClaims(shadow)
	for topic, want := range map[string]string{"ops.replies": "ours", "shadow.replies": "of the shadow"} {
		if replies := b.read(topic); len(replies) != 1 || string(replies[0].Value) != want {
			t.Errorf("%s: %d replies, want one with %q", topic, len(replies), want)
		}
	}
}

// TestUpgradeKeepsTheOutcomesOfOpenClaims upgrades an app of an earlier build while a claim is in progress whose
// token does not name the app. While a process runs, tokens stay as they are. After a start of all processes new
// tokens name the app, and the old token still ends its own claim and no other.
func TestUpgradeKeepsTheOutcomesOfOpenClaims(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	b.beginAtLevel1()
	earlier := b.ready(b.start(b.config("one")))
	b.doctor("app", func(m *app.Manifest) { m.Version = 1 })
	second := b.ready(b.start(b.config("two")))
	must(t, earlier.stop())
	b.ready(second)
	b.produce(operation("1", "first", 0), operation("2", "first", 0))
	b.drainClaims(second)
	runOf := func(id string) *kgo.Record {
		runs := b.read("ops.run")
		slices.Reverse(runs)
		return runs[slices.IndexFunc(runs, func(r *kgo.Record) bool { return strings.Contains(string(r.Value), fmt.Sprintf(`"id":%q`, id)) })]
	}
	tokenOf := func(id string) dedup.Token {
		token, err := dedup.ParseToken([]byte(header(runOf(id), wire.HeaderClaimToken)))
		must(t, err)
		return token
	}
	if tokenOf("1").App != 0 || b.manifestOf("app").Version != 1 {
		t.Errorf("while another process runs: token %+v, manifest version %d", tokenOf("1"), b.manifestOf("app").Version)
	}
	b.produce(outcomeOf(runOf("2"), "failed", nil))
	b.drainClaims(second)
	must(t, second.stop())
	b.wait("the groups without members", func() bool {
		groups, err := b.admin.DescribeGroups(t.Context(), app.GroupName("app", app.StageRoute), app.GroupName("app", app.StageDedup))
		must(t, err)
		return len(groups) == 2 && !slices.ContainsFunc(groups.Sorted(), func(g kadm.DescribedGroup) bool { return len(g.Members) > 0 })
	})

	i := b.ready(b.start(b.config("three")))
	b.produce(outcomeOf(runOf("1"), "completed", []byte("done")), operation("2", "again", 0))
	b.drainClaims(i)
	assertHeaders(t, b.replies("ops.replies")["ops.raw/0/0"], map[string]string{wire.HeaderVerdict: "unique", wire.HeaderClaimStatus: "completed"})
	token := tokenOf("2")
	if token.App == 0 || token.App != i.App().TokenApp || b.manifestOf("app").Version != 2 {
		t.Errorf("after the upgrade: token %+v, manifest version %d", token, b.manifestOf("app").Version)
	}
	run := runOf("2")
	token.App = 0
	run.Headers = []kgo.RecordHeader{{Key: wire.HeaderClaimToken, Value: token.Append(nil)}}
	b.produce(outcomeOf(run, "completed", []byte("of another app")))
	b.drainClaims(i)
	dead := b.read("dead")
	if len(dead) != 1 || !strings.Contains(header(dead[0], wire.HeaderReason), "token names no app") {
		t.Errorf("dead letters %v, want the token without an app", dead)
	}
}

// TestSecondResultIsRefused completes one token twice with different results. The second result becomes a dead letter
// and counts as conflicting; the same result once more counts as a repeat.
func TestSecondResultIsRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.onePartition("one")))
	b.produce(operation("1", "first", 0))
	b.drainClaims(i)
	run := b.lastRun("1")
	for _, result := range []string{"order 17", "order 17", "order 18"} {
		b.produce(outcomeOf(run, "completed", []byte(result)))
		b.drainClaims(i)
	}
	dead := b.read("dead")
	if len(dead) != 1 || string(dead[0].Value) != "order 18" || !strings.Contains(header(dead[0], wire.HeaderReason), "it was executed twice") {
		t.Fatalf("dead letters %v, want the second result", dead)
	}
	counts := gather(t, i)
	for _, result := range []string{"applied", "repeated", "conflicting"} {
		if n := counts[fmt.Sprintf(`oncebus_outcomes_total{kind="completed",result=%q,route="ops"}`, result)]; n != 1 {
			t.Errorf("%v outcomes count as %s, want 1", n, result)
		}
	}
	b.produce(operation("1", "again", 0))
	b.drainClaims(i)
	if again := b.replies("ops.replies")["ops.raw/0/1"]; string(again.Value) != "order 17" {
		t.Errorf("a duplicate gets %q", again.Value)
	}
}
