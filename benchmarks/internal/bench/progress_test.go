package bench

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgressSaysHowLongItTakes before the first run by a guess, then by the runs so far.
func TestProgressSaysHowLongItTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := startProgress(&out, 3, 7*time.Minute)
		<-time.After(20 * time.Second)
		p.Done("%d events", 5)
		<-time.After(40 * time.Second)
		p.Done("again")
		<-time.After(30 * time.Second)
		p.Done("the last")
		want := "3 runs, about 21m0s\n" +
			"1 of 3, about 40s left: 5 events\n" +
			"2 of 3, about 30s left: again\n" +
			"3 of 3, about 0s left: the last\n"
		if out.String() != want {
			t.Errorf("it says\n%swant\n%s", out.String(), want)
		}
	})
}
