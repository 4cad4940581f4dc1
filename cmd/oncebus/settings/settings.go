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

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor"
	"oncebus/processor/ingress"
)

// Settings are the process settings of product.md, section 8. The tags are the
// one source of name, default and meaning: for the parser, the help text and
// the README's table.
type Settings struct {
	// Routes is the path of the routes file.
	Routes string `env:"ROUTES" envDefault:"routes.yaml" help:"path of the routes file"`
	// AdminAddr is where metrics, health and state are served; port 0 takes
	// any free one, which the log names.
	AdminAddr string `env:"ADMIN_ADDR" envDefault:"127.0.0.1:8080" help:"where /metrics, /healthz, /readyz and /state are served"`
	// LogLevel is the lowest level that is logged.
	LogLevel slog.Level `env:"LOG_LEVEL" envDefault:"info" help:"debug, info, warn or error"`
	// LogFormat is one of the log formats, text or json.
	LogFormat string `env:"LOG_FORMAT" envDefault:"text" help:"text or json"`

	Processor processor.Config

	// Ingress is the server of events that come in by HTTP.
	Ingress ingress.Config `envPrefix:"INGRESS_"`
}

// Parse reads the settings from environ. The error joins everything
// that cannot be read as what it should be; those settings have their default,
// so that the others can be validated all the same.
func Parse(environ []string) (Settings, error) {
	variables := env.ToMap(environ)
	rows := table()
	paths, mistakes := loadSecretFiles(rows, variables)
	for _, row := range rows {
		// One variable at a time: the parser's errors name a field of some
		// struct and not the variable the reader has to look at.
		value := variables[row.Name]
		if _, err := parseVariables(map[string]string{row.Name: value}); err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: %q is no %s", row.Name, value, kindName(row.kind)))
			delete(variables, row.Name)
		}
	}
	s, err := parseVariables(variables)
	if err != nil {
		return s, fmt.Errorf("settings cannot be parsed: %w", err) // a tag of ours is wrong
	}
	secrets, err := ingressSecrets(variables)
	if err != nil {
		mistakes = append(mistakes, err)
	}
	s.Ingress.Secrets = secrets
	for _, row := range rows {
		if path := paths[row.Name]; path != "" && row.path != nil {
			reflect.ValueOf(&s).Elem().FieldByIndex(row.path).SetString(path)
		}
	}
	if s.Processor.InstanceID == "" {
		host, err := os.Hostname()
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("ONCEBUS_INSTANCE_ID: not set, and the host has no name to take: %w", err))
		}
		s.Processor.InstanceID = host
	}
	return s, errors.Join(mistakes...)
}

func parseVariables(variables map[string]string) (Settings, error) {
	return env.ParseAsWithOptions[Settings](env.Options{Prefix: Prefix, Environment: variables})
}

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

// Validate reports everything wrong with the settings at once.
func (s Settings) Validate() error {
	var errs []error
	if s.Routes == "" {
		errs = append(errs, errors.New("ONCEBUS_ROUTES: empty, want the path of the routes file"))
	}
	if s.LogFormat != cli.LogText && s.LogFormat != cli.LogJSON {
		errs = append(errs, fmt.Errorf("ONCEBUS_LOG_FORMAT: %q is unknown, want %s or %s", s.LogFormat, cli.LogText, cli.LogJSON))
	}
	return errors.Join(append(errs, checkAddr(s.AdminAddr), s.Processor.Validate(), s.Ingress.Validate())...)
}

// Attrs lists the settings for the log; secrets show only whether they are set.
func (s Settings) Attrs() []slog.Attr {
	v := reflect.ValueOf(s)
	var attrs []slog.Attr
	for _, row := range table() {
		name := strings.ToLower(strings.TrimPrefix(row.Name, Prefix))
		attrs = append(attrs, slog.Any(name, v.FieldByIndex(row.index).Interface()))
	}
	return attrs
}

// checkAddr reports an address that cannot be listened on by its form.
func checkAddr(addr string) error {
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("ONCEBUS_ADMIN_ADDR: %q is no host:port", addr)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("ONCEBUS_ADMIN_ADDR: %q: port %q is no number from 0 to 65535", addr, port)
	}
	return nil
}
