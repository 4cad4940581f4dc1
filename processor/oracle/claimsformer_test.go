package oracle

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
)

// TestClaimsCheckerFollowsFormerClaims: an event claims a key after its window, and each of
// the two operations gets its own outcome.
func TestClaimsCheckerFollowsFormerClaims(t *testing.T) {
	claims := *testClaims
	claims.Window = 100
	d := formerDigest(digest{}, 1)
	play := func() *claimLog {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.outcome("o1", 0, 1, 1, "")
		l.after = 150
		l.event("b")
		l.add("run", "b", "", "oncebus-verdict", "after_window", "oncebus-attempt", "2")
		l.outcome("o2", 1, 1, 1, "one")
		l.reply("a", "unique", "completed", "1", "one")
		l.outcome("o3", 1, 3, 2, "two")
		l.reply("b", "unique", "completed", "2", "two")
		l.outcome("o4", 1, 1, 1, "one") // repeats
		one := append(binary.AppendVarint([]byte{1, 2, 0, 3}, 1000), 0, 0, 1, 1)
		two := append(binary.AppendVarint([]byte{1, 2, 0, 3}, 1150), 0, 0, 3, 2)
		l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: two}, {Topic: "log", Key: d[:], Value: one}}
		return l
	}
	if wrong, counts := CheckClaims(&claims, play().live); len(wrong) > 0 || counts["former claims"] != 1 {
		t.Fatalf("%v: %s", counts, strings.Join(wrong, "\n"))
	}
	for topic, records := range play().live {
		if topic != "replies" && topic != "log" {
			continue
		}
		for n := range records {
			l := play()
			l.live[topic] = slices.Delete(l.live[topic], n, n+1)
			if wrong, _ := CheckClaims(&claims, l.live); len(wrong) != 1 {
				t.Errorf("without record %d of %s: %q", n, topic, wrong)
			}
		}
	}
	swapped := play()
	replies := swapped.live["replies"]
	replies[0].Value, replies[1].Value = replies[1].Value, replies[0].Value
	if wrong, _ := CheckClaims(&claims, swapped.live); len(wrong) != 4 {
		t.Errorf("with the results swapped: %q", wrong)
	}
}
