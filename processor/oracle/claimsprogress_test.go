package oracle

import (
	"encoding/binary"
	"strings"
	"testing"
)

// progress adds a progress record: the outcomes of topic 0 are read up to a time, and the
// executor's group has committed what was dispatched before others.
func (l *claimLog) progress(to int64, unread bool, committed ...int64) {
	b := append(binary.AppendVarint([]byte{1, 0}, to), 2, 1, 1) // two partitions, both at that time
	if unread {
		b[len(b)-1] = 0
	}
	b = append(b, byte(len(committed)))
	for _, to := range committed {
		b = append(append(b, 3), "ops"...)
		b = append(binary.AppendVarint(append(b, 1), to), 0)
	}
	l.add("repartition", string([]byte{envelopeVersion, flagProgress}), string(b))
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
		"read":                       {to: 1101, again: true},
		"read to the lease's end":    {to: 1100},
		"one partition is unread":    {to: 1101, unread: true},
		"from the future":            {to: 9000, again: true}, // counts as of when it was stored
		"before a step of the clock": {to: 99_000},
		"nothing is known":           {},
		"read before the operation":  {to: 900},
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
			l.reply("a", "in_progress", "in_progress", "1", "") // when the lease ended
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

// TestClaimsProgressAfterTheEnd: a progress record is written without input, so a process may
// stop before it has read the last one. Nothing is expected of that one.
func TestClaimsProgressAfterTheEnd(t *testing.T) {
	claims := *testClaims
	claims.ByClock = false
	for next, answered := range map[int64]bool{1: false, 2: true} {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.now += 5000
		l.progress(6000, false)
		if answered {
			l.reply("a", "in_progress", "in_progress", "1", "")
		}
		row := append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1000), 0, 0, 1, 1)
		l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: row}}
		l.add("log", "checkpoint", string(binary.AppendVarint([]byte{3, 0}, next))+"\x00\x02\x00", "oncebus-lease", "1000 0")
		if wrong, _ := CheckClaims(&claims, l.live); len(wrong) > 0 {
			t.Errorf("processed to %d:\n%s", next, strings.Join(wrong, "\n"))
		}
	}
}

// TestClaimsCheckerAnswersWhoWaitsAtABypass: an event that is forwarded without a claim moves
// stream time too, which evicts claims.
func TestClaimsCheckerAnswersWhoWaitsAtABypass(t *testing.T) {
	claims := *testClaims
	claims.Window = 100
	play := func(answered bool) *claimLog {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.id, l.after = 1, 500
		l.event("b")
		l.add("run", "b", "", "oncebus-verdict", "bypassed")
		l.reply("b", "bypassed", "bypassed", "0", "")
		if answered {
			l.reply("a", "in_progress", "in_progress", "1", "")
		}
		one := append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1000), 0, 0, 1, 1)
		two := append(binary.AppendVarint([]byte{1, 2, 0, 2}, 1500), 0, 0, 2, 1)
		checkpoint := binary.AppendVarint([]byte{3, flagBypassed}, 1)
		l.live["log"] = []Record{
			{Topic: "log", Key: []byte("checkpoint"), Value: append(checkpoint, 0, 2, 0, 1, 0, 2)},
			{Topic: "log", Key: make([]byte, 16), Value: one}, {Topic: "log", Key: append([]byte{1}, make([]byte, 15)...), Value: two},
		}
		return l
	}
	if wrong, _ := CheckClaims(&claims, play(true).live); len(wrong) > 0 {
		t.Error(strings.Join(wrong, "\n"))
	}
	if wrong, _ := CheckClaims(&claims, play(false).live); len(wrong) != 1 {
		t.Errorf("without the reply: %q", wrong)
	}
}

// TestClaimsLeasesBeginWhenTheExecutorCommits: with a group the fold ends a lease when the
// group has had the event for it, and the outcomes of that time are read.
func TestClaimsLeasesBeginWhenTheExecutorCommits(t *testing.T) {
	claims := *testClaims
	claims.ByClock, claims.Wait, claims.Group = false, 0, true
	for name, c := range map[string]struct {
		first, second int64 // what the group has committed by 2000, and by the time of the duplicate
		at            int64 // of the duplicate
		again         bool
	}{
		"committed a lease ago":          {1500, 1500, 2101, true},
		"committed less than that ago":   {1500, 1500, 2100, false},
		"committed the events before it": {1000, 1000, 9000, false},
		"committed since":                {900, 5000, 9000, false},
	} {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.event("a")
		l.run("a", "1")
		l.now = 2000
		l.progress(l.now, false, c.first)
		l.now = c.at
		l.progress(l.now, false, c.second)
		l.event("b")
		attempt := byte(1)
		if c.again {
			attempt = 2
			l.reply("a", "in_progress", "in_progress", "1", "")
			l.run("b", "2")
		} else {
			l.reply("b", "in_progress", "in_progress", "1", "")
		}
		l.live["log"] = []Record{{Topic: "log", Key: make([]byte, 16), Value: append(binary.AppendVarint([]byte{1, 2, 0, 1}, 1000), 0, 0, 1, attempt)}}
		if wrong, _ := CheckClaims(&claims, l.live); len(wrong) > 0 {
			t.Errorf("%s:\n%s", name, strings.Join(wrong, "\n"))
		}
	}
}
