package ingress

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"oncebus/dedup/rules"
)

// Config is the server's settings; its other input is the routes. cmd/oncebus
// reads the tags and prefixes every name with ONCEBUS_INGRESS_. Errors name a
// field by its environment variable.
type Config struct {
	// Addr is the address to listen on; port 0 is any free one.
	Addr string `env:"ADDR" help:"host:port for requests; required by ingress; run serves requests too if it is set"`

	// TLSCertFile is the server's certificate with its intermediates,
	// TLSKeyFile its private key, both in PEM. Without them there is no TLS.
	TLSCertFile string `env:"TLS_CERT_FILE" help:"PEM file of the server certificate; without it there is no TLS; the files are read again when they change"`
	TLSKeyFile  string `env:"TLS_KEY_FILE" help:"PEM file of the server certificate's private key"`
	// TLSClientCAFile has the authorities that must have signed a client's
	// certificate, in PEM. "" requires no client certificate.
	TLSClientCAFile string `env:"TLS_CLIENT_CA_FILE" help:"PEM file of the authorities of client certificates, which are then required"`

	// MaxRequests is the limit of in-flight requests with events, including
	// those that wait for a verdict; others get 503. Requests with outcomes, and
	// those that ask for one, have limits of their own, of the same size. 1 to RequestsMax.
	MaxRequests int `env:"MAX_REQUESTS" envDefault:"4096" help:"in-flight requests with events, as many with outcomes, and as many that ask for one; others get 503"`
	// MaxRequestsPerSource is the part of MaxRequests that one client address may
	// have; others get 503. 0: as many as are free, so one address alone gets half.
	// A higher value is for clients that share an address, such as those behind a
	// proxy that is not in TrustedProxies; they may then use as large a part of
	// MaxBodyBytes. At most MaxRequests.
	MaxRequestsPerSource int `env:"MAX_REQUESTS_PER_SOURCE" envDefault:"0" help:"in-flight requests of one client address; others get 503; 0: as many as are free, so one address alone gets half"`
	// MaxConnections is the limit of open connections. At the limit a new one
	// replaces one without a request, or waits to be accepted if each has one. 1 to
	// RequestsMax.
	MaxConnections int `env:"MAX_CONNECTIONS" envDefault:"16384" help:"open connections; at the limit a new one replaces one without a request, or waits if each has one"`
	// MaxBodyBytes is the memory for the bodies of in-flight events; requests
	// beyond it get 503. Outcomes have as much of their own. At least the
	// largest max_body of a route, and 1 MiB with outcomes.
	MaxBodyBytes int `env:"MAX_BODY_BYTES" envDefault:"268435456" help:"bytes of the bodies of in-flight events, and as many of outcomes; others get 503"`
	// KeepBytes bounds the file with the events that wait for Kafka, of routes with
	// on_kafka_unavailable: keep; others get 503.
	KeepBytes int `env:"KEEP_BYTES" envDefault:"268435456" help:"bytes of the file in ONCEBUS_STATE_DIR with events that wait for Kafka, of routes with on_kafka_unavailable: keep; others get 503"`
	// MaxHeaderBytes bounds one request's line and headers; for HTTP/2 each header
	// counts 32 bytes more. net/http reads twice as much. 1 KiB to 1 MiB.
	MaxHeaderBytes int `env:"MAX_HEADER_BYTES" envDefault:"16384" help:"bytes of a request's headers; more get 431"`

	// ReadTimeout bounds the time to receive a request, headers and body each;
	// WriteTimeout the time from its headers to the end of its response. A route's
	// http.timeout plus ReadTimeout must be at most WriteTimeout.
	ReadTimeout  time.Duration `env:"READ_TIMEOUT" envDefault:"10s" help:"longest time to receive a request"`
	WriteTimeout time.Duration `env:"WRITE_TIMEOUT" envDefault:"60s" help:"longest time from a request's headers to the end of its response"`
	// IdleTimeout is how long a connection without requests stays open.
	IdleTimeout time.Duration `env:"IDLE_TIMEOUT" envDefault:"2m" help:"longest time a connection stays open without a request"`
	// Drain is how long in-flight requests may take when the server stops;
	// after it they get 503 or 504.
	Drain time.Duration `env:"DRAIN" envDefault:"20s" help:"how long in-flight requests may take at a stop; comes before ONCEBUS_STOP_TIMEOUT"`

	// TrustedProxies are the networks whose X-Forwarded-For the server trusts.
	TrustedProxies []string `env:"TRUSTED_PROXIES" help:"networks such as 10.0.0.0/8, comma separated, whose X-Forwarded-For names the source"`

	// OpenAPI serves the document of the endpoints to anybody who reaches the port.
	OpenAPI bool `env:"OPENAPI" envDefault:"false" help:"serve the OpenAPI document at /openapi.json to anybody: it names topics and key rules"`

	// Secrets are the settings SECRET_<NAME>, by <NAME>.
	Secrets Secrets
}

// DefaultConfig returns the defaults that the env tags state.
func DefaultConfig() Config {
	return Config{
		MaxRequests: 4096, MaxConnections: 16_384, MaxBodyBytes: 256 << 20, KeepBytes: 256 << 20, MaxHeaderBytes: 16 << 10,
		ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, Drain: 20 * time.Second,
	}
}

// RequestsMax is the highest limit of requests and of connections.
const RequestsMax = 1 << 20

// Range of the timeouts. The maximum finds mistaken units, which would disable
// a limit.
const (
	timeoutMin = 10 * time.Millisecond
	timeoutMax = time.Hour
)

