package settings

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"oncebus/dedup/rules"
	"oncebus/processor/ingress"
	"oncebus/processor/security"
)

// ingressSecretPrefix begins the settings with the secrets of the ingress. After it comes the name that the
// routes file gives to the secret.
const ingressSecretPrefix = Prefix + "INGRESS_SECRET_"

// ingressSecretTable lists the settings of a secret with the name NAME.
func ingressSecretTable() []Setting {
	group := groups[reflect.TypeFor[ingress.Config]()]
	return []Setting{
		{Name: ingressSecretPrefix + "NAME", Group: group, Secret: true,
			Meaning: "secret NAME of the signatures in the routes file, at least 16 bytes; its file is read again when it changes"},
		{Name: ingressSecretPrefix + "NAME_NEXT", Group: group, Secret: true,
			Meaning: "a second valid secret, for a rotation; its file may appear and disappear"},
	}
}

// ingressSecrets reads the settings with the secrets of the ingress.
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
		case file && source.Value != "": // the names are sorted, so NAME comes before NAME_FILE
			mistakes = append(mistakes, fmt.Errorf("%s: %s is also set, want only one of them", variable, ingressSecretPrefix+name))
		case file:
			source.Path = value
		default:
			clean, err := security.CleanSecret(value)
			if err != nil {
				mistakes = append(mistakes, fmt.Errorf("%s %w", variable, err))
			}
			source.Value = security.Secret(clean)
		}
		secrets[name] = source
	}
	return secrets, errors.Join(mistakes...)
}

// knownSecrets returns the settings of all secrets that the routes name.
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

// loadSecretFiles sets the variable NAME to the content of the file that NAME_FILE names, for every secret, and
// returns the paths of these files by NAME. It treats the value of a variable and the content of a file in the
// same way.
func loadSecretFiles(table []Setting, variables map[string]string) (paths map[string]string, mistakes []error) {
	paths = map[string]string{}
	for _, s := range table {
		file := s.Name + "_FILE"
		path := variables[file]
		if !s.Secret {
			continue
		}
		if path == "" {
			if value := security.WithoutLineBreak(variables[s.Name]); value != "" {
				variables[s.Name] = value
			}
			continue
		}
		if variables[s.Name] != "" {
			mistakes = append(mistakes, fmt.Errorf("%s: %s is also set, want only one of them", file, s.Name))
			continue
		}
		value, err := security.ReadSecret(path)
		if err != nil {
			mistakes = append(mistakes, fmt.Errorf("%s: %w", file, err))
			continue
		}
		variables[s.Name], paths[s.Name] = value, path
	}
	return paths, mistakes
}
