package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor/selfaudit"
)

// selfAuditOptions are the flags of 'oncebus self-audit'.
type selfAuditOptions struct {
	routesFile  string
	json, quiet bool
	from, save  string
	keys, open  int
}

// selfAuditCommand is 'oncebus self-audit'.
func selfAuditCommand() cli.Command {
	var o selfAuditOptions
	return cli.Command{
		Name: "self-audit", Synopsis: "[OPTIONS]", About: "check that the app kept its promise, from its topics",
		Long: "Reads the topics of the app, which may be running, and says whether the promise held: each key\n" +
			"once per window in the output, and one fate for each input record. It writes to no topic. The\n" +
			"settings are those of 'oncebus run', with the routes file of the app.\n\n" +
			"With --save it saves where it ended, and with --from it goes on there: so a cron job audits each\n" +
			"hour exactly once. Without --from it audits the app from its first record. If some of that has\n" +
			"been deleted, it only saves the position, and the next run goes on from there.\n\n" +
			"The exit code is 0 if the promise held, 3 if it did not, and 1 if nothing could be said, as when\n" +
			"records were deleted before they were audited.",
		Example: "oncebus self-audit\n" +
			"oncebus self-audit --from audit.position --save audit.position --quiet",
		Flags: o.define,
		Run:   o.run,
	}
}

func (o *selfAuditOptions) define(fs *pflag.FlagSet) {
	cli.RoutesFlag(fs, &o.routesFile)
	cli.OutputFlag(fs, &o.json)
	fs.StringVar(&o.from, "from", "", "go on where the run ended that saved this `file`; if --save names the same file, it may be\n"+
		"missing the first time")
	fs.StringVar(&o.save, "save", "", "save the position to this `file`: some 24 bytes for each key that can still decide an event")
	fs.IntVar(&o.keys, "keys", 5_000_000, "follow at most this `number` of keys, about 80 bytes of memory each; of more keys a sample")
	fs.IntVar(&o.open, "open", 2_000_000, "keep at most this `number` of records in memory that wait for another one, about 300 bytes\neach; of more a sample")
	fs.BoolVar(&o.quiet, "quiet", false, "print one line, and one for each finding")
}

func (o *selfAuditOptions) run(ctx context.Context, _ []string, p cli.Process) int {
	if o.keys < 1 || o.open < 1 {
		return cli.UsageError(p, "self-audit", "--keys and --open are at least 1")
	}
	s, routes, err := settings.Load(p.Environ, o.routesFile)
	if err != nil {
		return fail(p, "self-audit", cli.ExitWrong, err)
	}
	from, err := o.position()
	if err != nil {
		return fail(p, "self-audit", cli.ExitWrong, err)
	}
	auditor, err := selfaudit.New(ctx, s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat))
	if err != nil {
		return fail(p, "self-audit", codeOf(err), err)
	}
	defer auditor.Close()
	progress := cli.NewProgress(p, "offsets")
	result, err := auditor.Audit(ctx, from, selfaudit.Options{Keys: o.keys, Open: o.open, Watch: progress.Set})
	progress.End()
	if err == nil {
		err = o.finish(p, &shownSelfAudit{app: s.Processor.AppID, routes: auditor.Routes(), Result: result})
	}
	switch {
	case err != nil:
		return fail(p, "self-audit", codeOf(err), err)
	case !result.Held():
		return cli.ExitBroken
	case result.Begins && o.save == "":
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// finish prints the result and then saves the position. In this order, a position is saved only if the result
// up to it was printed.
func (o *selfAuditOptions) finish(p cli.Process, shown *shownSelfAudit) error {
	var err error
	switch {
	case o.json:
		err = shown.writeJSON(p.Stdout)
	case o.quiet:
		shown.writeLine(p.Stdout)
	default:
		err = shown.write(p.Stdout)
	}
	if err != nil || o.save == "" {
		return err
	}
	return savePosition(o.save, shown.To)
}

// position reads the position file of --from; nil if the audit begins at the app's first record.
func (o *selfAuditOptions) position() (*selfaudit.Position, error) {
	if o.from == "" {
		return nil, nil
	}
	file, err := os.Open(o.from)
	if errors.Is(err, fs.ErrNotExist) && o.from == o.save {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	position, err := selfaudit.ReadPosition(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", o.from, err)
	}
	return position, nil
}

// savePosition replaces the file atomically: if the command is killed, the previous position stays.
func savePosition(path string, position *selfaudit.Position) error {
	temporary, err := openPart(path)
	if err != nil {
		return err
	}
	if err = putInPlace(temporary, path, position.Write(temporary)); err != nil {
		return fmt.Errorf("save %s: %w", path, err)
	}
	return nil
}
