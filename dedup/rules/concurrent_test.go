package rules

import (
	"fmt"
	"sync"
	"testing"
)

// TestDeriversAtOnceDeriveTheSameKeys: the derivers of several workers share the routes only. A
// projection once had its scratch space there: a name with escapes, which two workers decoded at
// the same time, was that of the other one's record, and the key that of another payload.
func TestDeriversAtOnceDeriveTheSameKeys(t *testing.T) {
	rs := parse(t, fuzzRoutes)
	routed, _ := rs.Inputs()
	const workers, rounds = 4, 3000
	payload := func(worker int) []byte { // names of one length, all of them with an escape
		name := fmt.Sprintf(`\u0061%c`, 'p'+worker)
		return fmt.Appendf(nil, `{%q:0,"%s":{"\u0062":1,"%s":2},"\u0074":3,"n":1,"id":"x"}`, "k", name, name)
	}
	var want [workers][]Derived
	for w := range workers {
		for _, topic := range routed {
			want[w] = append(want[w], rs.NewDeriver([]byte(testSecret)).Derive(&Input{Topic: topic, Value: payload(w), Timestamp: 1, Headers: headerMap{}}))
		}
	}
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			d, value := rs.NewDeriver([]byte(testSecret)), payload(w)
			for range rounds {
				for i, topic := range routed {
					if got := d.Derive(&Input{Topic: topic, Value: value, Timestamp: 1, Headers: headerMap{}}); got != want[w][i] {
						t.Errorf("worker %d, %s: %+v, want %+v", w, topic, got, want[w][i])
						return
					}
				}
			}
		})
	}
	all.Wait()
}
