package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/caarlos0/env/v11"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/ingress"
	"oncebus/processor/security"
)

// settings are the process settings of product.md, section 8. The tags are the
// one source of name, default and meaning: for the parser, the help text and
// the README's table.
type settings struct {
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

// envPrefix leads the name of every setting.
const envPrefix = "ONCEBUS_"

// setting describes one environment variable. The bytes of a secret may be
// given by a file instead, whose path is in the variable named NAME_FILE.
type setting struct {
	name     string // with prefix
	defaults string
	help     string
	secret   bool
	kind     reflect.Type
	index    []int // where the value is in settings, for reflect.Value.FieldByIndex
	// path is where a secret's SecretPath is; nil if the file is read at the
	// start only.
	path []int
}

// settingsTable lists every setting, in the order of the structs.
func settingsTable() []setting {
	var table []setting
	var walk func(t reflect.Type, prefix string, index []int)
	walk = func(t reflect.Type, prefix string, index []int) {
		for i := range t.NumField() {
			f := t.Field(i)
			at := append(slices.Clone(index), i)
			name, named := f.Tag.Lookup("env")
			if !named && f.Type.Kind() == reflect.Struct {
				walk(f.Type, prefix+f.Tag.Get("envPrefix"), at)
			}
			if named {
				s := setting{
					name: prefix + name, defaults: f.Tag.Get("envDefault"), help: f.Tag.Get("help"),
					secret: f.Type == reflect.TypeFor[security.Secret](), kind: f.Type, index: at,
				}
				if beside, ok := t.FieldByName(f.Tag.Get("file")); ok {
					s.path = append(slices.Clone(index), beside.Index...)
				}
				table = append(table, s)
			}
		}
	}
	walk(reflect.TypeFor[settings](), envPrefix, nil)
	return table
}

// printSettings writes the table for a person at a terminal.
func printSettings(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range settingsTable() {
		help := s.help
		if s.secret {
			help += "; or the path of a file that holds it in " + s.name + "_FILE"
		}
		if s.defaults != "" {
			help += " [" + s.defaults + "]"
		}
		cli.Printf(tw, "  %s\t%s\n", s.name, help)
	}
	for _, s := range ingressSecretHelp {
		cli.Printf(tw, "  %s\t%s\n", s[0], s[1])
	}
	_ = tw.Flush() // w keeps the error
}

// parseSettings reads the settings from environ. The error joins everything
// that cannot be read as what it should be; those settings have their default,
// so that the others can be validated all the same.
func parseSettings(environ []string) (settings, error) {
	variables := env.ToMap(environ)
	table := settingsTable()
	paths, mistakes := loadSecretFiles(table, variables)
	for _, row := range table {
		// One variable at a time: the parser's errors name a field of some
		// struct and not the variable the reader has to look at.
		value := variables[row.name]
		if _, err := parseVariables(map[string]string{row.name: value}); err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: %q is no %s", row.name, value, kindName(row.kind)))
			delete(variables, row.name)
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
	for _, row := range table {
		if path := paths[row.name]; path != "" && row.path != nil {
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

func parseVariables(variables map[string]string) (settings, error) {
	return env.ParseAsWithOptions[settings](env.Options{Prefix: envPrefix, Environment: variables})
}

// loadSecretFiles replaces NAME_FILE by NAME in variables, for every secret,
// and returns the paths by NAME.
func loadSecretFiles(table []setting, variables map[string]string) (paths map[string]string, mistakes []error) {
	paths = map[string]string{}
	for _, s := range table {
		file := s.name + "_FILE"
		path := variables[file]
		if !s.secret || path == "" {
			continue
		}
		if variables[s.name] != "" {
			mistakes = append(mistakes, fmt.Errorf("%s: set as well as %s, want one of them", file, s.name))
			continue
		}
		value, err := security.ReadSecret(path)
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: %w", file, err))
			continue
		}
		variables[s.name], paths[s.name] = value, path
	}
	return paths, mistakes
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

// validate reports everything wrong with the settings at once.
func (s settings) validate() error {
	var errs []error
	if s.Routes == "" {
		errs = append(errs, errors.New("ONCEBUS_ROUTES: empty, want the path of the routes file"))
	}
	if s.LogFormat != cli.LogText && s.LogFormat != cli.LogJSON {
		errs = append(errs, fmt.Errorf("ONCEBUS_LOG_FORMAT: %q is unknown, want %s or %s", s.LogFormat, cli.LogText, cli.LogJSON))
	}
	return errors.Join(append(errs, checkAddr(s.AdminAddr), s.Processor.Validate(), s.Ingress.Validate())...)
}

// load reads and validates settings and routes; routesFile, unless empty, takes
// the place of ONCEBUS_ROUTES. The error joins every mistake
// in them; nothing has been connected or written by then.
func load(environ []string, routesFile string) (settings, *rules.Routes, error) {
	s, parseErr := parseSettings(environ)
	if routesFile != "" {
		s.Routes = routesFile
	}
	routes, routesErr := readRoutes(s.Routes)
	var secretErr error
	if routesErr == nil {
		secretErr = s.Processor.CheckSecret(routes.NeedsSecret())
	}
	return s, routes, errors.Join(parseErr, s.validate(), secretErr, routesErr)
}

// attrs lists the settings for the log; secrets show only whether they are set.
func (s settings) attrs() []slog.Attr {
	v := reflect.ValueOf(s)
	var attrs []slog.Attr
	for _, row := range settingsTable() {
		name := strings.ToLower(strings.TrimPrefix(row.name, envPrefix))
		attrs = append(attrs, slog.Any(name, v.FieldByIndex(row.index).Interface()))
	}
	return attrs
}

var kubernetesVariable = regexp.MustCompile(`^ONCEBUS_(INGRESS_)?(SERVICE_|PORT)`)

// unknownVariables lists the variables that look like settings and are none,
// most likely misspelt; secrets of the ingress that no route names, too. Kubernetes adds some of its own to the environment of
// every pod beside a service named oncebus or oncebus-ingress; those are left out.
func unknownVariables(environ []string, routes *rules.Routes) []string {
	known := knownSecrets(routes)
	for _, s := range settingsTable() {
		known[s.name] = true
		known[s.name+"_FILE"] = s.secret
	}
	var unknown []string
	for name := range env.ToMap(environ) {
		if strings.HasPrefix(name, envPrefix) && !known[name] && !kubernetesVariable.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}
