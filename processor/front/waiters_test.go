package front

import (
	"strings"
	"testing"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// TestAnswerOfAnotherKeyIsIgnored: it also leaves the capacity for the right one.
func TestAnswerOfAnotherKeyIsIgnored(t *testing.T) {
	d := rules.Derived{Route: &rules.Route{}, Finding: rules.Keyed, Key: [32]byte{1}}
	other := strings.Repeat("02", 32)
	for _, c := range []struct {
		name     string
		adjacent bool
		answers  []wire.Answer
		want     string // the reasons of the delivered ones
	}{
		{"its own", false, []wire.Answer{{Key: wire.KeyText(&d.Key), Reason: "a"}}, "a"},
		{"others", false, []wire.Answer{{Key: other}, {}, {Key: other, HasOutcome: true}, {Key: wire.KeyText(&d.Key), Reason: "a"}}, "a"},
		{"outcome", false, []wire.Answer{{Key: wire.KeyText(&d.Key), OutcomeFollows: true, Reason: "a"}, {Key: other, HasOutcome: true}, {Key: wire.KeyText(&d.Key), HasOutcome: true, Reason: "b"}}, "ab"},
		{"outcome of an adjacent bucket", true, []wire.Answer{{Key: other, HasOutcome: true}, {Key: wire.KeyText(&d.Key), OutcomeFollows: true, Reason: "a"}, {Key: other}, {Key: other, HasOutcome: true, Reason: "b"}}, "ab"},
	} {
		d.HasAdjacent = c.adjacent
		q := newWaiter(&d)
		for i := range c.answers {
			q.deliver(&c.answers[i])
		}
		got := ""
		for len(q.answers) > 0 {
			a := <-q.answers
			got += a.Reason
		}
		if got != c.want {
			t.Errorf("%s: delivered %q, want %q", c.name, got, c.want)
		}
	}
}

// TestAnswerOfAnotherTokenIsIgnored: any producer of the outcomes topic can write the address
// of a request. A start gets the answer to its own token only, and an event gets none.
func TestAnswerOfAnotherTokenIsIgnored(t *testing.T) {
	for _, c := range []struct {
		name, token string
		want        int
	}{{"start", "mine", 1}, {"event", "", 0}} {
		q := &waiter{answers: make(chan wire.Answer, 2), token: c.token}
		for _, token := range []string{"other", "mine", "other"} {
			q.deliver(&wire.Answer{Token: token, Granted: true})
		}
		if len(q.answers) != c.want {
			t.Errorf("%s: %d answers, want %d", c.name, len(q.answers), c.want)
		}
	}
	q := &waiter{answers: make(chan wire.Answer, 2), token: "mine"}
	if q.deliver(&wire.Answer{}); len(q.answers) != 0 {
		t.Error("a start got the verdict on an event without a key")
	}
}

// TestRequestIDs: an id is unused, and does not follow from earlier ones.
func TestRequestIDs(t *testing.T) {
	a := newWaiters([32]byte{1})
	first := a.begin(&waiter{})
	again := newWaiters([32]byte{1}) // which draws the same
	again.waiting[first] = &waiter{}
	if second := again.begin(&waiter{}); second == first || second-first < 1<<32 || a.get(first) == nil || a.get(second) != nil {
		t.Errorf("drew %x, then %x", first, second)
	}
	if n := testing.AllocsPerRun(100, func() {
		q := a.waiting[first]
		a.end(first)
		first = a.begin(q)
	}); n != 0 {
		t.Errorf("a request id takes %v allocations", n)
	}
}
