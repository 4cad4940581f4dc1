package settings

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"oncebus/dedup/rules"
	"oncebus/processor/registry"
)

// Load reads and validates the settings and the routes for a command. If routesFile is not empty, it replaces
// ONCEBUS_ROUTES. The error joins every mistake in both.
func Load(environ []string, routesFile string) (Settings, *rules.Routes, error) {
	s, routes, err := load(environ, routesFile)
	if schemas, broken := registry.New(s.Processor.Schema, slog.New(slog.DiscardHandler)); broken == nil { // otherwise a mistake in the settings, which err has
		s.Processor.Config = s.Processor.WithSchemas(schemas)
	}
	return s, routes, err
}

func load(environ []string, routesFile string) (Settings, *rules.Routes, error) {
	s, parseErr := Parse(environ)
	if routesFile != "" {
		s.Routes = routesFile
	}
	s.Processor.Schema.Dir = cmp.Or(s.Processor.Schema.Dir, filepath.Dir(s.Routes))
	routes, routesErr := ReadRoutes(s.Routes)
	var secretErr error
	if routesErr == nil {
		secretErr = s.Processor.CheckSecret(routes.NeedsSecret())
	}
	return s, routes, errors.Join(parseErr, s.Validate(), secretErr, routesErr)
}

var errNoIngress = errors.New("no route has an http part, want one for the ingress to accept events")

// LoadRun does what Load does, for 'oncebus run', whose processor makes its own client of the schema registry.
// If the ingress has an address, LoadRun also validates the settings and routes of the ingress.
func LoadRun(environ []string) (Settings, *rules.Routes, error) {
	s, routes, err := load(environ, "")
	if s.Ingress.Addr == "" {
		return s, routes, err
	}
	return s, routes, errors.Join(err, s.validateIngress(routes))
}

// LoadIngress does what Load does, for 'oncebus ingress', which needs the address of the ingress and routes
// with an http part.
func LoadIngress(environ []string) (Settings, *rules.Routes, error) {
	s, routes, err := Load(environ, "")
	if s.Ingress.Addr == "" {
		err = errors.Join(err, fmt.Errorf("%sINGRESS_ADDR: not set, want host:port to accept requests", Prefix))
	}
	return s, routes, errors.Join(err, s.validateIngress(routes))
}

// validateIngress returns the mistakes in the settings and routes of an ingress. It returns nil if routes is
// nil, because the routes file could not be read.
func (s Settings) validateIngress(routes *rules.Routes) error {
	if routes == nil {
		return nil
	}
	var noHTTP error
	if !slices.ContainsFunc(routes.Routes, func(r *rules.Route) bool { return r.HTTP != nil }) {
		noHTTP = errNoIngress
	}
	return errors.Join(noHTTP, s.Ingress.ValidateRoutes(routes))
}

// ReadRoutes reads and validates the routes file at path.
func ReadRoutes(path string) (*rules.Routes, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("routes file (ONCEBUS_ROUTES): %w", err)
	}
	return rules.ParseRoutes(path, data)
}
