package registry

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"oncebus/dedup/formats"
	"oncebus/dedup/rules"
	"oncebus/processor/security"
)

const (
	orderAvro = `{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "line", "type": "shop.Line"}]}`
	lineAvro  = `{"type": "record", "name": "Line", "namespace": "shop", "fields": [{"name": "side", "type": "Side"}]}`
	sideAvro  = `{"type": "enum", "name": "Side", "namespace": "shop", "symbols": ["BUY", "SELL"]}`
)

var avroRoute = rules.RecordFormat{Format: formats.Avro}

// newRegistry returns a client of a registry at a URL.
func newRegistry(t *testing.T, url string, change func(*Config)) *Registry {
	t.Helper()
	cfg := Config{Timeout: 5 * time.Second, UnknownAfter: time.Minute}
	if url != "" {
		cfg.URLs = []string{url}
	}
	if change != nil {
		change(&cfg)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	r, err := New(cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// register registers a schema and returns its id.
func register(t *testing.T, fake *srfake.Registry, subject, text string, kind sr.SchemaType, references ...sr.SchemaReference) formats.Reference {
	t.Helper()
	id, _, err := fake.RegisterSchema(subject, sr.Schema{Schema: text, Type: kind, References: references})
	if err != nil {
		t.Fatal(err)
	}
	return formats.IDReference(uint32(id))
}

// TestSchemaIsPendingUntilItIsRead: a look-up does no I/O, and one read is enough.
func TestSchemaIsPendingUntilItIsRead(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	var asked atomic.Int32
	fake.Intercept(func(http.ResponseWriter, *http.Request) bool { asked.Add(1); return false })
	side := register(t, fake, "side", sideAvro, sr.TypeAvro)
	register(t, fake, "line", lineAvro, sr.TypeAvro, sr.SchemaReference{Name: "shop.Side", Subject: "side", Version: 1})
	order := register(t, fake, "order", orderAvro, sr.TypeAvro, sr.SchemaReference{Name: "shop.Line", Subject: "line", Version: 1})
	r := newRegistry(t, fake.URL(), nil)
	for _, ref := range []formats.Reference{side, order} {
		if s, err := r.Schemas(avroRoute, ref); s != nil || !errors.Is(err, rules.ErrSchemaPending) {
			t.Errorf("%v before: %v, %v", ref, s, err)
		}
		for range 2 {
			if err := r.Read(t.Context(), avroRoute, ref); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := r.Schemas(avroRoute, ref); s == nil || err != nil {
			t.Errorf("%v: %v, %v", ref, s, err)
		}
	}
	if n := asked.Load(); n != 4 { // two schemas, and two references
		t.Errorf("the registry was asked %d times", n)
	}
	if n := testutil.ToFloat64(r.metrics.requests.WithLabelValues(resultRead)); n != 2 {
		t.Errorf("%v schemas are counted as read", n)
	}
}

func TestProtobufReferences(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	register(t, fake, "part", `syntax = "proto3"; message Part { string id = 1; }`, sr.TypeProtobuf)
	ref := register(t, fake, "order", `syntax = "proto3"; import "part.proto"; message Order { Part part = 1; }`, sr.TypeProtobuf, sr.SchemaReference{Name: "part.proto", Subject: "part", Version: 1})
	r := newRegistry(t, fake.URL(), nil)
	f := rules.RecordFormat{Format: formats.Protobuf}
	if err := r.Read(t.Context(), f, ref); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Schemas(f, ref); s == nil || err != nil {
		t.Errorf("%v, %v", s, err)
	}
}

// TestReferencesThatMeet: schemas may refer to one by two names, or to two versions of it.
func TestReferencesThatMeet(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	refer := func(name, subject string, version int) sr.SchemaReference {
		return sr.SchemaReference{Name: name, Subject: subject, Version: version}
	}
	register(t, fake, "side", sideAvro, sr.TypeAvro)
	register(t, fake, "side", `{"type": "enum", "name": "Side", "namespace": "shop", "symbols": ["BUY", "SELL", "SHORT"]}`, sr.TypeAvro)
	register(t, fake, "line", lineAvro, sr.TypeAvro, refer("shop.Side", "side", 1))
	register(t, fake, "deep", lineAvro, sr.TypeAvro, refer("Side.avsc", "side", 1))
	both := `{"type": "record", "name": "Both", "fields": [{"name": "line", "type": "shop.Line"}, {"name": "side", "type": "shop.Side"}]}`
	for name, references := range map[string][]sr.SchemaReference{
		"two versions":                        {refer("shop.Line", "line", 1), refer("shop.Side", "side", 2)},
		"two versions, the new one first":     {refer("shop.Side", "side", 2), refer("shop.Line", "line", 1)},
		"one schema by two names":             {refer("shop.Line", "deep", 1), refer("shop.Side", "side", 1)},
		"one schema by two names of the list": {refer("a", "side", 1), refer("b", "side", 1), refer("shop.Line", "deep", 1)},
	} {
		t.Run(name, func(t *testing.T) {
			ref := register(t, fake, name, both, sr.TypeAvro, references...)
			r := newRegistry(t, fake.URL(), nil)
			if err := r.Read(t.Context(), avroRoute, ref); err != nil {
				t.Fatal(err)
			}
			if s, err := r.Schemas(avroRoute, ref); s == nil || err != nil {
				t.Errorf("%v, %v", s, err)
			}
		})
	}
}

// TestReferenceThatIsDeleted: a registry has deleted schemas as long as records name them.
func TestReferenceThatIsDeleted(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	register(t, fake, "side", sideAvro, sr.TypeAvro)
	ref := register(t, fake, "line", lineAvro, sr.TypeAvro, sr.SchemaReference{Name: "shop.Side", Subject: "side", Version: 1})
	cl, err := sr.NewClient(sr.URLs(fake.URL()))
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"line", "side"} {
		if _, err := cl.DeleteSubject(t.Context(), subject, sr.SoftDelete); err != nil {
			t.Fatal(err)
		}
	}
	if err := newRegistry(t, fake.URL(), nil).Read(t.Context(), avroRoute, ref); err != nil {
		t.Error(err)
	}
}

// TestRegistryFaultsAreNoVerdict: whatever goes wrong with the registry, a record waits, and is
// read once the registry answers.
func TestRegistryFaultsAreNoVerdict(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"500": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "down", http.StatusInternalServerError) },
		"401": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error_code":40101,"message":"no"}`, http.StatusUnauthorized)
		},
		"404 of a proxy": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "not here", http.StatusNotFound) },
		"404 of another thing": func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, `{"error_code":40401,"message":"subject"}`, http.StatusNotFound)
		},
		"no JSON":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"no schema": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"schema":"{"}`)) },
		"lost":      func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			fake := srfake.New()
			t.Cleanup(fake.Close)
			ref := register(t, fake, "side", sideAvro, sr.TypeAvro)
			var broken atomic.Bool
			broken.Store(true)
			fake.Intercept(func(w http.ResponseWriter, req *http.Request) bool {
				if broken.Load() {
					answer(w, req)
				}
				return broken.Load()
			})
			r := newRegistry(t, fake.URL(), func(c *Config) { c.UnknownAfter = 0 })
			for range 3 {
				if err := r.Read(t.Context(), avroRoute, ref); err == nil {
					t.Fatal("a fault was no error")
				}
				if _, err := r.Schemas(avroRoute, ref); !errors.Is(err, rules.ErrSchemaPending) {
					t.Fatalf("after a fault: %v", err)
				}
			}
			broken.Store(false)
			if err := r.Read(t.Context(), avroRoute, ref); err != nil {
				t.Fatal(err)
			}
			if s, err := r.Schemas(avroRoute, ref); s == nil || err != nil {
				t.Errorf("%v, %v", s, err)
			}
		})
	}
}

// TestUnknownSchemaWaitsForLaggingReplicas: only after UnknownAfter are records invalid, and not
// for ever.
func TestUnknownSchemaWaitsForLaggingReplicas(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	r := newRegistry(t, fake.URL(), nil)
	now := time.Unix(1_795_000_000, 0)
	r.now = func() time.Time { return now }
	ref := formats.IDReference(1) // the id that the next schema gets
	read := func() error {
		t.Helper()
		err := r.Read(t.Context(), avroRoute, ref)
		_, known := r.Schemas(avroRoute, ref)
		if (err == nil) == errors.Is(known, rules.ErrSchemaPending) {
			t.Fatalf("Read: %v, Schemas: %v", err, known)
		}
		return known
	}
	for range 3 {
		if err := read(); !errors.Is(err, rules.ErrSchemaPending) {
			t.Fatalf("at once: %v", err)
		}
		now = now.Add(19 * time.Second)
	}
	now = now.Add(3 * time.Second)
	if err := read(); err == nil || !strings.Contains(err.Error(), "the registry has no schema 1, for 1m0s") {
		t.Fatalf("after a minute: %v", err)
	}
	if got := register(t, fake, "side", sideAvro, sr.TypeAvro); got != ref {
		t.Fatalf("registered as %v", got)
	}
	now = now.Add(unknownKept + time.Second)
	if err := read(); err != nil {
		t.Errorf("registered since: %v", err)
	}
}

func TestSchemaOfAnotherFormat(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	ref := register(t, fake, "side", sideAvro, sr.TypeAvro)
	r := newRegistry(t, fake.URL(), nil)
	f := rules.RecordFormat{Format: formats.Protobuf}
	if err := r.Read(t.Context(), f, ref); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Schemas(f, ref); err == nil || !strings.Contains(err.Error(), "schema 1 is one of AVRO, and the route reads protobuf") {
		t.Errorf("%v", err)
	}
}

// TestUnknownSchemasAreBounded: a sender that names other schemas in each record fills nothing.
func TestUnknownSchemasAreBounded(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	kept := register(t, fake, "side", sideAvro, sr.TypeAvro)
	r := newRegistry(t, fake.URL(), func(c *Config) { c.UnknownAfter = 0 })
	if err := r.Read(t.Context(), avroRoute, kept); err != nil {
		t.Fatal(err)
	}
	for id := range uint32(unknownMax + 100) {
		if err := r.Read(t.Context(), avroRoute, formats.IDReference(id+1000)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(*r.known.Load()); n > unknownMax+1 {
		t.Errorf("%d answers are kept", n)
	}
	if s, err := r.Schemas(avroRoute, kept); s == nil || err != nil {
		t.Errorf("a schema was dropped: %v", err)
	}
}

func TestCheckReadsSchemaFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"side.avsc": sideAvro, "order.proto": `syntax = "proto3"; import "part.proto"; message Order { Part p = 1; }`,
		"part.proto": `syntax = "proto3"; message Part { string id = 1; }`, "bad.avsc": "{",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for format, want := range map[string]string{
		"avro":                                                  "ONCEBUS_SCHEMA_REGISTRY_URL: not set",
		"{type: avro, schema: side.avsc}":                       "",
		"{type: avro, schema: other.avsc}":                      "read schema file other.avsc: openat other.avsc: no such file",
		"{type: avro, schema: ../side.avsc}":                    "read schema file ../side.avsc: openat ../side.avsc: path escapes",
		"{type: avro, schema: bad.avsc}":                        "read schema file bad.avsc: avro schema: ",
		"{type: protobuf, schema: order.proto}":                 "",
		"{type: protobuf, schema: order.proto, message: Order}": "",
		"{type: protobuf, schema: order.proto, message: Part}":  "schema file order.proto has no message type Part",
		"cbor": "",
	} {
		routes, err := rules.ParseRoutes("r.yaml", []byte("routes:\n- {name: r, topics: [in], output: out, window: 1h, key: [{field: id}], format: "+format+"}\n"))
		if err != nil {
			t.Fatal(err)
		}
		err = newRegistry(t, "", func(c *Config) { c.Dir = dir }).Check(t.Context(), routes)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", format, err, want)
		}
	}
}

// TestCredentialsOfTheRegistry: each request has the secret that is in its file at that time.
func TestCredentialsOfTheRegistry(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first")
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"basic":  {func(c *Config) { c.Username, c.Password = "user", "secret" }, "Basic dXNlcjpzZWNyZXQ="},
		"bearer": {func(c *Config) { c.Token = "t" }, "Bearer t"},
		"file":   {func(c *Config) { c.Token, c.TokenFile = "first", security.SecretPath(file) }, "Bearer second"},
	} {
		t.Run(name, func(t *testing.T) {
			fake := srfake.New(srfake.WithAuth(c.want))
			t.Cleanup(fake.Close)
			fake.SeedSchema("side", 1, 1, sr.Schema{Schema: sideAvro})
			r := newRegistry(t, fake.URL(), c.change)
			write("second")
			if err := r.Read(t.Context(), avroRoute, formats.IDReference(1)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestConfigMistakes(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  Config
		want string
	}{
		"no URL":        {Config{URLs: []string{"registry:8081"}}, "ONCEBUS_SCHEMA_REGISTRY_URL: malformed"},
		"password":      {Config{URLs: []string{"https://a:b@registry"}}, "contains a user or password"},
		"unencrypted":   {Config{URLs: []string{"http://registry"}, Token: "t"}, "would send the secret unencrypted"},
		"both":          {Config{URLs: []string{"https://registry"}, Token: "t", Username: "u", Password: "p"}, "want one way to authenticate"},
		"user alone":    {Config{URLs: []string{"https://registry"}, Username: "u"}, "or neither"},
		"without a URL": {Config{Token: "t"}, "ONCEBUS_SCHEMA_REGISTRY_URL: not set"},
		"timeout":       {Config{Timeout: time.Hour}, "ONCEBUS_SCHEMA_REGISTRY_TIMEOUT: 1h0m0s is out of range"},
		"certificate":   {Config{URLs: []string{"https://registry"}, CertFile: "none.pem"}, "ONCEBUS_SCHEMA_REGISTRY_CERT_FILE"},
	} {
		if err := c.cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// TestReadEndsWithItsContext: who waits for the registry can stop.
func TestReadEndsWithItsContext(t *testing.T) {
	fake := srfake.New()
	t.Cleanup(fake.Close)
	asked, answer := make(chan struct{}), make(chan struct{})
	fake.Intercept(func(http.ResponseWriter, *http.Request) bool { close(asked); <-answer; return false })
	r := newRegistry(t, fake.URL(), nil)
	first, second := make(chan error, 1), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { first <- r.Read(ctx, avroRoute, formats.IDReference(1)) }()
	<-asked
	go func() { second <- r.Read(ctx, avroRoute, formats.IDReference(2)) }()
	cancel()
	for _, done := range []chan error{first, second} {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	close(answer)
}
