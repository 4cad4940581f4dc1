package main

import (
	"context"
	"errors"
	"io"
	"text/tabwriter"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor/ingress"
)

func runCheck(_ context.Context, args []string, p cli.Process) int {
	fs := cli.NewFlags("check", "[OPTIONS] [FILE]", "Validates the routes file and prints its meaning, without a broker. FILE defaults to\n"+
		"$ONCEBUS_ROUTES, else routes.yaml. It reports all mistakes together, with file, line\n"+
		"and field; the exit code is then 2. It prints warnings of a valid file on standard error.")
	schema := fs.Bool("schema", false, "print the JSON Schema of routes files and exit")
	openAPI := fs.Bool("openapi", false, "print the OpenAPI document of the HTTP endpoints in FILE and exit")
	all := fs.Bool("settings", false, "also validate the settings in the environment, as 'oncebus run' does before it starts")
	rest, code, done := cli.ParseFlags(fs, args, 1, p)
	if done {
		return code
	}
	if *schema {
		cli.Printf(p.Stdout, "%s", rules.RoutesSchema)
		return cli.ExitStopped
	}
	s, settingsErr := settings.Parse(p.Environ)
	if len(rest) == 1 {
		s.Routes = rest[0]
	}
	if *all {
		settingsErr = errors.Join(settingsErr, s.Validate())
	} else {
		settingsErr = nil
	}
	routes, err := settings.ReadRoutes(s.Routes)
	if *all && err == nil {
		settingsErr = errors.Join(settingsErr, s.Processor.CheckSecret(routes.NeedsSecret()))
		if s.Ingress.Addr != "" {
			settingsErr = errors.Join(settingsErr, s.Ingress.ValidateRoutes(routes))
		}
	}
	if err := errors.Join(settingsErr, err); err != nil {
		cli.Printf(p.Stderr, "%v\n", err)
		return cli.ExitWrong
	}
	for _, w := range routes.Warnings {
		cli.Printf(p.Stderr, "warning: %s\n", w)
	}
	if *openAPI {
		return printOpenAPI(p, routes)
	}
	if err := printRoutes(p.Stdout, s.Routes, routes); err != nil {
		cli.Printf(p.Stderr, "oncebus check: %v\n", err)
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// printRoutes prints the meaning of a routes file, with its defaults.
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

// printOpenAPI writes the document that 'oncebus ingress' serves at /openapi.json.
func printOpenAPI(p cli.Process, routes *rules.Routes) int {
	text, err := ingress.OpenAPI(routes)
	if err != nil {
		cli.Printf(p.Stderr, "%v\n", err)
		return cli.ExitWrong
	}
	cli.Printf(p.Stdout, "%s", text)
	return cli.ExitStopped
}
