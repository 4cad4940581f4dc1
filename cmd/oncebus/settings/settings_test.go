package settings

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"oncebus/cmd/oncebus/access"
	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/ingress"
	"oncebus/processor/registry"
	"oncebus/processor/restore"
	"oncebus/processor/security"
	"oncebus/state"
)

// promised has the settings whose names and defaults product.md fixes.
var promised = map[string]string{
	"ONCEBUS_BROKERS":            "",
	"ONCEBUS_ROUTES":             "routes.yaml",
	"ONCEBUS_APP_ID":             "oncebus",
	"ONCEBUS_INSTANCE_ID":        "",
	"ONCEBUS_PARTITIONS":         "12",
	"ONCEBUS_REPLICATION_FACTOR": "3",
	"ONCEBUS_CREATE_TOPICS":      "false",
	"ONCEBUS_STATE_DIR":          "./oncebus-state",
	"ONCEBUS_WORKERS":            "0",
	"ONCEBUS_COMMIT_INTERVAL":    "100ms",
	"ONCEBUS_START":              "earliest",
	"ONCEBUS_ADMIN_ADDR":         "127.0.0.1:8080",
	"ONCEBUS_LOG_LEVEL":          "info",
	"ONCEBUS_LOG_FORMAT":         "text",
	"ONCEBUS_KEY_SECRET":         "",
	"ONCEBUS_TLS_ENABLED":        "false",
	"ONCEBUS_SASL_MECHANISM":     "",
}

func TestSettingsTable(t *testing.T) {
	seen := map[string]bool{}
	for _, s := range table() {
		if seen[s.Name] {
			t.Errorf("%s is there twice", s.Name)
		}
		seen[s.Name] = true
		if s.Meaning == "" {
			t.Errorf("%s has no meaning", s.Name)
		}
		if want, ok := promised[s.Name]; ok && s.Default != want {
			t.Errorf("%s has the default %q, promised is %q", s.Name, s.Default, want)
		}
	}
	for name := range promised {
		if !seen[name] {
			t.Errorf("%s is missing", name)
		}
	}
	const others = 1 // SpansEndpoint has the variables of OpenTelemetry
	if leaves := countLeaves(reflect.TypeFor[Settings]()) - others; leaves != len(seen) {
		t.Errorf("%d fields, but %d settings: a field has no env tag", leaves, len(seen))
	}
}

func countLeaves(t reflect.Type) int {
	switch t {
	case reflect.TypeFor[security.SecretPath](): // set together with its secret
		return 0
	case reflect.TypeFor[ingress.Secrets](): // named by the routes file
		return 0
	}
	if t.Kind() != reflect.Struct {
		return 1
	}
	n := 0
	for i := range t.NumField() {
		if t.Field(i).IsExported() {
			n += countLeaves(t.Field(i).Type)
		}
	}
	return n
}

func TestParseSettingsDefaults(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	want := Settings{
		Routes: "routes.yaml", AdminAddr: "127.0.0.1:8080", Admin: access.Config{Page: true}, LogLevel: slog.LevelInfo, LogFormat: "text",
		Processor: processor.Config{
			Config: app.Config{
				Config: security.Config{
					Brokers:    []string{"a:9092", "b:9092"},
					AppID:      "oncebus",
					InstanceID: host,
				},
				Partitions:         12,
				ReplicationFactor:  3,
				MinInsyncReplicas:  2,
				Start:              "earliest",
				TransactionTimeout: 15 * time.Second,

				MaxDecompressedBatchBytes: 64 << 20,
				MaxDecompressedBytes:      64 << 20,
				Schema:                    registry.Config{Timeout: 10 * time.Second, UnknownAfter: time.Minute},
			},
			StateDir:           "./oncebus-state",
			CommitInterval:     100 * time.Millisecond,
			SessionTimeout:     10 * time.Second,
			StopTimeout:        20 * time.Second,
			LeaveOnStop:        true,
			DuplicateLog:       app.DuplicateLog{Level: slog.LevelDebug, Max: 10},
			State:              state.DefaultConfig(),
			Disk:               restore.Disk{MinFreePercent: 10, StartMinFreePercent: 5, MinFreeBytes: 64 << 20},
			RebuildsPerHour:    2,
			StateFailOpenAfter: 5 * time.Second,
		},
		Ingress: ingress.DefaultConfig(),
	}
	want.Ingress.Secrets = ingress.Secrets{}
	for _, environ := range [][]string{
		{"ONCEBUS_BROKERS=a:9092,b:9092"},
		// Set but empty counts as unset.
		{"ONCEBUS_BROKERS=a:9092,b:9092", "ONCEBUS_ROUTES=", "ONCEBUS_PARTITIONS=", "ONCEBUS_KEY_SECRET=", "ONCEBUS_KEY_SECRET_FILE=", "ONCEBUS_LOG_LEVEL="},
	} {
		got, err := Parse(environ)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) { //nolint:govet // what may have errors is nil in both
			t.Errorf("%q:\ngot  %+v\nwant %+v", environ, got, want)
		}
		if err := got.Validate(); err != nil {
			t.Error(err)
		}
	}
}

