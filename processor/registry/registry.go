package registry

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/sr"

	"oncebus/dedup/formats"
	"oncebus/dedup/rules"
	"oncebus/processor/security"
)

// Registry has the schemas that the process has read so far. It is safe for concurrent use.
type Registry struct {
	cfg     Config
	client  *sr.Client // nil without an address
	log     *slog.Logger
	metrics metrics
	now     func() time.Time

	known atomic.Pointer[map[name]answer]

	// asking holds one element while a request runs, so that requests follow one another.
	asking  chan struct{}
	mu      sync.Mutex         // guards missing, and replacements of known
	missing map[name]time.Time // since when the registry has said that it has no such schema
}

// name identifies a schema: by its reference if the registry has it, otherwise by its file.
type name struct {
	format formats.Format
	ref    formats.Reference
	file   string
}

func nameOf(f rules.RecordFormat, ref formats.Reference) name {
	return name{f.Format, ref, f.SchemaFile}
}

func (n name) String() string {
	if n.file != "" {
		return "schema file " + n.file
	}
	return n.ref.String()
}

// answer is what the process knows of a schema.
type answer struct {
	schema *formats.Schema
	err    error     // why records that name it are invalid
	until  time.Time // when an error is forgotten; a schema is never forgotten
}

// unknownKept is how long the process remembers that the registry has no schema of an id, and marks records
// invalid without another request.
const unknownKept = 10 * time.Minute

// unknownMax bounds how many such answers are kept.
const unknownMax = 1000

// New returns the Registry of a process. It opens no connection. The Registry is also the prometheus.Collector
// of its metrics.
func New(cfg Config, log *slog.Logger) (*Registry, error) {
	r := &Registry{cfg: cfg, log: log, metrics: newMetrics(), now: time.Now, asking: make(chan struct{}, 1), missing: map[name]time.Time{}}
	r.known.Store(&map[name]answer{})
	if len(cfg.URLs) == 0 {
		return r, nil
	}
	certificates, err := cfg.certificates()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: certificates.Pool, GetClientCertificate: cfg.clientCertificate}
	r.client, err = sr.NewClient(sr.URLs(cfg.URLs...), sr.HTTPClient(&http.Client{Transport: transport, Timeout: cfg.Timeout}), sr.UserAgent("oncebus"), sr.PreReq(cfg.authorise))
	if err != nil {
		return nil, fmt.Errorf("client of the schema registry: %w", err)
	}
	return r, nil
}

// authorise adds the credentials to a request. It reads secret files again, because an operator may renew them.
func (c *Config) authorise(req *http.Request) error {
	password, err := current(c.Password, c.PasswordFile)
	if err != nil {
		return err
	}
	token, err := current(c.Token, c.TokenFile)
	if err != nil {
		return err
	}
	switch {
	case token != "":
		req.Header.Set("Authorization", "Bearer "+token)
	case c.Username != "":
		req.SetBasicAuth(c.Username, password)
	}
	return nil
}

// clientCertificate reads the certificate files again for each connection, because an operator may renew them.
func (c *Config) clientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	certificates, err := c.certificates()
	if err != nil {
		return nil, err
	}
	if certificates.Pair == nil {
		return new(tls.Certificate), nil // an empty certificate: the client sends none
	}
	return certificates.Pair, nil
}

func current(value security.Secret, path security.SecretPath) (string, error) {
	if path == "" {
		return string(value), nil
	}
	return security.ReadSecret(string(path))
}

// Schemas implements rules.Schemas. It returns rules.ErrSchemaPending for a schema that Read must read first.
func (r *Registry) Schemas(f rules.RecordFormat, ref formats.Reference) (*formats.Schema, error) {
	a, ok := (*r.known.Load())[nameOf(f, ref)]
	if !ok || a.err != nil && r.now().After(a.until) {
		return nil, rules.ErrSchemaPending
	}
	return a.schema, a.err
}

