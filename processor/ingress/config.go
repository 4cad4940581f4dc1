package ingress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"oncebus/dedup/rules"
)

// Config is everything the server is told from outside, routes apart. The tags
// are read by cmd/oncebus, which puts ONCEBUS_INGRESS_ in front of every name.
// Errors name a field by its environment variable.
type Config struct {
	// Addr is where requests come in; port 0 takes any free one.
	Addr string `env:"ADDR" help:"where requests come in by HTTP, host:port; required by ingress, and run serves them too if it is set"`

	// TLSCertFile and TLSKeyFile are the server's certificate, with those
	// between it and its authority, and its key in PEM. Without them there is no TLS.
	TLSCertFile string `env:"TLS_CERT_FILE" help:"PEM file of the server certificate; without it there is no TLS; the files are read again when they change"`
	TLSKeyFile  string `env:"TLS_KEY_FILE" help:"PEM file of the server certificate's private key"`
	// TLSClientCAFile makes every client show a certificate of one of these
	// authorities.
	TLSClientCAFile string `env:"TLS_CLIENT_CA_FILE" help:"PEM file of the authorities of client certificates, which are then required"`

	// MaxRequests is how many requests are in hand at once, those that wait
	// for a verdict included; more get 503. Those with outcomes are counted
	// apart, up to as many: copies that wait for them do not keep them out.
	// 1 to RequestsMax.
	MaxRequests int `env:"MAX_REQUESTS" envDefault:"4096" help:"requests in hand at once, of events, and as many of outcomes; more get 503"`
	// MaxConnections is how many connections are open at once; more wait to
	// be accepted. 1 to RequestsMax.
	MaxConnections int `env:"MAX_CONNECTIONS" envDefault:"16384" help:"connections open at once; more wait"`
	// MaxBodyBytes bounds what the bodies in hand take together, those of
	// outcomes again counted apart; more get 503. At least the largest max_body of a route, and 1 MiB with outcomes.
	MaxBodyBytes int `env:"MAX_BODY_BYTES" envDefault:"268435456" help:"bytes of all bodies in hand, of events, and as many of outcomes; more get 503"`
	// MaxHeaderBytes bounds one request's line and headers. 1 KiB to 1 MiB.
	MaxHeaderBytes int `env:"MAX_HEADER_BYTES" envDefault:"16384" help:"bytes of a request's headers; more get 431"`

	// ReadTimeout is how long a request may take to come in, headers and body
	// each; WriteTimeout how long from its headers to the end of its answer.
	// Every route's wait must fit between the two.
	ReadTimeout  time.Duration `env:"READ_TIMEOUT" envDefault:"10s" help:"longest time a request takes to come in"`
	WriteTimeout time.Duration `env:"WRITE_TIMEOUT" envDefault:"60s" help:"longest time from a request's headers to the end of its answer"`
	// IdleTimeout is how long a connection without requests stays open.
	IdleTimeout time.Duration `env:"IDLE_TIMEOUT" envDefault:"2m" help:"longest time a connection is open without a request"`
	// Drain is how long requests in hand may take when the server is asked to
	// stop; those left then are answered 503 or 504.
	Drain time.Duration `env:"DRAIN" envDefault:"20s" help:"how long requests in hand may take at a stop; comes before ONCEBUS_STOP_TIMEOUT"`

	// TrustedProxies are the networks whose X-Forwarded-For is believed.
	TrustedProxies []string `env:"TRUSTED_PROXIES" help:"networks such as 10.0.0.0/8, comma separated, whose X-Forwarded-For names the source"`

	// Secrets are the settings SECRET_<NAME>, by what stands for <NAME>.
	Secrets Secrets
}

// DefaultConfig returns the defaults that the env tags state.
func DefaultConfig() Config {
	return Config{
		MaxRequests: 4096, MaxConnections: 16_384, MaxBodyBytes: 256 << 20, MaxHeaderBytes: 16 << 10,
		ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, Drain: 20 * time.Second,
	}
}

// RequestsMax is the most requests and connections at once.
const RequestsMax = 1 << 20

// Bounds of the times. The longest keep a mistaken unit from switching a limit
// off.
const (
	timeoutMin = 10 * time.Millisecond
	timeoutMax = time.Hour
)