func TestParseSettingsNamesEveryVariable(t *testing.T) {
	s, err := Parse([]string{
		"ONCEBUS_PARTITIONS=many", "ONCEBUS_REPLICATION_FACTOR=40000", "ONCEBUS_CREATE_TOPICS=maybe", "ONCEBUS_WORKERS=1.5",
		"ONCEBUS_COMMIT_INTERVAL=100", "ONCEBUS_LOG_LEVEL=loud", "ONCEBUS_STATE_BACKGROUND_JOBS=x", "ONCEBUS_APP_ID=mine",
	})
	want := []string{
		`ONCEBUS_LOG_LEVEL: "loud" is not a level (debug, info, warn, error)`,
		`ONCEBUS_PARTITIONS: "many" is not a whole number of 32 bits`,
		`ONCEBUS_REPLICATION_FACTOR: "40000" is not a whole number of 16 bits`,
		`ONCEBUS_CREATE_TOPICS: "maybe" is not a boolean (true or false)`,
		`ONCEBUS_WORKERS: "1.5" is not a whole number of 32 bits`,
		`ONCEBUS_COMMIT_INTERVAL: "100" is not a duration such as 100ms or 24h`,
		`ONCEBUS_STATE_BACKGROUND_JOBS: "x" is not a whole number of 32 bits`,
	}
	if err == nil || err.Error() != strings.Join(want, "\n") {
		t.Errorf("got\n%v\nwant\n%s", err, strings.Join(want, "\n"))
	}
	if s.Processor.AppID != "mine" || s.Processor.Partitions != 12 {
		t.Errorf("the valid settings are lost: %+v", s)
	}
}

func TestSecretsFromFiles(t *testing.T) {
	secret := clitest.WriteFile(t, "secret", "sixteen bytes or more\r\n")
	empty := clitest.WriteFile(t, "empty", "\n")
	s, err := Parse([]string{"ONCEBUS_KEY_SECRET_FILE=" + secret, "ONCEBUS_SASL_PASSWORD_FILE=" + secret})
	if err != nil {
		t.Fatal(err)
	}
	if s.Processor.KeySecret != "sixteen bytes or more" || s.Processor.SASL.Password != s.Processor.KeySecret {
		t.Errorf("got %q and %q", string(s.Processor.KeySecret), string(s.Processor.SASL.Password))
	}
	for _, tt := range []struct {
		environ []string
		want    string
	}{
		{[]string{"ONCEBUS_KEY_SECRET_FILE=" + empty}, "ONCEBUS_KEY_SECRET_FILE: " + empty + " is empty, want the secret"},
		{[]string{"ONCEBUS_KEY_SECRET_FILE=" + secret + ".none"}, "ONCEBUS_KEY_SECRET_FILE: open " + secret + ".none: no such file or directory"},
		{[]string{"ONCEBUS_KEY_SECRET_FILE=" + secret, "ONCEBUS_KEY_SECRET=another sixteen"},
			"ONCEBUS_KEY_SECRET_FILE: ONCEBUS_KEY_SECRET is also set, want only one of them"},
	} {
		if _, err := Parse(tt.environ); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

// TestSecretsKeepWhiteSpace: a secret may begin or end with any bytes, as that of the keys of a running app may. Only
// one final line break of a file is no part of it.
func TestSecretsKeepWhiteSpace(t *testing.T) {
	const secret = "sixteen bytes or more"
	for _, name := range []string{"ONCEBUS_KEY_SECRET", "ONCEBUS_SASL_PASSWORD"} {
		for content, want := range map[string]string{
			secret: secret, secret + "\n": secret, secret + "\r\n": secret, secret + "\n\n": secret + "\n", " " + secret + "\t\n": " " + secret + "\t",
			secret + " ": secret + " ", "\ufeff" + secret: "\ufeff" + secret,
		} {
			for _, variable := range []string{name + "=" + content, name + "_FILE=" + clitest.WriteFile(t, "secret", content)} {
				s, err := Parse([]string{variable})
				got := map[string]string{"ONCEBUS_KEY_SECRET": string(s.Processor.KeySecret), "ONCEBUS_SASL_PASSWORD": string(s.Processor.SASL.Password)}[name]
				if err != nil || got != want {
					t.Errorf("%q, content %q: %q, %v", variable, content, got, err)
				}
			}
		}
	}
}

// TestIngressSecretsAreReadAsFiles: a secret of senders is the same in a variable and a file, which the ingress reads
// itself. White space around it would refuse each request with 401, so it is a mistake.
func TestIngressSecretsAreReadAsFiles(t *testing.T) {
	const name, secret = "ONCEBUS_INGRESS_SECRET_SENDER", "sixteen bytes or more"
	for content, want := range map[string]string{
		secret: "", secret + "\n": "", secret + "\r\n": "",
		secret + "\n\n": "white space", " " + secret: "white space", secret + "\t\n": "white space", "\ufeff" + secret: "byte order mark",
	} {
		s, err := Parse([]string{name + "=" + content})
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), name) || strings.Contains(err.Error(), secret) {
				t.Errorf("%q: %v", content, err)
			}
		} else if got := string(s.Ingress.Secrets["SENDER"].Value); err != nil || got != secret {
			t.Errorf("%q: %q, %v", content, got, err)
		}
	}
}

