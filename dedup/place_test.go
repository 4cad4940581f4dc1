package dedup

import (
	"bytes"
	"fmt"
	"math"
	"testing"
)

// placesOf returns a claim in progress for which its first request and n duplicates by HTTP wait. Duplicate i has the
// address i, the id "i" and the deadline 1000+i.
func placesOf(t *testing.T, n int, rule ClaimRule) Row {
	t.Helper()
	var row Row
	for i := range n + 1 {
		ev := duplicateByHTTP(i, fmt.Sprint(i))
		ev.Request.Until = int64(1000 + i)
		c, err := DecideClaim(ev, row, i > 0, testWindow, rule, NoStreamTime)
		if err != nil || !c.Write || c.Replaced != nil {
			t.Fatalf("request %d: %+v, %v", i, c, err)
		}
		row = c.Row
	}
	return row
}

var testWindow = Window{Size: 1 << 40, Skew: 1 << 40}

func duplicateByHTTP(n int, id string) ClaimEvent {
	at := Position{Offset: int64(n)}
	return ClaimEvent{
		Event: Event{Digest: Digest{1}, Time: 500, At: at}, ReceivedAt: 500, AppToken: true,
		Request: Request{At: at, ID: []byte(id), ReplyTo: Address{Ingress: 1, Request: uint64(n)}},
	}
}

// TestPlaces covers which waiting request gives its place to a new duplicate.
func TestPlaces(t *testing.T) {
	const none, free = -1, -2
	for _, c := range []struct {
		name   string
		change func(ev *ClaimEvent, rule *ClaimRule)
		want   int // the request that it replaces
	}{
		{"a free place", func(_ *ClaimEvent, rule *ClaimRule) { rule.Wait = 4 }, free},
		{"no free place", func(*ClaimEvent, *ClaimRule) {}, none},
		{"the one that it names", func(ev *ClaimEvent, _ *ClaimRule) { ev.Replaces = Address{Ingress: 1, Request: 2} }, 2},
		{"the one that it names, though a place is free", func(ev *ClaimEvent, rule *ClaimRule) { ev.Replaces, rule.Wait = Address{Ingress: 1, Request: 2}, 4 }, 2},
		{"of another partition since", func(ev *ClaimEvent, _ *ClaimRule) { ev.Replaces = Address{Partition: 3, Ingress: 1, Request: 2} }, 2},
		{"of another ingress", func(ev *ClaimEvent, _ *ClaimRule) { ev.Replaces = Address{Ingress: 2, Request: 2} }, none},
		{"the first, whose event was dispatched", func(ev *ClaimEvent, _ *ClaimRule) { ev.Replaces = Address{Ingress: 1, Request: 0} }, none},
		{"the first, by its id", func(ev *ClaimEvent, _ *ClaimRule) { ev.Request.ID = []byte("0") }, none},
		{"its id", func(ev *ClaimEvent, _ *ClaimRule) { ev.Request.ID = []byte("3") }, 3},
		{"its id, by Kafka", func(ev *ClaimEvent, _ *ClaimRule) { ev.Request.ID, ev.Request.ReplyTo = []byte("3"), Address{} }, none},
		{"at the deadline", func(ev *ClaimEvent, _ *ClaimRule) { ev.ReceivedAt = 1001 }, none},
		{"after the deadline", func(ev *ClaimEvent, _ *ClaimRule) { ev.ReceivedAt = 1002 }, 1},
		{"after the deadline, by Kafka", func(ev *ClaimEvent, _ *ClaimRule) { ev.ReceivedAt, ev.Request.ReplyTo = 1002, Address{} }, 1},
		{"after the deadline, with another's id", func(ev *ClaimEvent, _ *ClaimRule) { ev.ReceivedAt, ev.Request.ID = 1002, []byte("3") }, 1},
		{"the namespace is full", func(ev *ClaimEvent, rule *ClaimRule) { rule.Wait, ev.Full = 4, true }, none},
		{"the namespace is full, and it names one", func(ev *ClaimEvent, rule *ClaimRule) {
			rule.Wait, ev.Full, ev.Replaces = 4, true, Address{Ingress: 1, Request: 2}
		}, 2},
		{"max_waiting was lowered since", func(ev *ClaimEvent, rule *ClaimRule) { rule.Wait, ev.Request.ID = 1, []byte("3") }, 3},
		{"nothing waits", func(ev *ClaimEvent, rule *ClaimRule) { rule.Wait, ev.Replaces = 0, Address{Ingress: 1, Request: 2} }, none},
	} {
		rule := ClaimRule{Lease: math.MaxInt64, Wait: 3}
		row := placesOf(t, 3, rule)
		ev := duplicateByHTTP(9, "")
		ev.Request.ID = nil
		c.change(&ev, &rule)
		got, err := DecideClaim(ev, row, true, testWindow, rule, NoStreamTime)
		if err != nil || got.Verdict != InProgress || got.Reply != (c.want == none) || got.Write == got.Reply || (got.Replaced != nil) != (c.want >= 0) {
			t.Errorf("%s: verdict %v, reply %v, write %v, replaced %v; %v", c.name, got.Verdict, got.Reply, got.Write, got.Replaced, err)
			continue
		}
		if got.Replaced != nil && got.Replaced.At.Offset != int64(c.want) {
			t.Errorf("%s: it took the place of %d, want %d", c.name, got.Replaced.At.Offset, c.want)
		}
		stored, err := DecodeClaim(got.Row.Result)
		if err != nil {
			t.Fatal(err)
		}
		var offsets []int64
		for _, r := range stored.Requests {
			offsets = append(offsets, r.At.Offset)
		}
		want := map[int]string{none: "[0 1 2 3]", free: "[0 1 2 3 9]", 1: "[0 2 3 9]", 2: "[0 1 3 9]", 3: "[0 1 2 9]"}[c.want]
		if fmt.Sprint(offsets) != want {
			t.Errorf("%s: %v wait, want %s", c.name, offsets, want)
		}
	}
}

