package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
)

// TestJointAnswersOnlyLaterRequests: questions that wait for a request share the next one, a
// question for a key that it has waits for another, and none is answered by a request that
// was sent before it was asked.
func TestJointAnswersOnlyLaterRequests(t *testing.T) {
	var j Joint[int, string, string]
	type request struct {
		asks    map[int]string
		answers chan map[int]Answer[string]
	}
	sent := make(chan request)
	send := func(asks map[int]string) map[int]Answer[string] {
		r := request{asks, make(chan map[int]Answer[string])}
		sent <- r
		return <-r.answers
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]string{}
	ask := func(key int, what string) {
		wg.Go(func() {
			answer, err := j.Ask(t.Context(), key, what, send)
			mu.Lock()
			defer mu.Unlock()
			got[what] = fmt.Sprint(answer, " ", err)
		})
	}
	waiting := func(n int) {
		for {
			j.mu.Lock()
			have := len(j.waiting)
			j.mu.Unlock()
			if have == n {
				return
			}
		}
	}
	ask(1, "a")
	first := <-sent
	for n, q := range []struct {
		key  int
		what string
	}{{1, "b"}, {2, "c"}, {3, "d"}, {1, "e"}} {
		ask(q.key, q.what)
		waiting(n + 1)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := j.Ask(cancelled, 4, "f", send); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled question: %v", err)
	}
	first.answers <- map[int]Answer[string]{1: {Value: "1"}}
	second := <-sent
	if want := "map[1:b 2:c 3:d 4:f]"; fmt.Sprint(first.asks, second.asks) != "map[1:a] "+want {
		t.Errorf("requests %v and %v, want %s", first.asks, second.asks, want)
	}
	second.answers <- map[int]Answer[string]{1: {Value: "2"}, 2: {Err: errors.New("refused")}}
	third := <-sent
	third.answers <- map[int]Answer[string]{1: {Value: "3"}}
	wg.Wait()
	want := map[string]string{
		"a": "1 <nil>", "b": "2 <nil>", "c": " refused", "e": "3 <nil>",
		"d": fmt.Sprint(" ", kerr.UnknownServerError, ": the response lacks a part of the request"),
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("answers %v, want %v", got, want)
	}
	for sending := true; sending; { // the one that sent last looks for others after it has answered
		j.mu.Lock()
		sending = j.sending
		j.mu.Unlock()
	}
	if len(j.waiting) > 0 {
		t.Errorf("%d are waiting after the last answer", len(j.waiting))
	}
}