func TestSettingsLogHidesSecrets(t *testing.T) {
	s, err := Parse([]string{"ONCEBUS_BROKERS=a:1", "ONCEBUS_KEY_SECRET=correct horse battery", "ONCEBUS_SASL_PASSWORD=staple"})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for _, format := range []string{cli.LogText, cli.LogJSON} {
		cli.NewLogger(&b, slog.LevelInfo, format).LogAttrs(t.Context(), slog.LevelInfo, "starting", slog.GroupAttrs("settings", s.Attrs()...))
	}
	cli.NewLogger(&b, slog.LevelInfo, cli.LogText).Info("whole", "settings", s)
	fmt.Fprintf(&b, "%v %+v %#v", s, s, s)
	if out := b.String(); strings.Contains(out, "horse") || strings.Contains(out, "staple") {
		t.Errorf("a secret is shown:\n%s", out)
	}
	for _, want := range []string{"settings.brokers=[a:1]", "settings.key_secret=***", `"sasl_password":"***"`, "settings.commit_interval=100ms", "settings.log_level=INFO"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%s is not in the log:\n%s", want, b.String())
		}
	}
}

func TestUnknownVariables(t *testing.T) {
	got := Unknown([]string{
		"PATH=/bin", "ONCEBUS_BROKER=a", "ONCEBUS_BROKERS=a", "ONCEBUS_KEY_SECRET_FILE=f", "ONCEBUS_ROUTES_FILE=f",
		"ONCEBUS_SERVICE_HOST=10.0.0.1", "ONCEBUS_PORT=tcp://10.0.0.1:80", "ONCEBUS_PORT_80_TCP=tcp://10.0.0.1:80",
		"ONCEBUS_INGRESS_SERVICE_HOST=10.0.0.1", "ONCEBUS_INGRESS_PORT=tcp://10.0.0.1:80",
		"ONCEBUS_INGRESS_SECRET_SENDER=a", "ONCEBUS_INGRESS_SECRET_SENDER_NEXT_FILE=f", "ONCEBUS_INGRESS_SECRET_EXECUTOR_FILE=f", "ONCEBUS_INGRESS_SECRET_SENDR=a",
	}, &rules.Routes{Routes: []*rules.Route{{}, {HTTP: &rules.HTTP{
		Signature: rules.Signature{Secret: "SENDER"}, Outcomes: &rules.Signature{Secret: "EXECUTOR"},
	}}}})
	if want := []string{"ONCEBUS_BROKER", "ONCEBUS_INGRESS_SECRET_SENDR", "ONCEBUS_ROUTES_FILE"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestCheckAddr(t *testing.T) {
	for addr, good := range map[string]bool{
		"127.0.0.1:8080": true, ":0": true, "[::1]:80": true, "8080": false, "": false, "host:http": false, "host:65536": false, "host:-1": false,
	} {
		if err := checkAddr(addr); (err == nil) != good {
			t.Errorf("%q: %v", addr, err)
		}
	}
}
