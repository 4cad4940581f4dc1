// Package settings turns the environment into the settings of oncebus.
//
// It owns Settings, whose struct tags are the only source of a setting's name,
// default and meaning: for the parser, for 'oncebus run --help' and for the page
// of settings (All). The structs of the other packages have such tags too. It
// also reads the routes file, because both are validated together (Load).
//
// It may import cli, the packages whose settings it contains, and caarlos0/env.
//
// # Invariants
//
//   - Parse, Load, LoadRun and LoadIngress report every mistake at once and
//     connect to nothing.
//   - Every field of Settings is a setting with a meaning, except the path of a
//     secret's file and the ingress secrets, which the routes file names.
//   - No error, log attribute or help text shows the value of a secret.
//
// # What looks wrong
//
//   - Parse parses every variable twice, first alone: the parser's errors name a
//     struct field, and users know only the variable.
//   - A setting that cannot be parsed gets its default, so that Validate can check
//     the others. Parse has returned the error by then.
//   - An empty variable counts as unset, also for settings without a default.
//   - Unknown ignores ONCEBUS_SERVICE_* and ONCEBUS_PORT*: Kubernetes sets them.
package settings
