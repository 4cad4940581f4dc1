package security

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"oncebus/processor/kafka"
)

func TestExpiredClientCertificateIsAMistake(t *testing.T) {
	ca, cert, key := writeCertificates(t)
	settings := TLS{Enabled: true, CAFile: ca, CertFile: cert, KeyFile: key}
	if _, err := settings.load("ONCEBUS_TLS_"); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		if err := kafka.Pause(t.Context(), 100*365*24*time.Hour); err != nil { // by the bubble's clock, which starts in the year 2000
			t.Fatal(err)
		}
		if _, err := settings.load("ONCEBUS_TLS_"); err == nil || !strings.HasPrefix(err.Error(), "ONCEBUS_TLS_CERT_FILE: "+cert+" expired at ") {
			t.Errorf("got %v", err)
		}
	})
}