// Validate reports everything that is wrong with c by itself, joined by
// errors.Join. No address means that there is no server, which is none of its
// mistakes.
func (c Config) Validate() error {
	var errs []error
	addf := func(format string, args ...any) { errs = append(errs, fmt.Errorf("ONCEBUS_INGRESS_"+format, args...)) }
	if c.Addr != "" {
		if _, port, err := net.SplitHostPort(c.Addr); err != nil {
			addf("ADDR: %q is no host:port", c.Addr)
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			addf("ADDR: %q: port %q is no number from 0 to 65535", c.Addr, port)
		}
	}
	switch {
	case (c.TLSCertFile == "") != (c.TLSKeyFile == ""):
		addf("TLS_CERT_FILE, ONCEBUS_INGRESS_TLS_KEY_FILE: one is set without the other, want both or neither")
	case c.TLSCertFile == "" && c.TLSClientCAFile != "":
		addf("TLS_CLIENT_CA_FILE: set without ONCEBUS_INGRESS_TLS_CERT_FILE: there is no TLS in which clients could show certificates")
	case c.TLSCertFile != "":
		if _, err := loadCertificates(c); err != nil {
			errs = append(errs, err)
		}
	}
	for _, n := range []struct {
		name            string
		have, low, high int
	}{
		{"MAX_REQUESTS", c.MaxRequests, 1, RequestsMax},
		{"MAX_CONNECTIONS", c.MaxConnections, 1, RequestsMax},
		{"MAX_BODY_BYTES", c.MaxBodyBytes, 1, 1 << 40},
		{"MAX_HEADER_BYTES", c.MaxHeaderBytes, 1 << 10, 1 << 20},
	} {
		if n.have < n.low || n.have > n.high {
			addf("%s: %d is out of range, want %d to %d", n.name, n.have, n.low, n.high)
		}
	}
	for _, d := range []struct {
		name string
		have time.Duration
	}{
		{"READ_TIMEOUT", c.ReadTimeout}, {"WRITE_TIMEOUT", c.WriteTimeout}, {"IDLE_TIMEOUT", c.IdleTimeout}, {"DRAIN", c.Drain},
	} {
		if d.have < timeoutMin || d.have > timeoutMax {
			addf("%s: %v is out of range, want %v to %v", d.name, d.have, timeoutMin, timeoutMax)
		}
	}
	if _, err := c.trustedProxies(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// trustedProxies reads TrustedProxies; a single address is a network of one.
func (c Config) trustedProxies() ([]netip.Prefix, error) {
	var networks []netip.Prefix
	var errs []error
	for _, text := range c.TrustedProxies {
		text = strings.TrimSpace(text)
		network, err := netip.ParsePrefix(text)
		if err != nil {
			var addr netip.Addr
			if addr, err = netip.ParseAddr(text); err == nil {
				network = netip.PrefixFrom(addr, addr.BitLen())
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("ONCEBUS_INGRESS_TRUSTED_PROXIES: %q is no network such as 10.0.0.0/8", text))
			continue
		}
		networks = append(networks, network.Masked())
	}
	return networks, errors.Join(errs...)
}

// ValidateRoutes reports what the routes need and the settings do not have:
// secrets, and time and memory for an answer. Files of secrets are read.
func (c Config) ValidateRoutes(routes *rules.Routes) error {
	var errs []error
	for _, r := range routes.Routes {
		h := r.HTTP
		if h == nil {
			continue
		}
		if h.Timeout+c.ReadTimeout > c.WriteTimeout {
			errs = append(errs, fmt.Errorf("route %s: http.wait of %v and ONCEBUS_INGRESS_READ_TIMEOUT (%v) are longer than "+
				"ONCEBUS_INGRESS_WRITE_TIMEOUT (%v) together: the connection would be closed before the answer", r.Name, h.Timeout, c.ReadTimeout, c.WriteTimeout))
		}
		if h.MaxBody > c.MaxBodyBytes {
			errs = append(errs, fmt.Errorf("route %s: http.max_body of %d is more than ONCEBUS_INGRESS_MAX_BODY_BYTES (%d): such a body never comes in",
				r.Name, h.MaxBody, c.MaxBodyBytes))
		} else if h.Outcomes != nil && outcomeLimit(h) > c.MaxBodyBytes {
			errs = append(errs, fmt.Errorf("route %s: http.outcomes are taken up to %d bytes, which is more than ONCEBUS_INGRESS_MAX_BODY_BYTES (%d): such an outcome never comes in",
				r.Name, outcomeLimit(h), c.MaxBodyBytes))
		}
	}
	_, err := newDoors(c, routes)
	return errors.Join(append(errs, err)...)
}
