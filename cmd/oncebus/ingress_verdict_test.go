//go:build unix

package main_test

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// TestSystemIngressWithoutVerdict: no processor runs for a while. Depending on the route, a request times out with 504 or 202, or does
// not wait for a verdict. The client can safely send the event again.
func TestSystemIngressWithoutVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		http   string
		status int
	}{
		"504":   {"timeout: 10s", http.StatusGatewayTimeout},
		"202":   {"timeout: 10s, on_timeout: 202", http.StatusAccepted},
		"async": {"answer: async, timeout: 45s", http.StatusAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part := "      " + strings.ReplaceAll(test.http, ", ", "\n      ") + "\n"
			s := onEmbedded(t, "signals.yaml", strings.NewReplacer("path: /signals\n", "path: /signals\n"+part))
			// One worker, so that the stop does not meet a rebalance.
			s.settings = []string{"COMMIT_INTERVAL=20ms", "WORKERS=1"}
			s.begin("signals.raw")
			d := s.startIngress("sender")
			d.post(signalsURL, unsigned, `{"traceId":"t-0"}`).is("the first event, which opens the connections", http.StatusAccepted, accepted)
			s.awaitProcessed()
			s.service.signal(syscall.SIGSTOP)
			for _, promise := range []<-chan answer{d.later(signalsURL, unsigned, `{"traceId":"t-1"}`), d.later(signalsURL, unsigned, `{"traceId":"t-1"}`)} {
				a := <-promise
				if test.status == http.StatusAccepted {
					a.is("an event without a verdict", http.StatusAccepted, accepted)
				} else {
					a.problem("an event without a verdict", test.status, "")
				}
			}
			s.service.signal(syscall.SIGCONT)
			s.awaitProcessed()
			s.count("signals.unique", 2)
			s.verdicts("signals", map[string]int{"unique": 2, "duplicate": 1})
			d.stop()
			s.service.stop()
		})
	}
}
