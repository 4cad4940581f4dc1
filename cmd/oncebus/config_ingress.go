package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"oncebus/dedup/rules"
	"oncebus/processor/ingress"
	"oncebus/processor/security"
)

// ingressSecretPrefix leads the settings of secrets, whose names are the routes
// file's.
const ingressSecretPrefix = envPrefix + "INGRESS_SECRET_"

// ingressSecretHelp is what help and README say of them.
var ingressSecretHelp = [][2]string{
	{ingressSecretPrefix + "NAME", "secret NAME of the signatures in the routes file; or the path of a file that holds it in " + ingressSecretPrefix +
		"NAME_FILE, read again when it changes"},
	{ingressSecretPrefix + "NAME_NEXT", "a second secret that is good too, for a rotation; or the path of a file, which may come and go, in " + ingressSecretPrefix +
		"NAME_NEXT_FILE"},
}

// ingressSecrets reads the settings of secrets.
func ingressSecrets(variables map[string]string) (ingress.Secrets, error) {
	secrets := ingress.Secrets{}
	var mistakes []error
	for _, variable := range slices.Sorted(maps.Keys(variables)) {
		name, ok := strings.CutPrefix(variable, ingressSecretPrefix)
		value := variables[variable]
		if !ok || value == "" {
			continue
		}
		name, file := strings.CutSuffix(name, "_FILE")
		source := secrets[name]
		switch {
		case file && source.Value != "": // sorted: the value comes first
			mistakes = append(mistakes, fmt.Errorf("%s: set as well as %s, want one of them", variable, ingressSecretPrefix+name))
		case file:
			source.Path = value
		default:
			source.Value = security.Secret(value)
		}
		secrets[name] = source
	}
	return secrets, errors.Join(mistakes...)
}

// knownSecrets are the settings of the secrets that the routes name.
func knownSecrets(routes *rules.Routes) map[string]bool {
	known := map[string]bool{}
	for _, r := range routes.Routes {
		if r.HTTP == nil {
			continue
		}
		for _, s := range []*rules.Signature{&r.HTTP.Signature, r.HTTP.Outcomes} {
			if s == nil || s.Secret == "" {
				continue
			}
			for _, end := range []string{"", "_FILE", "_NEXT", "_NEXT_FILE"} {
				known[ingressSecretPrefix+s.Secret+end] = true
			}
		}
	}
	return known
}

// errNoIngress says that nothing can come in.
var errNoIngress = errors.New("no route has an http part: nothing can come in by HTTP")

// loadServing reads and validates what a command that serves needs. Without
// required the ingress is left out unless it has an address.
func loadServing(environ []string, required bool) (settings, *rules.Routes, error) {
	s, routes, err := load(environ, "")
	errs := []error{err}
	switch {
	case required && s.Ingress.Addr == "":
		errs = append(errs, fmt.Errorf("%sINGRESS_ADDR: not set, want host:port where requests come in", envPrefix))
	case s.Ingress.Addr == "":
		return s, routes, err
	}
	if routes != nil {
		if !slices.ContainsFunc(routes.Routes, func(r *rules.Route) bool { return r.HTTP != nil }) {
			errs = append(errs, errNoIngress)
		}
		errs = append(errs, s.Ingress.ValidateRoutes(routes))
	}
	return s, routes, errors.Join(errs...)
}
