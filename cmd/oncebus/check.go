package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"path/filepath"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/ingress"
	"oncebus/processor/registry"
)

// checkOptions are the flags of 'oncebus check'.
type checkOptions struct{ schema, openAPI, settings, json bool }

// checkCommand is 'oncebus check'.
func checkCommand() cli.Command {
	var o checkOptions
	return cli.Command{
		Name: "check", Synopsis: "[OPTIONS] [FILE]", About: "validate the routes file, without a broker", ArgsMax: 1,
		Long: "Validates the routes file and prints its meaning, without a broker. FILE defaults to\n" +
			"$ONCEBUS_ROUTES, else routes.yaml. It reports all mistakes together, with file, line, column\n" +
			"and field; the exit code is then 2. It reads the schema files that routes name, and refuses\n" +
			"topics of oncebus itself. It prints warnings of a valid file on standard error.",
		Example: "oncebus check deployments/routes/orders.yaml",
		Flags: func(fs *pflag.FlagSet) {
			fs.BoolVar(&o.schema, "schema", false, "print the JSON Schema of routes files and exit")
			fs.BoolVar(&o.openAPI, "openapi", false, "print the OpenAPI document of the HTTP endpoints in FILE and exit")
			fs.BoolVar(&o.settings, "settings", false, "also validate the settings in the environment, as 'oncebus run' does before it starts")
			cli.OutputFlag(fs, &o.json)
		},
		Run: o.run,
	}
}

func (o *checkOptions) run(ctx context.Context, args []string, p cli.Process) int {
	if o.schema {
		cli.Printf(p.Stdout, "%s", rules.RoutesSchema)
		return cli.ExitStopped
	}
	path, routes, err := o.validate(ctx, args, p)
	if o.json && !o.openAPI {
		return printChecked(p, path, routes, err)
	}
	if err != nil {
		cli.Printf(p.Stderr, "%v\n", err)
		return cli.ExitWrong
	}
	for _, w := range routes.Warnings {
		cli.Printf(p.Stderr, "warning: %s\n", w)
	}
	if o.openAPI {
		return printOpenAPI(p, routes)
	}
	if err := printRoutes(p.Stdout, path, routes); err != nil {
		cli.Printf(p.Stderr, "oncebus check: %v\n", err)
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// validate reads the routes file at path. The error joins all mistakes in it.
func (o *checkOptions) validate(ctx context.Context, args []string, p cli.Process) (path string, routes *rules.Routes, err error) {
	s, settingsErr := settings.Parse(p.Environ)
	if len(args) == 1 {
		s.Routes = args[0]
	}
	if o.settings {
		settingsErr = errors.Join(settingsErr, s.Validate())
	} else {
		settingsErr = nil
	}
	routes, err = settings.ReadRoutes(s.Routes)
	if err == nil {
		settingsErr = errors.Join(settingsErr, o.checkStart(ctx, &s, routes))
	}
	if o.settings && err == nil {
		settingsErr = errors.Join(settingsErr, s.Processor.CheckSecret(routes.NeedsSecret()))
		if s.Ingress.Addr != "" {
			settingsErr = errors.Join(settingsErr, s.Ingress.ValidateRoutes(routes))
		}
	}
	return s.Routes, routes, errors.Join(settingsErr, err)
}

// checkStart returns mistakes that would end a start with these routes although the file itself is valid:
// schema files that cannot be read, and topics that belong to oncebus itself.
func (o *checkOptions) checkStart(ctx context.Context, s *settings.Settings, routes *rules.Routes) error {
	cfg := s.Processor.Schema
	cfg.Dir = cmp.Or(cfg.Dir, filepath.Dir(s.Routes))
	check := (*registry.Registry).Check
	if !o.settings {
		cfg, check = registry.Config{Dir: cfg.Dir}, (*registry.Registry).CheckFiles
	}
	schemas, err := registry.New(cfg, slog.New(slog.DiscardHandler))
	if err == nil {
		err = check(schemas, ctx, routes)
	}
	return errors.Join(err, app.CheckNames(s.Processor.AppID, routes))
}

// shownCheck is the output of check as JSON. Its JSON names are an interface.
type shownCheck struct {
	File  string `json:"file"`
	Valid bool   `json:"valid"`
	// Mistakes has the mistakes in the file, Errors all other errors.
	Mistakes []*rules.Mistake `json:"mistakes,omitempty"`
	Errors   []string         `json:"errors,omitempty"`
	Warnings []string         `json:"warnings,omitempty"`
	Routes   []shownRoute     `json:"routes,omitempty"`
	// NeedsSecret reports that a route needs ONCEBUS_KEY_SECRET.
	NeedsSecret bool `json:"needs_secret"`
}

// shownRoute describes a route with the lines that 'oncebus check' prints, by name.
type shownRoute struct {
	Name    string            `json:"name"`
	Meaning map[string]string `json:"meaning"`
}

// printChecked prints the result as JSON and returns the exit code.
func printChecked(p cli.Process, path string, routes *rules.Routes, err error) int {
	shown, code := shownCheck{File: path, Valid: err == nil, Mistakes: rules.Mistakes(err)}, cli.ExitStopped
	if err != nil {
		code = cli.ExitWrong
	}
	shown.Errors = otherErrors(err)
	if routes != nil {
		shown.Warnings, shown.NeedsSecret = routes.Warnings, routes.NeedsSecret()
		for _, r := range routes.Routes {
			meaning := map[string]string{}
			for _, f := range describe(r) {
				if f.value != "" {
					meaning[f.name] = f.value
				}
			}
			shown.Routes = append(shown.Routes, shownRoute{r.Name, meaning})
		}
	}
	if err := json.NewEncoder(p.Stdout).Encode(shown); err != nil {
		cli.Printf(p.Stderr, "oncebus check: %v\n", err)
		return cli.ExitFailed
	}
	return code
}

// otherErrors returns the texts of the joined errors that are not mistakes in the file.
func otherErrors(err error) []string {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []string
		for _, one := range joined.Unwrap() {
			all = append(all, otherErrors(one)...)
		}
		return all
	}
	if err == nil || len(rules.Mistakes(err)) > 0 {
		return nil
	}
	return []string{err.Error()}
}

// printRoutes prints the meaning of a routes file, including its defaults.
func printRoutes(w io.Writer, path string, routes *rules.Routes) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	cli.Printf(tw, "%s is valid: %s\n", path, plural(len(routes.Routes), "route"))
	for _, r := range routes.Routes {
		cli.Printf(tw, "\nroute %s\n", r.Name)
		writeFacts(tw, "  ", describe(r))
	}
	if routes.NeedsSecret() {
		cli.Printf(tw, "\nONCEBUS_KEY_SECRET or ONCEBUS_KEY_SECRET_FILE must be set to run these routes.\n")
	}
	return tw.Flush()
}

// printOpenAPI prints the document that 'oncebus ingress' serves at /openapi.json.
func printOpenAPI(p cli.Process, routes *rules.Routes) int {
	text, err := ingress.OpenAPI(routes)
	if err != nil {
		cli.Printf(p.Stderr, "%v\n", err)
		return cli.ExitWrong
	}
	cli.Printf(p.Stdout, "%s", text)
	return cli.ExitStopped
}
