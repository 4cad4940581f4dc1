package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/deadletter"
)

// redriveCommand is 'oncebus dead-letters redrive'.
func redriveCommand() cli.Command {
	var o letterOptions
	return cli.Command{
		Name: "redrive", Synopsis: "[OPTIONS]", About: "send dead letters back to the inputs that they came from",
		Long: "Sends the open dead letters that the options select back to the input that they came from,\n" +
			"with partition, key, headers and timestamp as they were, in the order that they had there.\n" +
			aboutDry +
			"Mend the cause first, and start the service with the mended routes file. A redrive that is\n" +
			"killed goes on where it stopped when it is run again, and sends none twice. A second one of\n" +
			"the app ends the first. Exit code 1: not all were redriven, and the output says why.",
		Example: "oncebus dead-letters redrive --route signals --reason missing_key\n" +
			"oncebus dead-letters redrive --route signals --reason missing_key --rate 500 --yes",
		Flags: func(fs *pflag.FlagSet) {
			o.define(fs)
			fs.BoolVar(&o.yes, "yes", false, "send them")
			fs.IntVar(&o.rate, "rate", 0, "at most this `number` of records per second; 0 for no bound")
			o.attemptsFlag(fs)
			fs.BoolVar(&o.again, "again", false, "also send those that were redriven or dropped before; each run sends them again")
		},
		Words: o.words,
		Run: func(ctx context.Context, _ []string, p cli.Process) int {
			return o.run(ctx, "redrive", p, func(ctx context.Context, w *letterWork) (int, error) { return w.redrive(ctx) })
		},
	}
}

func (w *letterWork) redrive(ctx context.Context) (int, error) {
	scanned, sent := w.progress("offsets"), w.progress("dead letters")
	defer scanned.End()
	defer sent.End()
	report, err := w.client.Redrive(ctx, &deadletter.RedriveOptions{
		Selection: w.selection(), AttemptsMax: w.attemptsMax, Rate: w.rate, Scanned: scanned.Set,
		Sent: func(done, total int64) {
			scanned.End()
			sent.Set(done, total)
		},
	})
	scanned.End()
	sent.End()
	if err != nil && report.Selected == 0 {
		return cli.ExitFailed, err
	}
	if err := errors.Join(err, w.writeReport(report)); err != nil {
		return cli.ExitFailed, err
	}
	if len(report.Skipped) > 0 || report.Gone > 0 {
		return cli.ExitFailed, nil
	}
	return cli.ExitStopped, nil
}

func (w *letterWork) writeReport(r *deadletter.Report) error {
	if w.json {
		return json.NewEncoder(w.p.Stdout).Encode(struct {
			*deadletter.Report

			DryRun bool `json:"dry_run"`
		}{r, !w.yes})
	}
	verb := "redriven in " + plural(r.Transactions, "transaction")
	if !w.yes {
		verb = "would be redriven"
	}
	cli.Printf(w.p.Stdout, "%d dead letters selected, %d %s\n", r.Selected, r.Redriven, verb)
	for _, f := range r.Fates {
		reason := ""
		if f.Reason != "" {
			reason = ", such as: " + shownText(f.Reason)
		}
		cli.Printf(w.p.Stdout, "  %d: route %s, %s by this routes file%s\n", f.Count, cmp.Or(f.Route, "-"), f.Finding, reason)
	}
	for _, s := range r.Skipped {
		cli.Printf(w.p.Stdout, "  %d not redriven, %s, the first is %v: %s\n", s.Count, s.Cause, s.First, shownText(s.Why))
	}
	if r.Gone > 0 {
		cli.Printf(w.p.Stdout, "  %d not redriven, retention deleted them meanwhile\n", r.Gone)
	}
	if !w.yes && r.Redriven > 0 {
		cli.Printf(w.p.Stdout, "nothing was sent: add --yes to send them\n")
	}
	return nil
}

// dropCommand is 'oncebus dead-letters drop'.
func dropCommand() cli.Command {
	var o letterOptions
	return cli.Command{
		Name: "drop", Synopsis: "[OPTIONS]", About: "mark dead letters as done without sending them",
		Long: "Marks the open dead letters that the options select as dropped: list and redrive leave them\n" +
			"out from then on. " + aboutDry +
			"Their records stay in the topic until its retention deletes them. With --delete it also\n" +
			"deletes the records before the first open dead letter of each partition, whether they were\n" +
			"redriven or dropped. Kafka cannot delete a record after one that stays.",
		Example: "oncebus dead-letters drop --reason invalid --until 24h\n" +
			"oncebus dead-letters drop --reason invalid --until 24h --delete --yes",
		Flags: func(fs *pflag.FlagSet) {
			o.define(fs)
			fs.BoolVar(&o.yes, "yes", false, "mark them")
			fs.BoolVar(&o.remove, "delete", false, "delete the records before the first open one of each partition, which needs the right to Delete")
		},
		Words: o.words,
		Run: func(ctx context.Context, _ []string, p cli.Process) int {
			return o.run(ctx, "drop", p, func(ctx context.Context, w *letterWork) (int, error) { return cli.ExitStopped, w.drop(ctx) })
		},
	}
}

func (w *letterWork) drop(ctx context.Context) error {
	progress := w.progress("offsets")
	selection := w.selection()
	report, err := w.client.Drop(ctx, &selection, w.remove, progress.Set)
	progress.End()
	if err != nil {
		return err
	}
	if w.json {
		return json.NewEncoder(w.p.Stdout).Encode(struct {
			*deadletter.DropReport

			DryRun bool `json:"dry_run"`
		}{report, !w.yes})
	}
	dropped, deleted := "dropped", "deleted"
	if !w.yes {
		dropped, deleted = "would be dropped", "would be deleted"
	}
	cli.Printf(w.p.Stdout, "%d dead letters selected, %d %s\n", report.Selected, report.Dropped, dropped)
	for _, partition := range slices.Sorted(maps.Keys(report.Deleted)) {
		cli.Printf(w.p.Stdout, "  the records of %s before offset %d %s\n", partition, report.Deleted[partition], deleted)
	}
	if !w.yes {
		cli.Printf(w.p.Stdout, "nothing was changed: add --yes\n")
	}
	return nil
}
