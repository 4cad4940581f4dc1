package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/processor/security"
)

const (
	// tokenBytesMin is the length of the shortest token: 16 random bytes cannot be guessed.
	tokenBytesMin = 16
	// reloadInterval is the shortest time between two reads of a file, which happen only while requests need
	// the file.
	reloadInterval = 2 * time.Second
)

// Config has the settings of the admin server, except for its address.
type Config struct {
	// Page says whether the server has the live page.
	Page bool `env:"PAGE" envDefault:"true" help:"serve the live page at / of ONCEBUS_ADMIN_ADDR, with /live and /snapshot"`
	// Token is the bearer token that every request needs, except for probes; "" means that no token is needed.
	Token security.Secret `env:"TOKEN" file:"TokenFile" help:"bearer token, at least 16 bytes, for the live page, /metrics and /state; its file is read again when it changes"`
	// TokenFile is the file that Token was read from; "" if Token was set directly.
	TokenFile security.SecretPath
	// TLSCertFile is a PEM file with the server's certificate and its intermediate certificates, TLSKeyFile a
	// PEM file with its private key. If they are not set, the server does not use TLS.
	TLSCertFile string `env:"TLS_CERT_FILE" help:"PEM file of the admin server's certificate; without it there is no TLS; the files are read again when they change"`
	TLSKeyFile  string `env:"TLS_KEY_FILE" help:"PEM file of the private key of that certificate"`
	// TLSClientCAFile is a PEM file with certificate authorities: a client must have a certificate that one of
	// these authorities has signed.
	TLSClientCAFile string `env:"TLS_CLIENT_CA_FILE" help:"PEM file of the authorities of client certificates, which the live page, /metrics and /state then require"`
}

// Validate returns every mistake in c, joined by errors.Join.
func (c Config) Validate() error {
	var errs []error
	if n := len(c.Token); c.Token != "" && n < tokenBytesMin {
		errs = append(errs, fmt.Errorf("ONCEBUS_ADMIN_TOKEN: has %d bytes, want at least %d, from a random generator", n, tokenBytesMin))
	}
	switch {
	case c.TLSCertFile == "" && c.TLSKeyFile == "" && c.TLSClientCAFile != "":
		errs = append(errs, errors.New("ONCEBUS_ADMIN_TLS_CLIENT_CA_FILE: set without ONCEBUS_ADMIN_TLS_CERT_FILE: without TLS clients send no certificates"))
	case c.TLSCertFile != "" || c.TLSKeyFile != "":
		if _, err := c.certificates(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// certificates reads the certificate files that the settings name.
func (c Config) certificates() (*security.Certificates, error) {
	const prefix = "ONCEBUS_ADMIN_TLS_"
	return security.LoadCertificates(security.File{Variable: prefix + "CERT_FILE", Path: c.TLSCertFile},
		security.File{Variable: prefix + "KEY_FILE", Path: c.TLSKeyFile}, security.File{Variable: prefix + "CLIENT_CA_FILE", Path: c.TLSClientCAFile})
}

// Guard enforces the settings on every request.
type Guard struct {
	token        *security.Reloaded[string]   // nil without a token
	certificates *security.ServerCertificates // nil without TLS
	clients      bool                         // requests need a client certificate
	refused      *prometheus.CounterVec
}

// Why a request was refused: values of the metric's label.
const (
	refusedToken       = "token"
	refusedCertificate = "certificate"
	refusedHost        = "host"
)

// New returns the guard of valid settings.
func New(cfg Config, reg prometheus.Registerer, log *slog.Logger) (*Guard, error) {
	g := &Guard{
		clients: cfg.TLSClientCAFile != "",
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_admin_refused_total",
			Help: "Requests to the admin server without a valid token or client certificate, or by the name of another site, by what was wrong."}, []string{"reason"}),
	}
	reloads := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "oncebus_admin_reloads_total",
		Help: "Changed token and certificates of the admin server that were read again, by outcome. After a failure the old ones stay in use."}, []string{"what", "outcome"})
	expiry := prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_admin_certificate_expiry_timestamp_seconds",
		Help: "When the admin server's certificate in use expires, in Unix time; 0 without one. Alert days before."})
	reg.MustRegister(g.refused, reloads, expiry)
	for _, reason := range []string{refusedToken, refusedCertificate, refusedHost} {
		g.refused.WithLabelValues(reason)
	}
	if cfg.Token != "" {
		g.token = newToken(cfg, reloads, log)
		if _, err := g.token.Start(); err != nil {
			return nil, err
		}
	}
	if cfg.TLSCertFile == "" {
		return g, nil
	}
	g.certificates = &security.ServerCertificates{}
	if g.clients {
		g.certificates.ClientAuth = tls.VerifyClientCertIfGiven
	}
	g.certificates.Reloaded = security.Reloaded[*security.Certificates]{
		Load: cfg.certificates, Equal: (*security.Certificates).Equal, Interval: reloadInterval,
		Changed: func(files *security.Certificates) {
			reloads.WithLabelValues("certificates", "ok").Inc()
			log.Info("admin certificates reloaded")
			files.ShowExpiry(expiry)
		},
		Failed: func(err error) {
			reloads.WithLabelValues("certificates", "failed").Inc()
			log.Error("certificates reload failed", "error", err)
		},
	}
	files, err := g.certificates.Start()
	if err != nil {
		return nil, err
	}
	files.ShowExpiry(expiry)
	return g, nil
}

