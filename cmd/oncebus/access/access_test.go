package access

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"oncebus/processor/kafkatest"
	"oncebus/processor/security"
)

const token = "0123456789abcdef"

func newGuard(t *testing.T, cfg Config) (*Guard, *prometheus.Registry) {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	g, err := New(cfg, reg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return g, reg
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "figures") })

// status is that of a request with the header Authorization; "" for none.
func status(t *testing.T, h http.Handler, authorization string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), "GET", "http://127.0.0.1/metrics", nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestWithoutSettingsEverybodyMayRead(t *testing.T) {
	g, _ := newGuard(t, Config{})
	if w := status(t, g.Protect(ok), ""); w.Code != 200 || w.Body.String() != "figures" || g.TLS() != nil {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

func TestToken(t *testing.T) {
	g, reg := newGuard(t, Config{Token: token})
	h := g.Protect(ok)
	for _, right := range []string{"Bearer " + token, "bearer " + token, "Bearer  " + token} {
		if w := status(t, h, right); w.Code != 200 {
			t.Errorf("%q: %d %s", right, w.Code, w.Body)
		}
	}
	wrong := []string{"", "Bearer", "Bearer ", token, "Basic " + token, "Bearer " + token + "x", "Bearer " + token[1:], "Bearer " + strings.ToUpper(token)}
	for _, authorization := range wrong {
		w := status(t, h, authorization)
		if w.Code != 401 || !strings.HasPrefix(w.Header().Get("WWW-Authenticate"), "Bearer") || strings.Contains(w.Body.String(), "figures") || strings.Contains(w.Body.String(), token) {
			t.Errorf("%q: %d %s", authorization, w.Code, w.Body)
		}
	}
	if n := testutil.ToFloat64(g.refused.WithLabelValues(refusedToken)); n != float64(len(wrong)) {
		t.Errorf("%v refusals are counted, want %d", n, len(wrong))
	}
	if problems, err := testutil.GatherAndLint(reg); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// TestTokenFileIsReadAgain: the new token is valid and the old one is not; half-written files
// change nothing.
func TestTokenFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(token + "\n")
	g, _ := newGuard(t, Config{Token: token, TokenFile: security.SecretPath(path)})
	now := time.Now()
	g.token.Now = func() time.Time { return now }
	h := g.Protect(ok)
	expect := func(sent string, want int) {
		t.Helper()
		if w := status(t, h, "Bearer "+sent); w.Code != want {
			t.Errorf("%s: %d, want %d", sent, w.Code, want)
		}
	}
	expect(token, 200)
	const next = "fedcba9876543210"
	for _, torn := range []string{"", "short"} {
		write(torn)
		now = now.Add(reloadInterval)
		expect(token, 200)
		expect(torn, 401)
	}
	write(next)
	now = now.Add(reloadInterval)
	expect(next, 200)
	expect(token, 401)
}

// TestStreamEndsWithItsToken: a stream that was begun with a token ends soon after the token is replaced.
func TestStreamEndsWithItsToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	kafkatest.ReplaceFile(t, path, []byte(token))
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGuard(t, Config{Token: token, TokenFile: security.SecretPath(path)})
		begun, ended := make(chan struct{}), make(chan struct{})
		stream := g.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(begun)
			<-r.Context().Done()
		}))
		go func() {
			defer close(ended)
			if w := status(t, stream, "Bearer "+token); w.Code != 200 {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		}()
		<-begun
		select {
		case <-ended:
			t.Error("the stream ended with its token valid")
		case <-time.After(time.Minute):
		}
		kafkatest.ReplaceFile(t, path, []byte("fedcba9876543210"))
		select {
		case <-ended:
		case <-time.After(3 * reloadInterval):
			t.Error("the stream goes on")
			t.FailNow()
		}
	})
}

// TestNamesOfOtherSites: a browser that a site sent here by its own name reads nothing, unless it has a token.
func TestNamesOfOtherSites(t *testing.T) {
	open, _ := newGuard(t, Config{})
	closed, _ := newGuard(t, Config{Token: token})
	for host, want := range map[string]int{
		"127.0.0.1:8080": 200, "[::1]:8080": 200, "[::1]": 200, "10.1.2.3": 200, "localhost:8080": 200, "oncebus-0:8080": 200, "oncebus-0.oncebus.prod.svc:8080": 200,
		"oncebus.prod.svc.cluster.local.": 200, "a.localhost": 200, "host.docker.internal": 200, "": 200,
		"evil.example:8080": 421, "EVIL.EXAMPLE": 421, "127.0.0.1.evil.example:80": 421, "localhost.evil.example": 421, "svc.evil.example": 421, "evil-svc.example.": 421,
	} {
		for g, want := range map[*Guard]int{open: want, closed: 200} {
			r := httptest.NewRequestWithContext(t.Context(), "GET", "/state", nil)
			r.Host = host
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			if g.Protect(ok).ServeHTTP(w, r); w.Code != want || want != 200 && strings.Contains(w.Body.String(), "figures") {
				t.Errorf("host %q, with a token %v: %d, want %d", host, g == closed, w.Code, want)
			}
		}
	}
}

