package security

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/processor/kafka"
)

// TestRejectedCredentialsEndTheProcess after CredentialsPatience, in which an
// operator may change them.
func TestRejectedCredentialsEndTheProcess(t *testing.T) {
	rejected := fmt.Errorf("dial: %w", ExplainCredentials(kerr.SaslAuthenticationFailed, SASL{Username: "u", Mechanism: SASLPlain}))
	synctest.Test(t, func(t *testing.T) {
		sleep := func(d time.Duration) { // by the bubble's clock
			if err := kafka.Pause(t.Context(), d); err != nil {
				t.Fatal(err)
			}
		}
		p := Patience{Limit: CredentialsPatience}
		for waited := time.Duration(0); waited < CredentialsPatience; waited += time.Second {
			if p.Stops(rejected, time.Now()) {
				t.Fatalf("the process ends after %v", waited)
			}
			sleep(time.Second)
		}
		if !p.Stops(rejected, time.Now()) {
			t.Errorf("the process runs after %v", CredentialsPatience)
		}
		if p.Stops(rejected, time.Now().Add(-time.Hour)) {
			t.Error("the process ends at once, although the broker accepted the client for an hour")
		}
		sleep(CredentialsPatience)
		if p.Stops(errors.New("connection reset"), time.Now()) || p.Stops(rejected, time.Now()) {
			t.Error("an error of another kind does not restart the time limit")
		}
		if p.Stops(nil, time.Now()) || !p.Stops(kafka.ErrIllegalState, time.Now()) {
			t.Error("other errors are not classified")
		}
	})
}
