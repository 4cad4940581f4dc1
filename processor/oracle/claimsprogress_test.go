package oracle

import (
	"encoding/binary"
	"strings"
	"testing"
)

// progress adds a progress record: the outcomes of topic 0 are read up to a time.
func (l *claimLog) progress(to int64, unread bool) {
	b := append(binary.AppendVarint([]byte{1, 0}, to), 2, 1, 1) // two partitions, both at that time
	if unread {
		b[len(b)-1] = 0
	}
	l.add("repartition", "", string(append(b, 0)), "oncebus-envelope", l.envelope(flagProgress, nil))
}

// TestClaimsLeasesEndByProgress: the fold ends a lease when the outcomes of its time are
// read, in every partition, and not by the clock.
func TestClaimsLeasesEndByProgress(t *testing.T) {
	claims := *testClaims
	claims.ByClock, claims.Wait = false, 0
	for name, c := range map[string]struct {
		to     int64
		unread bool
		again  bool
	}{
		"read":                      {to: 1101, again: true},
		"read to the lease's end":   {to: 1100},
		"one partition is unread":   {to: 1101, unread: true},
		"from the future":           {to: 99_000, again: true}, // counts as of when it was stored
		"nothing is known":          {},
		"read before the operation": {to: 900},
	} {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.now += 5000
		if c.to > 0 {
			l.progress(c.to, c.unread)
		}
		l.event("b")
		attempt := byte(1)
		if c.again {
			attempt = 2
			l.run("b", "2")
		} else {
			l.reply("b", "in_progress", "in_progress", "1", "")
		}
		l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1000), 0, 0, 1, attempt)}}
		if wrong, _ := CheckClaims(&claims, l.live); len(wrong) > 0 {
			t.Errorf("%s:\n%s", name, strings.Join(wrong, "\n"))
		}
		l.live["run"] = l.live["run"][:len(l.live["run"])-1]
		if wrong, _ := CheckClaims(&claims, l.live); len(wrong) == 0 {
			t.Errorf("%s: a dispatch is missing, and the check found nothing", name)
		}
	}
}
