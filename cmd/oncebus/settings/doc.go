// Package settings turns the environment into the settings of oncebus.
//
// It owns Settings, whose struct tags are the only source of a setting's name, default and meaning: the parser,
// 'oncebus run --help' and the page of settings (All) all use them. The config structs of the other packages
// have such tags too. It also reads the routes file, because Load validates the settings together with the
// routes.
//
// It may import cli, the packages whose settings it contains, and caarlos0/env.
//
// # Invariants
//
//   - Parse, Load, LoadRun and LoadIngress report every mistake at once and connect to nothing.
//   - Every field of Settings is a setting with a meaning, except for the path of a secret's file, and for the secrets
//     of the ingress, whose names come from the routes file.
//   - No error, log attribute or help text shows the value of a secret.
//
// # What looks wrong
//
//   - Parse parses every variable twice, the first time each variable alone. The errors of the parser name a
//     struct field, but users know only the variable; when a variable is parsed alone, it is clear to which
//     variable an error belongs.
//   - A setting that cannot be parsed gets its default, so that Validate can check the other settings. Parse
//     returns the error nevertheless.
//   - An empty variable counts as unset, also for a setting without a default.
//   - Unknown ignores ONCEBUS_SERVICE_* and ONCEBUS_PORT*, because Kubernetes sets them.
package settings