// Validate returns every mistake in c, joined by errors.Join. An empty Addr is
// valid: it means that there is no server.
func (c Config) Validate() error {
	var errs []error
	addf := func(format string, args ...any) { errs = append(errs, fmt.Errorf("ONCEBUS_INGRESS_"+format, args...)) }
	if c.Addr != "" {
		if _, port, err := net.SplitHostPort(c.Addr); err != nil {
			addf("ADDR: %q is malformed, want host:port", c.Addr)
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			addf("ADDR: %q: port %q is malformed, want a number from 0 to 65535", c.Addr, port)
		}
	}
	switch {
	case (c.TLSCertFile == "") != (c.TLSKeyFile == ""):
		addf("TLS_CERT_FILE, ONCEBUS_INGRESS_TLS_KEY_FILE: one is set without the other, want both or neither")
	case c.TLSCertFile == "" && c.TLSClientCAFile != "":
		addf("TLS_CLIENT_CA_FILE: set without ONCEBUS_INGRESS_TLS_CERT_FILE: without TLS clients send no certificates")
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
		{"KEEP_BYTES", c.KeepBytes, 1 << 20, 1 << 40},
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
	if c.MaxRequestsPerSource < 0 || c.MaxRequestsPerSource > c.MaxRequests {
		addf("MAX_REQUESTS_PER_SOURCE: %d is out of range, want 0 to ONCEBUS_INGRESS_MAX_REQUESTS (%d)", c.MaxRequestsPerSource, c.MaxRequests)
	}
	if _, err := c.trustedProxies(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// filesOfOthers is how many files a process needs besides those of connections: to brokers, of stores and of the admin server.
const filesOfOthers = 1024

// BoundConnections lowers MaxConnections to the files that the process may open without filesOfOthers, or to half of them if
// there are few, and returns what the operator should know of that; "" if nothing is lowered. Every connection is a file: at the limit of the system none is accepted,
// and brokers and stores get none either.
func (c *Config) BoundConnections() (text, action string) {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return "", "" // a system without the limit
	}
	return c.boundConnections(files.Cur)
}

func (c *Config) boundConnections(files uint64) (text, action string) {
	most := max(files-min(files/2, filesOfOthers), 1)
	if uint64(c.MaxConnections) <= most {
		return "", ""
	}
	text = fmt.Sprintf("the process may open %d files, so the ingress takes %d connections, not the %d of ONCEBUS_INGRESS_MAX_CONNECTIONS", files, most, c.MaxConnections)
	c.MaxConnections = int(most)
	return text, fmt.Sprintf("raise the limit of open files (ulimit -n, LimitNOFILE of systemd) to %d more than the connections, or lower the setting", filesOfOthers)
}

// trustedProxies parses TrustedProxies; a single address is a network of one.
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
			errs = append(errs, fmt.Errorf("ONCEBUS_INGRESS_TRUSTED_PROXIES: %q is malformed, want a network such as 10.0.0.0/8", text))
			continue
		}
		networks = append(networks, network.Masked())
	}
	return networks, errors.Join(errs...)
}

// ValidateRoutes returns every mistake of the routes with these settings:
// missing or unusable secrets, too little time or memory. It reads the secrets'
// files.
func (c Config) ValidateRoutes(routes *rules.Routes) error {
	var errs []error
	for _, r := range routes.Routes {
		h := r.HTTP
		if h == nil {
			continue
		}
		for _, wait := range []struct {
			field string
			most  time.Duration
		}{{"timeout", h.Timeout}, {"answer_timeout", h.AnswerTimeout()}} {
			if wait.most+c.ReadTimeout > c.WriteTimeout {
				errs = append(errs, fmt.Errorf("route %s: http.%s of %v and ONCEBUS_INGRESS_READ_TIMEOUT (%v) are longer than "+
					"ONCEBUS_INGRESS_WRITE_TIMEOUT (%v) together: the connection would close before the response", r.Name, wait.field, wait.most, c.ReadTimeout, c.WriteTimeout))
			}
		}
		if h.MaxRequests > c.MaxRequests {
			errs = append(errs, fmt.Errorf("route %s: http.max_requests of %d is more than ONCEBUS_INGRESS_MAX_REQUESTS (%d), which bounds all routes together: want at most that",
				r.Name, h.MaxRequests, c.MaxRequests))
		}
		if all := h.MaxBody + h.Decompress.MaxBytes; h.Decompress.MaxBytes > 0 && all > c.MaxBodyBytes {
			errs = append(errs, fmt.Errorf("route %s: http.max_body and http.decompress.max_bytes are %d together, which is more than ONCEBUS_INGRESS_MAX_BODY_BYTES (%d): a compressed body of that size would always get 503",
				r.Name, all, c.MaxBodyBytes))
		} else if h.MaxBody > c.MaxBodyBytes {
			errs = append(errs, fmt.Errorf("route %s: http.max_body of %d is more than ONCEBUS_INGRESS_MAX_BODY_BYTES (%d): a body of that size would always get 503",
				r.Name, h.MaxBody, c.MaxBodyBytes))
		} else if h.Outcomes != nil && outcomeLimit(h) > c.MaxBodyBytes {
			errs = append(errs, fmt.Errorf("route %s: http.outcomes accepts up to %d bytes, which is more than ONCEBUS_INGRESS_MAX_BODY_BYTES (%d): an outcome of that size would always get 503",
				r.Name, outcomeLimit(h), c.MaxBodyBytes))
		}
	}
	_, err := newEndpoints(c, routes)
	return errors.Join(append(errs, err)...)
}
