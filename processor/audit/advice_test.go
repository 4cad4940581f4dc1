package audit

import (
	"math"
	"strings"
	"testing"
	"time"
)

// folded folds a key first and copies after delays, each so often, then the lateness of
// further keys.
func folded(t *testing.T, delays map[time.Duration]int, late ...time.Duration) *Counted {
	t.Helper()
	f := NewFold(FoldOptions{KeysMax: 1 << 20, Now: testNow})
	start, key := testNow-100*int64(day/time.Millisecond), uint64(0)
	add := func(d uint64, at int64) {
		if err := f.Add(&Event{Offset: int64(f.events)}, &Key{Digest: digestOf(d), Time: at}); err != nil {
			t.Fatal(err)
		}
	}
	for delay, n := range delays {
		for range n {
			key++
			f.fronts = []int64{math.MinInt64} // each pair is in order
			add(key, start)
			add(key, start+delay.Milliseconds())
		}
	}
	for _, l := range late {
		key++
		f.fronts = []int64{start}
		add(key, start-l.Milliseconds())
	}
	c, err := f.Finish(nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWindowIsTheLeastStepWithNearlyAllCopies(t *testing.T) {
	t.Parallel()
	month := 30 * day.Milliseconds()
	for _, v := range []struct {
		name    string
		delays  map[time.Duration]int
		age     int64
		want    time.Duration
		warning string
	}{
		{"exactly 99.9 %", map[time.Duration]int{time.Minute: 9990, 2 * time.Minute: 10}, month, time.Minute, ""},
		{"less than 99.9 %", map[time.Duration]int{time.Minute: 9989, 2 * time.Minute: 11}, month, 5 * time.Minute, ""},
		{"a step later", map[time.Duration]int{24*time.Hour + time.Millisecond: 2000}, month, 3 * day, ""},
		{"few", map[time.Duration]int{time.Second: 999}, month, time.Minute, "only 999 copies"},
		{"none", nil, month, 0, ""},
		{"rises at the end of the log", map[time.Duration]int{time.Second: 9000, 20 * time.Hour: 1000}, day.Milliseconds(), day, "10 % of the copies come later than 12h, and the log is only 24h long"},
		{"longer than any step", map[time.Duration]int{100 * day: 1000}, 120 * day.Milliseconds(), 90 * day, "100 % of the copies come later than 60d"},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			a := folded(t, v.delays).Window(v.age)
			if a.Value != v.want || (v.warning == "") != (a.Warning == "") || !strings.Contains(a.Warning, v.warning) || a.Reason == "" {
				t.Errorf("%+v, want %v and %q", a, v.want, v.warning)
			}
		})
	}
}

func TestGraceIsTheLeastStepWithNearlyAllEvents(t *testing.T) {
	t.Parallel()
	for _, v := range []struct {
		name string
		n    int // events that are late, of 20,000
		late time.Duration
		want time.Duration
	}{
		{"in order", 0, 0, 10 * time.Minute},
		{"less than the default", 20, 4 * time.Minute, 10 * time.Minute},
		{"few are late", 2, 5 * time.Hour, 10 * time.Minute},
		{"too many are late", 3, 5 * time.Hour, 6 * time.Hour},
		{"later than any step", 30, 400 * day, 30 * day},
	} {
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			late := make([]time.Duration, v.n)
			for i := range late {
				late[i] = v.late
			}
			c := folded(t, map[time.Duration]int{time.Second: 10_000 - v.n/2}, late...)
			if a := c.Grace(); a.Value != v.want || a.Reason == "" {
				t.Errorf("%+v of %d late by %v, want %v", a, v.n, v.late, v.want)
			}
		})
	}
}

// TestGraceIsOfEachPartitionsOwnOrder: one partition is a day ahead of the other, and their records
// alternate. Each is in order, so the route needs no more than the default.
func TestGraceIsOfEachPartitionsOwnOrder(t *testing.T) {
	t.Parallel()
	f := NewFold(FoldOptions{KeysMax: 1 << 10, Now: testNow})
	for n := range int64(100) {
		for partition, ahead := range []int64{0, day.Milliseconds()} {
			e, k := Event{Partition: int32(partition), Offset: n}, Key{Digest: digestOf(uint64(2*n) + uint64(partition)), Time: testNow - 3*day.Milliseconds() + ahead + n}
			if err := f.Add(&e, &k); err != nil {
				t.Fatal(err)
			}
		}
	}
	c, err := f.Finish(nil)
	if err != nil {
		t.Fatal(err)
	}
	if a := c.Grace(); a.Value != 10*time.Minute || a.Covers != 1 {
		t.Errorf("%+v, want the default for all events", a)
	}
}

func TestDurationsAndSharesAsPeopleWriteThem(t *testing.T) {
	t.Parallel()
	for ms, want := range map[int64]string{0: "0s", 1500: "1.5s", 60_000: "1m", 86_400_000: "24h", 90_061_000: "25h 1m", 273_600_000: "3d 4h", 604_800_000: "7d"} {
		if got := Duration(ms); got != want {
			t.Errorf("%d ms: %q, want %q", ms, got, want)
		}
	}
	for share, want := range map[float64]string{0: "0 %", 1: "100 %", 0.5: "50 %", 0.9997: "99.97 %", 0.016: "1.6 %", 0.00012: "0.012 %", 0.999: "99.9 %"} {
		if got := Percent(share); got != want {
			t.Errorf("%v: %q, want %q", share, got, want)
		}
	}
}
