package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor"
	"oncebus/processor/app"
)

const doctorAbout = "Connects with the settings of 'oncebus run' and shows, one line each, what the service needs:\n" +
	"brokers, versions and features, coordinators, rights, topics and their settings, replicas, the\n" +
	"manifest, open transactions, clocks, quotas and disks. Below each finding is what to do. It writes nothing, neither\n" +
	"to the cluster nor to the disk, and may run while the service runs. Exit codes: 0 works, 1 works,\n" +
	"but something is at risk, 2 will not work."

// doctorOptions are the flags of 'oncebus doctor'.
type doctorOptions struct {
	routesFile string
	timeout    time.Duration
	json       bool
}

// doctorCommand is 'oncebus doctor'.
func doctorCommand() cli.Command {
	var o doctorOptions
	return cli.Command{
		Name: "doctor", Synopsis: "[OPTIONS]", About: "check everything that the service needs, and say what to do",
		Long: doctorAbout, Example: "ONCEBUS_BROKERS=localhost:9092 oncebus doctor --routes routes.yaml",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.DurationVar(&o.timeout, "timeout", 30*time.Second, "how long to wait for the brokers")
			cli.OutputFlag(fs, &o.json)
		},
		Run: o.run,
	}
}

func (o *doctorOptions) run(ctx context.Context, _ []string, p cli.Process) int {
	s, routes, err := settings.Load(p.Environ, o.routesFile)
	if err != nil {
		cli.Printf(p.Stderr, "oncebus doctor: %v\n", err)
		return cli.ExitWrong
	}
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	log := cli.NewLogger(io.Discard, slog.LevelError, s.LogFormat) // the findings contain the errors
	findings, err := processor.Diagnose(ctx, s.Processor, routes, log, p.Clock())
	if text, action := s.Ingress.BoundConnections(); s.Ingress.Addr != "" && text != "" {
		findings = append(findings, app.Finding{Check: "open files", Level: app.Note, Text: text, Action: action})
	}
	if err == nil {
		err = writeFindings(p.Stdout, findings, o.json)
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus doctor: %v\n", err)
		return cli.ExitWrong
	}
	switch worst := app.Worst(findings); {
	case worst == app.Fails:
		return cli.ExitWrong
	case worst == app.AtRisk:
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// shownFindings is the output of doctor as JSON. Its JSON names are an interface.
type shownFindings struct {
	Verdict  string        `json:"verdict"`
	Findings []app.Finding `json:"findings"`
}

// writeFindings prints a line for each finding, a second line with what to do about it, and at the end the
// verdict.
func writeFindings(to io.Writer, findings []app.Finding, asJSON bool) error {
	verdict := verdictOf(findings)
	if asJSON {
		return json.NewEncoder(to).Encode(shownFindings{verdict, findings})
	}
	for _, f := range findings {
		cli.Printf(to, "%-10s %-13s %s\n", f.Level, f.Check, f.Text)
		if f.Action != "" {
			cli.Printf(to, "%-10s %-13s -> %s\n", "", "", f.Action)
		}
	}
	cli.Printf(to, "\n%s\n", verdict)
	return nil
}

// verdictOf sums up the findings.
func verdictOf(findings []app.Finding) string {
	count := map[app.Level]int{}
	for _, f := range findings {
		count[f.Level]++
	}
	switch worst := app.Worst(findings); {
	case worst == app.Fails:
		return fmt.Sprintf("will not work: %s", plural(count[app.Fails], "finding"))
	case worst == app.AtRisk:
		return fmt.Sprintf("works, at risk: %s", plural(count[app.AtRisk], "finding"))
	}
	return "works"
}