// Read reads a schema unless it is known. After Read has returned nil, Schemas returns the schema or the reason
// why records with it are invalid. An error says why the schema could not be read: the caller may call Read
// again.
func (r *Registry) Read(ctx context.Context, f rules.RecordFormat, ref formats.Reference) error {
	select {
	case r.asking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-r.asking }()
	if _, err := r.Schemas(f, ref); !errors.Is(err, rules.ErrSchemaPending) {
		return nil
	}
	of := nameOf(f, ref)
	schema, err := r.load(ctx, of)
	var invalid *invalidError
	switch {
	case err == nil:
		r.keep(of, answer{schema: schema})
		r.metrics.requests.WithLabelValues(resultRead).Inc()
		r.log.Info("schema read", "schema", of.String(), "format", of.format.String())
		return nil
	case isUnknown(err) && r.isUnknownFor(of):
		err = &invalidError{fmt.Sprintf("the registry has no %s, for %v", of, r.cfg.UnknownAfter)}
	}
	if errors.As(err, &invalid) {
		r.keep(of, answer{err: invalid, until: r.now().Add(unknownKept)})
		r.metrics.requests.WithLabelValues(resultInvalid).Inc()
		r.log.Warn("records with this schema are invalid", "schema", of.String(), "format", of.format.String(), "reason", invalid)
		return nil
	}
	r.metrics.requests.WithLabelValues(resultFailed).Inc()
	return fmt.Errorf("read %s: %w", of, err)
}

// invalidError says why records with a schema are invalid.
type invalidError struct{ reason string }

func (e *invalidError) Error() string { return e.reason }

// isUnknown reports whether the registry itself says that it has no schema of this id. Any other 404 may come
// from a proxy, or from a wrong path in ONCEBUS_SCHEMA_REGISTRY_URL.
func isUnknown(err error) bool {
	var response *sr.ResponseError
	return errors.As(err, &response) && response.StatusCode == http.StatusNotFound && response.ErrorCode == sr.ErrSchemaNotFound.Code
}

// isUnknownFor stores when the registry first said that it has no such schema, and reports whether it has said
// so for UnknownAfter.
func (r *Registry) isUnknownFor(of name) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	since, ok := r.missing[of]
	if !ok {
		if len(r.missing) >= unknownMax {
			clear(r.missing) // for the forgotten ids the time begins again: their records wait longer, but the memory is bounded
		}
		since = r.now()
		r.missing[of] = since
	}
	return r.now().Sub(since) >= r.cfg.UnknownAfter
}

// keep stores an answer. Answers that the registry does not have a schema are dropped when they are old or too
// many.
func (r *Registry) keep(of name, a answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missing, of)
	next, failures := map[name]answer{}, 0
	for n, known := range *r.known.Load() {
		if known.err != nil {
			if failures++; failures >= unknownMax || r.now().After(known.until) {
				continue
			}
		}
		next[n] = known
	}
	next[of] = a
	r.known.Store(&next)
	r.metrics.schemas.Set(float64(len(next)))
}

// Check reads the schema files of the routes. It returns an error if a route needs the registry and no address
// is set.
func (r *Registry) Check(ctx context.Context, routes *rules.Routes) error {
	errs := []error{r.CheckFiles(ctx, routes)}
	for _, f := range routes.Formats() {
		if f.FromRegistry() && r.client == nil {
			errs = append(errs, fmt.Errorf("ONCEBUS_SCHEMA_REGISTRY_URL: not set, but a route has format: %s and no schema file", f.Format))
		}
	}
	return errors.Join(errs...)
}

// CheckFiles reads the schema files of the routes, and returns the errors of all of them.
func (r *Registry) CheckFiles(ctx context.Context, routes *rules.Routes) error {
	var errs []error
	for _, f := range routes.Formats() {
		if f.SchemaFile == "" {
			continue
		}
		err := r.checkFile(ctx, f)
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: put it next to the routes file, or set ONCEBUS_SCHEMA_DIR", err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Ask returns why the registry does not answer; nil if it answers, or if no registry is set.
func (r *Registry) Ask(ctx context.Context) error {
	if r.client == nil {
		return nil
	}
	// Ask sends the same kind of request as is sent for records, so that an operator need not grant further
	// rights for this check.
	if _, err := r.client.SchemaByID(ctx, 1); err != nil && !isUnknown(err) {
		return err
	}
	return nil
}

// checkFile reads a schema file, and checks that it has the route's message type.
func (r *Registry) checkFile(ctx context.Context, f rules.RecordFormat) error {
	if err := r.Read(ctx, f, formats.Reference{}); err != nil {
		return err
	}
	schema, err := r.Schemas(f, formats.Reference{})
	if err != nil {
		return err
	}
	if _, ok := schema.OfMessage(f.Message); !ok {
		return fmt.Errorf("schema file %s has no message type %s", f.SchemaFile, f.Message)
	}
	return nil
}

// Derive derives the key of a record. If the record's schema is not known, Derive first reads it.
func (r *Registry) Derive(ctx context.Context, d *rules.Deriver, in *rules.Input) (rules.Derived, error) {
	for {
		out := d.Derive(in)
		if out.Finding != rules.SchemaPending {
			return out, nil
		}
		if err := r.Read(ctx, out.Format, out.Schema); err != nil {
			return out, err
		}
	}
}
