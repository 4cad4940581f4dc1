package main

import (
	"strings"
	"testing"

	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
)

// TestGetSaysWhatARowMeans: get prints the verdict on the next event with the key.
func TestGetSaysWhatARowMeans(t *testing.T) {
	routes, err := settings.ReadRoutes("../../deployments/routes/operations.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * 3_600_000
	const until = "duplicates until  1970-01-03T00:00:00Z (172800000) in event time"
	for name, c := range map[string]struct {
		route string
		row   dedup.Row
		time  int64 // stream time
		state front.KeyState
		next  uint32
		want  []string
	}{
		"in its window":  {"operations", dedup.Row{First: day, Status: dedup.Completed, Attempt: 2}, 2 * day, front.Active, 0, []string{until, "key state         active\n"}},
		"no stream time": {"operations", dedup.Row{First: day, Status: dedup.ClaimInProgress, Attempt: 1}, dedup.NoStreamTime, front.Active, 0, []string{until, "key state         active\n"}},
		"freed": {"operations", dedup.Row{First: day, Status: dedup.Freed, Attempt: 1}, day, front.Free, 2,
			[]string{"status      freed", "key state   free: the next event with the key runs as attempt 2\nattempt     1\n"}},
		"its window is over": {"operations", dedup.Row{First: day, Status: dedup.Submitted, Attempt: 3}, 2*day + 1, front.Expired, 4,
			[]string{until, "key state         expired: only an event within the window is a duplicate; a later event runs as attempt 4\n"}},
		"retention over": {"operations", dedup.Row{First: day, Status: dedup.Completed, Attempt: 3}, 4 * day, front.Free, 1,
			[]string{"key state   free: its retention is over, and the row will be evicted; the next event with the key runs as attempt 1\n"}},
		"plain, its window is over": {"economy-webhooks", dedup.Row{First: day, Status: dedup.Seen}, 3 * day, front.Expired, 0,
			[]string{until, "key state         expired: only an event within the window is a duplicate; a later event is emitted\n"}},
	} {
		r := routes.Route(c.route)
		derived := rules.Derived{Route: r}
		shown := showLookup(&derived)
		shown.Found, shown.shownEntry = true, showEntry(&derived, &front.Entry{Row: c.row, StreamTime: c.time, Window: r.Span()})
		if shown.KeyState != c.state || shown.NextAttempt != c.next || (shown.DuplicatesUntil == 0) != (c.state == front.Free) {
			t.Errorf("%s: %+v", name, shown.shownEntry)
		}
		var text strings.Builder
		if err := shown.write(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%s: want %q in\n%s", name, want, &text)
			}
		}
		if shown.DuplicatesUntil == 0 && strings.Contains(text.String(), "duplicates until") {
			t.Errorf("%s:\n%s", name, &text)
		}
	}
	bypassed := front.Entry{Row: dedup.Row{First: day, Status: dedup.Submitted, Attempt: 1}, Claim: dedup.Claim{Bypassed: true}, StreamTime: day}
	if shown := showEntry(&rules.Derived{Route: routes.Route("operations")}, &bypassed); shown.Status != "forwarded" || shown.ClaimedAt != 0 {
		t.Errorf("forwarded without a claim: %+v", shown)
	}
}

// TestGetOfAStartedAttempt: no lease ends it, so get shows none, and who has the grant.
func TestGetOfAStartedAttempt(t *testing.T) {
	routes, err := settings.ReadRoutes("../../deployments/routes/operations.yaml")
	if err != nil {
		t.Fatal(err)
	}
	derived := rules.Derived{Route: routes.Route("operations")}
	for id, want := range map[string]string{"": "lease until", "a\xff\n": `"a` + "\uFFFD" + `\n", so no lease ends the attempt`} {
		entry := front.Entry{Row: dedup.Row{Status: dedup.ClaimInProgress, Attempt: 1}, Claim: dedup.Claim{Since: 5}}
		if id != "" {
			entry.Claim.StartID = []byte(id)
		}
		shown := showLookup(&derived)
		shown.Found, shown.shownEntry = true, showEntry(&derived, &entry)
		var text strings.Builder
		if err := shown.write(&text); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), want) || (shown.LeaseUntil == 0) != (id != "") {
			t.Errorf("start id %q: want %q in\n%s", id, want, &text)
		}
	}
}
