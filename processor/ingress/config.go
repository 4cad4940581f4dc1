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

// Config has the settings of the server; the routes are its only other input. cmd/oncebus reads the env tags
// and puts ONCEBUS_INGRESS_ before each name. Errors call a field by its environment variable.
type Config struct {
	// Addr is the address to listen on. With port 0 the system chooses a free port.
	Addr string `env:"ADDR" help:"host:port for requests; required by ingress; run serves requests too if it is set"`

	// TLSCertFile is the file with the server's certificate and its intermediate certificates, TLSKeyFile the
	// file with its private key, both in PEM. Without them the server speaks no TLS.
	TLSCertFile string `env:"TLS_CERT_FILE" help:"PEM file of the server certificate; without it there is no TLS; the files are read again when they change"`
	TLSKeyFile  string `env:"TLS_KEY_FILE" help:"PEM file of the server certificate's private key"`
	// TLSClientCAFile is a PEM file with certificate authorities: a client must have a certificate that one of
	// these authorities has signed. If it is "", clients need no certificate.
	TLSClientCAFile string `env:"TLS_CLIENT_CA_FILE" help:"PEM file of the authorities of client certificates, which are then required"`

	// MaxRequests is the limit of in-flight requests with events, including the requests that wait for a
	// verdict; further requests get 503. Requests with outcomes, and requests that ask for an outcome, each
	// have a separate limit of the same size. 1 to RequestsMax.
	MaxRequests int `env:"MAX_REQUESTS" envDefault:"4096" help:"in-flight requests with events, as many with outcomes, and as many that ask for one; others get 503"`
	// MaxRequestsPerSource is the part of MaxRequests that a single client address may have in flight; further
	// requests of that address get 503. With 0 an address may have as many requests in flight as are still
	// free, so a single address alone gets half of MaxRequests. A higher value is for clients that share an
	// address, such as clients behind a proxy that is not in TrustedProxies. The clients of that address may
	// then use an equally large part of MaxBodyBytes. At most MaxRequests.
	MaxRequestsPerSource int `env:"MAX_REQUESTS_PER_SOURCE" envDefault:"0" help:"in-flight requests of one client address; others get 503; 0: as many as are free, so one address alone gets half"`
	// MaxConnections is the limit of open connections. At the limit a new connection replaces one that has no
	// request; if every connection has a request, the new one waits to be accepted. 1 to RequestsMax.
	MaxConnections int `env:"MAX_CONNECTIONS" envDefault:"16384" help:"open connections; at the limit a new one replaces one without a request, or waits if each has one"`
	// MaxBodyBytes is the memory in bytes for the bodies of in-flight events; requests beyond it get 503. The
	// bodies of outcomes have a separate limit of the same size. At least the largest max_body of a route, and
	// at least 1 MiB if routes receive outcomes.
	MaxBodyBytes int `env:"MAX_BODY_BYTES" envDefault:"268435456" help:"bytes of the bodies of in-flight events, and as many of outcomes; others get 503"`
	// KeepBytes bounds the file with the events that wait for Kafka, for routes with on_kafka_unavailable:
	// keep. An event that does not fit gets 503.
	KeepBytes int `env:"KEEP_BYTES" envDefault:"268435456" help:"bytes of the file in ONCEBUS_STATE_DIR with events that wait for Kafka, of routes with on_kafka_unavailable: keep; others get 503"`
	// MaxHeaderBytes bounds the request line and the headers of a request; in HTTP/2 each header counts 32
	// bytes more. net/http itself reads up to twice as many bytes before it refuses a request. The value is
	// from 1 KiB to 1 MiB.
	MaxHeaderBytes int `env:"MAX_HEADER_BYTES" envDefault:"16384" help:"bytes of a request's headers; more get 431"`

	// ReadTimeout bounds the time to receive the headers of a request, and again the time to receive its body.
	// WriteTimeout bounds the time from the headers of a request to the end of its response. For every route,
	// http.timeout plus ReadTimeout must be at most WriteTimeout.
	ReadTimeout  time.Duration `env:"READ_TIMEOUT" envDefault:"10s" help:"longest time to receive a request"`
	WriteTimeout time.Duration `env:"WRITE_TIMEOUT" envDefault:"60s" help:"longest time from a request's headers to the end of its response"`
	// IdleTimeout is how long a connection stays open without a request.
	IdleTimeout time.Duration `env:"IDLE_TIMEOUT" envDefault:"2m" help:"longest time a connection stays open without a request"`
	// Drain is how long the in-flight requests may take when the server stops; requests that are still in
	// flight after that time get 503 or 504.
	Drain time.Duration `env:"DRAIN" envDefault:"20s" help:"how long in-flight requests may take at a stop; comes before ONCEBUS_STOP_TIMEOUT"`

	// TrustedProxies are the networks whose X-Forwarded-For the server trusts.
	TrustedProxies []string `env:"TRUSTED_PROXIES" help:"networks such as 10.0.0.0/8, comma separated, whose X-Forwarded-For names the source"`

	// OpenAPI makes the server serve the OpenAPI document of the endpoints to anybody who reaches the port.
	OpenAPI bool `env:"OPENAPI" envDefault:"false" help:"serve the OpenAPI document at /openapi.json to anybody: it names topics and key rules"`

	// Secrets has the settings SECRET_<NAME>, by <NAME>.
	Secrets Secrets
}

// DefaultConfig returns the defaults, which the env tags of Config state too.
func DefaultConfig() Config {
	return Config{
		MaxRequests: 4096, MaxConnections: 16_384, MaxBodyBytes: 256 << 20, KeepBytes: 256 << 20, MaxHeaderBytes: 16 << 10,
		ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, Drain: 20 * time.Second,
	}
}

// RequestsMax is the highest value of the limits of requests and of connections.
const RequestsMax = 1 << 20

// Range of the timeouts. The maximum catches mistaken units: 10000s where 10000ms was meant would disable a
// limit.
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

// filesOfOthers is how many open files a process needs beside its HTTP connections: for brokers, stores and the
// admin server.
const filesOfOthers = 1024

// BoundConnections lowers MaxConnections so that filesOfOthers of the files that the process may open stay
// free; if the process may open only few files, it leaves half of them free. Every connection is an open file:
// without free files the process could accept no connection, and could open none to brokers and no file of a
// store. text says what was lowered, action what the operator can do about it; both are "" if nothing is
// lowered.
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

// trustedProxies parses TrustedProxies; a single address counts as a network with one address.
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

// ValidateRoutes returns every mistake of the routes that depends on these settings: missing or unusable
// secrets, and timeouts or memory that do not suffice. It reads the files of the secrets.
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
