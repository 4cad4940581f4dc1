package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"strconv"
	"strings"

	"github.com/caarlos0/env/v11"

	"oncebus/cmd/oncebus/access"
	"oncebus/cmd/oncebus/cli"
	"oncebus/processor"
	"oncebus/processor/ingress"
	"oncebus/processor/tracing"
)

// Settings has the settings of a process. The struct tags are the only source of a setting's name, default and
// meaning.
type Settings struct {
	// Routes is the path of the routes file.
	Routes string `env:"ROUTES" envDefault:"routes.yaml" help:"path of the routes file"`
	// AdminAddr is the address of the admin server as host:port. With port 0 the server chooses a free port and
	// logs it.
	AdminAddr string `env:"ADMIN_ADDR" envDefault:"127.0.0.1:8080" help:"address of /metrics, /healthz, /readyz and /state, and of the live page, as host:port"`
	// Admin says who may read from the server at AdminAddr.
	Admin access.Config `envPrefix:"ADMIN_"`
	// LogLevel is the lowest level of the lines that are logged.
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"info" help:"lowest level that is logged: debug, info, warn or error"`
	// LogFormat is cli.LogText or cli.LogJSON.
	LogFormat string `env:"LOG_FORMAT" envDefault:"text" help:"format of the log: text or json"`

	// SpansEndpoint is the URL to which spans are sent. It comes from the variables of OpenTelemetry; "" means
	// no spans.
	SpansEndpoint string

	Processor processor.Config

	// Ingress is unused if Ingress.Addr is "".
	Ingress ingress.Config `envPrefix:"INGRESS_"`
}

// Parse reads the settings from environ. The error joins an error for each setting that cannot be parsed. Such
// a setting gets its default value, so that Validate can check the other settings.
func Parse(environ []string) (Settings, error) {
	variables := env.ToMap(environ)
	rows := table()
	paths, mistakes := loadSecretFiles(rows, variables)
	for _, row := range rows {
		// Each variable is parsed alone here, because the errors of the parser name a struct field and not the
		// variable.
		value := variables[row.Name]
		if _, err := parseVariables(map[string]string{row.Name: value}); err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: %q is not a %s", row.Name, value, kindName(row.kind)))
			delete(variables, row.Name)
		}
	}
	s, err := parseVariables(variables)
	if err != nil {
		return s, fmt.Errorf("parse settings: %w", err) // only a wrong struct tag can cause this
	}
	secrets, err := ingressSecrets(variables)
	if err != nil {
		mistakes = append(mistakes, err)
	}
	s.Ingress.Secrets = secrets
	if s.SpansEndpoint, err = tracing.Endpoint(environ); err != nil {
		mistakes = append(mistakes, err)
	}
	for _, row := range rows {
		if path := paths[row.Name]; path != "" && row.path != nil {
			reflect.ValueOf(&s).Elem().FieldByIndex(row.path).SetString(path)
		}
	}
	if s.Processor.InstanceID == "" {
		host, err := os.Hostname()
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("ONCEBUS_INSTANCE_ID: not set, and its default, the host name, is unknown: %w", err))
		}
		s.Processor.InstanceID = host
	}
	return s, errors.Join(mistakes...)
}

// parseVariables reads the settings from variables, which are by name.
func parseVariables(variables map[string]string) (Settings, error) {
	return env.ParseAsWithOptions[Settings](env.Options{Prefix: Prefix, Environment: variables})
}

// kindName describes the values that a setting of type t can have.
func kindName(t reflect.Type) string {
	switch {
	case t.String() == "time.Duration":
		return "duration such as 100ms or 24h"
	case t.String() == "slog.Level":
		return "level (debug, info, warn, error)"
	case t.Kind() == reflect.Bool:
		return "boolean (true or false)"
	}
	return fmt.Sprintf("whole number of %d bits", min(t.Bits(), 32)) // the parser reads an int as 32 bits
}

// Validate returns all mistakes in the settings, joined by errors.Join.
func (s Settings) Validate() error {
	var errs []error
	if s.Routes == "" {
		errs = append(errs, errors.New("ONCEBUS_ROUTES: empty, want the path of the routes file"))
	}
	if s.LogFormat != cli.LogText && s.LogFormat != cli.LogJSON {
		errs = append(errs, fmt.Errorf("ONCEBUS_LOG_FORMAT: %q is unknown, want %s or %s", s.LogFormat, cli.LogText, cli.LogJSON))
	}
	return errors.Join(append(errs, checkAddr(s.AdminAddr), s.Admin.Validate(), s.Processor.Validate(), s.Ingress.Validate())...)
}

// Attrs returns the settings as log attributes. For a secret the attribute shows only whether it is set.
func (s Settings) Attrs() []slog.Attr {
	v := reflect.ValueOf(s)
	var attrs []slog.Attr
	for _, row := range table() {
		name := strings.ToLower(strings.TrimPrefix(row.Name, Prefix))
		attrs = append(attrs, slog.Any(name, v.FieldByIndex(row.index).Interface()))
	}
	return attrs
}

// checkAddr returns an error if the admin address is not host:port.
func checkAddr(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("ONCEBUS_ADMIN_ADDR: %q is not host:port", addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("ONCEBUS_ADMIN_ADDR: %q: port %q is not a number from 0 to 65535", addr, port)
	}
	return nil
}
