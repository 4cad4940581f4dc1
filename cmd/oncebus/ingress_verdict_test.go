//go:build unix

package main_test

import (
	"net/http"
	"strings"
	"syscall"
	"testing"
)

// TestRealIngressWithoutVerdict: nobody judges for a while. An answer says so by the route's choice, or never asked for a verdict,
// and to send the event again is safe.
func TestRealIngressWithoutVerdict(t *testing.T) {
	for name, test := range map[string]struct {
		http   string
		status int
	}{
		"504":   {"timeout: 3s", http.StatusGatewayTimeout},
		"202":   {"timeout: 3s, on_timeout: 202", http.StatusAccepted},
		"async": {"answer: async, timeout: 45s", http.StatusAccepted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			part := "      " + strings.ReplaceAll(test.http, ", ", "\n      ") + "\n"
			s := onEmbedded(t, "signals.yaml", strings.NewReplacer("path: /signals\n", "path: /signals\n"+part))
			// One worker, so that it is not stopped in the middle of sharing tasks with another.
			s.settings = []string{"COMMIT_INTERVAL=20ms", "WORKERS=1"}
			s.begin("signals.raw")
			d := s.startDoor("door")
			sign := withBearer(shippedSecrets["SIGNALS"])
			s.service.signal(syscall.SIGSTOP)
			for _, promise := range []<-chan answer{d.later("/signals", sign, `{"traceId":"t-1"}`), d.later("/signals", sign, `{"traceId":"t-1"}`)} {
				a := <-promise
				if test.status == http.StatusAccepted {
					a.is("an event that nobody judges", http.StatusAccepted, accepted)
				} else {
					a.problem("an event that nobody judges", test.status, "")
				}
			}
			s.service.signal(syscall.SIGCONT)
			s.settle()
			s.count("signals.unique", 1)
			s.verdicts("signals", map[string]int{"unique": 1, "duplicate": 1})
			d.stop()
			s.service.stop()
		})
	}
}
