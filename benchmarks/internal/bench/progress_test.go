package bench

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgressSaysHowLongItTakes before the first run by a guess, then by the runs so far.
func TestProgressSaysHowLongItTakes(t *testing.T) {
	for _, c := range []struct {
		name    string
		guesses []time.Duration
		want    string
	}{
		{"equal runs", []time.Duration{7 * time.Minute, 7 * time.Minute, 7 * time.Minute}, "3 runs, about 21m0s\n" +
			"the first: about 7m0s\n" +
			"1 of 3, about 40s left: 5 events\n" +
			"2 of 3, about 30s left: again\n" +
			"3 of 3, about 0s left: the last\n"},
		{"a long last run", []time.Duration{10 * time.Second, 20 * time.Second, time.Minute}, "3 runs, about 1m30s\n" +
			"the first: about 10s\n" +
			"1 of 3, about 2m40s left: 5 events\n" +
			"2 of 3, about 2m0s left: again\n" +
			"3 of 3, about 0s left: the last\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				p := startRuns(&out, c.guesses)
				p.Next("the %s", "first")
				<-time.After(20 * time.Second)
				p.Done("%d events", 5)
				<-time.After(40 * time.Second)
				p.Done("again")
				<-time.After(30 * time.Second)
				p.Done("the last")
				if out.String() != c.want {
					t.Errorf("it says\n%swant\n%s", out.String(), c.want)
				}
			})
		})
	}
}
