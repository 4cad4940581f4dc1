package settings

import (
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/caarlos0/env/v11"

	"oncebus/cmd/oncebus/access"
	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/ingress"
	"oncebus/processor/restore"
	"oncebus/processor/security"
	"oncebus/state"
)

// Prefix begins the name of every setting.
const Prefix = "ONCEBUS_"

// Setting describes one environment variable.
type Setting struct {
	Name    string // includes Prefix
	Default string // as text; "" if there is no default
	Meaning string
	Group   string // heading in the help and on the page of settings, such as TLS
	// Secret: the log never shows the value, and the variable Name_FILE may name a file that contains it.
	Secret bool

	kind  reflect.Type
	index []int // index of the field in Settings, for reflect.Value.FieldByIndex
	// path is the index of the field SecretPath that belongs to a secret; nil if the process reads the file of
	// the secret only at its start.
	path []int
}

// groups has the structs whose settings form a separate group, with the name of the group. The settings of any
// other struct belong to the group of the enclosing struct.
var groups = map[reflect.Type]string{
	reflect.TypeFor[Settings]():         "Process",
	reflect.TypeFor[access.Config]():    "Admin server",
	reflect.TypeFor[security.Config]():  "App and brokers",
	reflect.TypeFor[security.TLS]():     "TLS",
	reflect.TypeFor[security.SASL]():    "SASL",
	reflect.TypeFor[app.Config]():       "Topics and transactions",
	reflect.TypeFor[processor.Config](): "Tasks",
	reflect.TypeFor[state.Config]():     "State",
	reflect.TypeFor[restore.Disk]():     "Disk",
	reflect.TypeFor[ingress.Config]():   "Ingress",
}

// All lists every setting in the order of the structs. The settings with the ingress's secrets come last; NAME
// stands for the name that the routes file gives to a secret.
func All() []Setting { return append(table(), ingressSecretTable()...) }

// table lists the settings that are fields of Settings.
func table() []Setting {
	var all []Setting
	var walk func(t reflect.Type, prefix, group string, index []int)
	walk = func(t reflect.Type, prefix, group string, index []int) {
		if own, ok := groups[t]; ok {
			group = own
		}
		for i := range t.NumField() {
			f := t.Field(i)
			at := append(slices.Clone(index), i)
			name, named := f.Tag.Lookup("env")
			if !named && f.Type.Kind() == reflect.Struct {
				walk(f.Type, prefix+f.Tag.Get("envPrefix"), group, at)
			}
			if named {
				s := Setting{
					Name: prefix + name, Default: f.Tag.Get("envDefault"), Meaning: f.Tag.Get("help"), Group: group,
					Secret: f.Type == reflect.TypeFor[security.Secret](), kind: f.Type, index: at,
				}
				if path, ok := t.FieldByName(f.Tag.Get("file")); ok {
					s.path = append(slices.Clone(index), path.Index...)
				}
				all = append(all, s)
			}
		}
	}
	walk(reflect.TypeFor[Settings](), Prefix, "", nil)
	return all
}

// Print prints every setting on a line, for a person at a terminal.
func Print(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range All() {
		meaning := s.Meaning
		if s.Secret {
			meaning += "; or the path of a file that contains it in " + s.Name + "_FILE"
		}
		if s.Default != "" {
			meaning += " [" + s.Default + "]"
		}
		cli.Printf(tw, "  %s\t%s\n", s.Name, meaning)
	}
	_ = tw.Flush() // an output of a cli.Process keeps the error
}

var kubernetesVariable = regexp.MustCompile(`^ONCEBUS_(INGRESS_)?(SERVICE_|PORT)`)

// Unknown lists the variables that look like misspelled settings, and the secrets of the ingress that no route
// names. It leaves out the variables that Kubernetes adds to every pod of a namespace that has a service with
// the name oncebus or oncebus-ingress.
func Unknown(environ []string, routes *rules.Routes) []string {
	known := knownSecrets(routes)
	for _, s := range table() {
		known[s.Name] = true
		known[s.Name+"_FILE"] = s.Secret
	}
	var unknown []string
	for name := range env.ToMap(environ) {
		if strings.HasPrefix(name, Prefix) && !known[name] && !kubernetesVariable.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	return unknown
}

// Nearest returns the setting that a misspelled variable most likely means; "" if there is none.
func Nearest(variable string) string {
	var names []string
	for _, s := range table() {
		names = append(names, strings.TrimPrefix(s.Name, Prefix))
		if s.Secret {
			names = append(names, strings.TrimPrefix(s.Name, Prefix)+"_FILE")
		}
	}
	if name := rules.Nearest(strings.TrimPrefix(variable, Prefix), names); name != "" {
		return Prefix + name
	}
	return ""
}