// TestDispatchedRequestHasNoDeadline protects the reply of a dispatched request: its client already has a response,
// so its reply with the outcome stays due, also if the lease is over and the event is dispatched again.
func TestDispatchedRequestHasNoDeadline(t *testing.T) {
	rule := ClaimRule{Lease: 100, Wait: 1}
	row := placesOf(t, 0, rule)
	ev := duplicateByHTTP(1, "1")
	ev.ReceivedAt, ev.Request.Until = 700, 701
	c, err := DecideClaim(ev, row, true, testWindow, rule, NoStreamTime)
	if err != nil || !c.LeaseExpired {
		t.Fatalf("%+v, %v", c, err)
	}
	for i, r := range c.Claim.Requests {
		if r.Until != 0 {
			t.Errorf("request %d waits until %d", i, r.Until)
		}
	}
}

// TestDeadlinesAreOfClaimsThatNameTheApp protects that an earlier build reads every claim of an app that it can still
// run with, and that this build reads claims without a deadline.
func TestDeadlinesAreOfClaimsThatNameTheApp(t *testing.T) {
	timed := Claim{Requests: []Request{{At: Position{Offset: 1}, ReplyTo: Address{Ingress: 1, Request: 2}, Until: 5}, {At: Position{Offset: 2}}}}
	plain := timed
	plain.Requests = withoutDeadlines(timed.Requests)
	if !bytes.Equal(timed.Append(nil), plain.Append(nil)) {
		t.Error("a claim whose token does not name the app has deadlines")
	}
	timed.AppToken, plain.AppToken = true, true
	if flags := plain.Append(nil)[1]; flags&flagTimed != 0 {
		t.Errorf("a claim without deadlines has flags %#x", flags)
	}
	back, err := DecodeClaim(timed.Append(nil))
	if err != nil || back.Requests[0].Until != 5 || back.Requests[1].Until != 0 {
		t.Errorf("%+v, %v", back, err)
	}
}

// withoutDeadlines returns the requests without their deadlines.
func withoutDeadlines(requests []Request) (without []Request) {
	for _, r := range requests {
		r.Until = 0
		without = append(without, r)
	}
	return without
}