// newToken returns the token. If the token is in a file, the returned value reads the file again when it
// changes.
func newToken(cfg Config, reloads *prometheus.CounterVec, log *slog.Logger) *security.Reloaded[string] {
	t := &security.Reloaded[string]{
		Load: func() (string, error) {
			if cfg.TokenFile == "" {
				return string(cfg.Token.Bytes()), nil
			}
			value, err := security.ReadSecret(string(cfg.TokenFile))
			if err == nil && len(value) < tokenBytesMin {
				err = fmt.Errorf("%s has %d bytes, want at least %d", cfg.TokenFile, len(value), tokenBytesMin)
			}
			return value, err
		},
		Equal:    func(a, b string) bool { return a == b },
		Interval: reloadInterval,
		Changed: func(string) {
			reloads.WithLabelValues("token", "ok").Inc()
			log.Info("admin token reloaded")
		},
		Failed: func(err error) {
			reloads.WithLabelValues("token", "failed").Inc()
			log.Error("secret reload failed", "secret", "admin token", "error", err)
		},
	}
	return t
}

// TLS returns the configuration of the listener; nil without TLS.
func (g *Guard) TLS() *tls.Config {
	if g.certificates == nil {
		return nil
	}
	return g.certificates.Config()
}

// Protect returns a handler that serves a request with next if the settings allow it, and otherwise responds
// with 401, 403 or 421.
func (g *Guard) Protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case g.clients && (r.TLS == nil || len(r.TLS.VerifiedChains) == 0):
			g.refuse(w, http.StatusForbidden, refusedCertificate, "a client certificate of ONCEBUS_ADMIN_TLS_CLIENT_CA_FILE is required")
		case g.token != nil && !g.hasToken(r):
			w.Header().Set("WWW-Authenticate", `Bearer realm="oncebus"`)
			g.refuse(w, http.StatusUnauthorized, refusedToken, "the bearer token of ONCEBUS_ADMIN_TOKEN is required: Authorization: Bearer TOKEN")
		case g.token != nil:
			g.serveWithToken(w, r, next)
		case !g.clients && !isLocalName(r.Host):
			g.refuse(w, http.StatusMisdirectedRequest, refusedHost, "without ONCEBUS_ADMIN_TOKEN ask by an IP address, localhost, or a name without a dot or of .svc, .local or .internal: a page of another site has its own name")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLocalName reports whether this is a host name that no web site can have. The check protects against DNS
// rebinding: a malicious site makes its own name resolve to the address of this machine, and a script of the
// site in a browser could then read what this server serves. The requests of that script have the name of the
// site as their host, so they are refused.
func isLocalName(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || !strings.Contains(host, ".") {
		return true
	}
	return slices.ContainsFunc([]string{".localhost", ".svc", ".local", ".internal"}, func(end string) bool { return strings.HasSuffix(host, end) })
}

// serveWithToken serves a request, and ends it when the token is replaced. Otherwise a stream of the live page
// would stay open although its token is no longer valid.
func (g *Guard) serveWithToken(w http.ResponseWriter, r *http.Request, next http.Handler) {
	ctx, cancel := context.WithCancel(r.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for ticker := time.NewTicker(reloadInterval); ; {
			select {
			case <-ctx.Done():
				ticker.Stop()
				return
			case <-ticker.C:
				if !g.hasToken(r) {
					cancel()
				}
			}
		}
	}()
	defer func() { cancel(); <-watched }()
	next.ServeHTTP(w, r.WithContext(ctx))
}

// WarnOpen logs a warning if other machines can reach the address and neither a token nor a client certificate
// is required.
func (c Config) WarnOpen(addr string, log *slog.Logger) {
	host, _, err := net.SplitHostPort(addr)
	if ip, wrong := netip.ParseAddr(host); err != nil || c.Token != "" || c.TLSClientCAFile != "" || host == "localhost" || wrong == nil && ip.IsLoopback() {
		return
	}
	log.Warn("the admin address has no authentication, and other machines reach it: any of them reads topics, keys and figures", "addr", addr,
		"action", "set ONCEBUS_ADMIN_TOKEN or ONCEBUS_ADMIN_TLS_CLIENT_CA_FILE, or listen on 127.0.0.1")
}

func (g *Guard) refuse(w http.ResponseWriter, status int, reason, text string) {
	g.refused.WithLabelValues(reason).Inc()
	w.Header().Set("Cache-Control", "no-store")
	http.Error(w, text, status)
}

// hasToken reports whether a request has the token. It compares digests, which all have the same length, so
// that the duration of the comparison reveals nothing about the token.
func (g *Guard) hasToken(r *http.Request) bool {
	scheme, sent, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	want, _ := g.token.Current()
	a, b := sha256.Sum256([]byte(strings.TrimSpace(sent))), sha256.Sum256([]byte(want))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