// TestOpenAddressIsWarnedOf: one that other machines reach, while nothing is asked of them.
func TestOpenAddressIsWarnedOf(t *testing.T) {
	for _, c := range []struct {
		addr string
		cfg  Config
		want bool
	}{
		{"0.0.0.0:8080", Config{}, true}, {"[::]:8080", Config{}, true}, {"10.1.2.3:8080", Config{}, true}, {"host.example:8080", Config{}, true}, {":8080", Config{}, true},
		{"127.0.0.1:8080", Config{}, false}, {"[::1]:8080", Config{}, false}, {"localhost:8080", Config{}, false},
		{"0.0.0.0:8080", Config{Token: token}, false}, {"[::]:8080", Config{TLSClientCAFile: "x"}, false},
	} {
		var log strings.Builder
		c.cfg.WarnOpen(c.addr, slog.New(slog.NewTextHandler(&log, nil)))
		if (log.Len() > 0) != c.want || c.want && !strings.Contains(log.String(), "ONCEBUS_ADMIN_TOKEN") {
			t.Errorf("%s: %q", c.addr, log.String())
		}
	}
}

// TestClientCertificates: probes need no certificate, everything else needs one of the
// authority, and with a token both.
func TestClientCertificates(t *testing.T) {
	dir, inAnHour := t.TempDir(), time.Now().Add(time.Hour)
	own, other := kafkatest.NewAuthority(t, "own"), kafkatest.NewAuthority(t, "other")
	cert, key := own.Issue("server", inAnHour)
	cfg := Config{TLSCertFile: filepath.Join(dir, "cert.pem"), TLSKeyFile: filepath.Join(dir, "key.pem"), TLSClientCAFile: filepath.Join(dir, "clients.pem")}
	for path, content := range map[string][]byte{cfg.TLSCertFile: cert, cfg.TLSKeyFile: key, cfg.TLSClientCAFile: own.PEM()} {
		kafkatest.ReplaceFile(t, path, content)
	}
	for _, withToken := range []bool{false, true} {
		if withToken {
			cfg.Token = token
		}
		g, _ := newGuard(t, cfg)
		mux := http.NewServeMux()
		mux.Handle("/healthz", ok)
		mux.Handle("/metrics", g.Protect(ok))
		server := httptest.NewUnstartedServer(mux)
		server.TLS = g.TLS()
		server.StartTLS()
		t.Cleanup(server.Close)
		get := func(path string, shows *kafkatest.Authority, sent string) (int, error) {
			config := &tls.Config{RootCAs: own.Pool(), ServerName: "127.0.0.1"}
			if shows != nil {
				pair, err := tls.X509KeyPair(shows.Issue("client", inAnHour))
				if err != nil {
					t.Fatal(err)
				}
				config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
			}
			transport := &http.Transport{TLSClientConfig: config}
			defer transport.CloseIdleConnections()
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer "+sent)
			resp, err := transport.RoundTrip(r)
			if err != nil {
				return 0, err
			}
			return resp.StatusCode, resp.Body.Close()
		}
		if code, err := get("/healthz", nil, ""); code != 200 || err != nil {
			t.Errorf("probe without a certificate: %d, %v", code, err)
		}
		if code, err := get("/metrics", nil, token); code != 403 || err != nil {
			t.Errorf("metrics without a certificate: %d, %v", code, err)
		}
		if code, err := get("/metrics", other, token); err == nil {
			t.Errorf("metrics with a certificate of another authority: %d", code)
		}
		if code, err := get("/metrics", own, token); code != 200 || err != nil {
			t.Errorf("metrics with a certificate: %d, %v", code, err)
		}
		if code, err := get("/metrics", own, "wrong"); (code == 401) != withToken || err != nil {
			t.Errorf("metrics with a certificate and a wrong token: %d, %v; token set: %v", code, err, withToken)
		}
	}
}

func TestValidate(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"short token":            {Config{Token: "short"}, "ONCEBUS_ADMIN_TOKEN: has 5 bytes"},
		"authority without TLS":  {Config{TLSClientCAFile: "x"}, "ONCEBUS_ADMIN_TLS_CLIENT_CA_FILE: set without ONCEBUS_ADMIN_TLS_CERT_FILE"},
		"key without a cert":     {Config{TLSKeyFile: "/nowhere"}, "ONCEBUS_ADMIN_TLS_KEY_FILE"},
		"certificate that lacks": {Config{TLSCertFile: "/nowhere/c", TLSKeyFile: "/nowhere/k"}, "ONCEBUS_ADMIN_TLS_CERT_FILE: open /nowhere/c"},
	} {
		if err := c.cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
