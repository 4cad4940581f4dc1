package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor/app"
	"oncebus/processor/move"
	"oncebus/processor/switchover"
)

// moveOptions are the flags of move and abort.
type moveOptions struct {
	routesFile     string
	partitions     int32
	limit, timeout time.Duration
	toRouted, late bool
	finish, asJSON bool
}

// moveCommand is 'oncebus move'.
func moveCommand() cli.Command {
	var o moveOptions
	return cli.Command{
		Name: "move", Synopsis: "[OPTIONS]", About: "change the partitions of a running app",
		Long: "Moves the keys of an app to another number of partitions while it runs. It copies the rows of all\n" +
			"tasks to the topics of a new generation of partitions. Then the input is held for some seconds, the\n" +
			"tasks close, and the processes go over to the new partitions. Killed, it is run again and goes on.\n" +
			"Until the act it can be undone with 'oncebus abort', and undoes itself if the input is held for\n" +
			"longer than --limit. With --to-routed it moves the keys of prepartitioned topics, too: those that the\n" +
			"routes file has without `prepartitioned`. That file comes in force with the act, so it may change\n" +
			"nothing else. --finish deletes the topics of earlier generations. The settings are those of\n" +
			"'oncebus run'; the setting ONCEBUS_PARTITIONS matters for new topics only.",
		Example: "oncebus move --partitions 48\n" +
			"oncebus move --to-routed\n" +
			"oncebus move --finish",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.Int32Var(&o.partitions, "partitions", 0, "move the keys to this number of partitions")
			fs.BoolVar(&o.toRouted, "to-routed", false, "move the keys of prepartitioned topics that the routes file has routed; --partitions is that of the app by default")
			fs.BoolVar(&o.late, "late-ok", false, "with --to-routed: move although unread events of a partition become late, of which on_late decides")
			fs.DurationVar(&o.limit, "limit", time.Minute, "how long the input may be held, before the move is undone")
			fs.BoolVar(&o.finish, "finish", false, "delete the topics of earlier generations, once all of their records are forwarded")
			fs.DurationVar(&o.timeout, "timeout", time.Minute, "how long --finish waits for the processes")
			cli.OutputFlag(fs, &o.asJSON)
		},
		Run: func(ctx context.Context, _ []string, p cli.Process) int {
			switch {
			case o.finish == (o.partitions != 0 || o.toRouted):
				return cli.UsageError(p, "move", "give one of --partitions, --to-routed and --finish; --partitions may go with --to-routed")
			case o.late && !o.toRouted:
				return cli.UsageError(p, "move", "--late-ok goes with --to-routed")
			case o.partitions < 0 || o.limit <= 0 || o.timeout <= 0:
				return cli.UsageError(p, "move", "--partitions, --limit and --timeout must be positive")
			}
			return withMover(ctx, "move", o.routesFile, p, func(m *move.Mover) error {
				if o.finish {
					return o.runFinish(ctx, m, p)
				}
				return o.runMove(ctx, m, p)
			})
		},
	}
}

// abortCommand is 'oncebus abort'.
func abortCommand() cli.Command {
	var o moveOptions
	return cli.Command{
		Name: "abort", Synopsis: "[OPTIONS]", About: "undo a move that has not acted yet",
		Long: "Undoes 'oncebus move' as long as the new partitions are not in force: the tasks go on as before. One\n" +
			"that has acted is completed instead. The settings are those of 'oncebus run'.",
		Example: "oncebus abort",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			cli.OutputFlag(fs, &o.asJSON)
		},
		Run: func(ctx context.Context, _ []string, p cli.Process) int {
			return withMover(ctx, "abort", o.routesFile, p, func(m *move.Mover) error { return o.abort(ctx, m, p) })
		},
	}
}

// withMover reads the settings, connects to Kafka, calls do, and returns the exit code. name is the name of the
// command, for error messages.
func withMover(ctx context.Context, name, routesFile string, p cli.Process, do func(*move.Mover) error) int {
	s, routes, err := settings.Load(p.Environ, routesFile)
	if err != nil {
		return fail(p, name, cli.ExitWrong, err)
	}
	m, err := move.New(ctx, s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat))
	if err != nil {
		return fail(p, name, codeOf(err), err)
	}
	defer m.Close()
	if err := do(m); err != nil {
		return fail(p, name, codeOf(err), err)
	}
	return cli.ExitStopped
}

// shownMove is the output of move and abort. Its JSON names are an interface.
type shownMove struct {
	Switch *app.Switch `json:"switch"`
	HeldMS int64       `json:"held_ms"` // how long the input was held while the command watched
	// Already reports that the app already had the requested partitions, so that the command did nothing.
	Already bool `json:"already,omitempty"`
}

func (o *moveOptions) runMove(ctx context.Context, m *move.Mover, p cli.Process) error {
	shown := switchover.None
	s, err := m.Move(ctx, move.Options{Partitions: o.partitions, ToRouted: o.toRouted, LateOK: o.late, Limit: o.limit, By: operatorName(), Progress: func(s *move.State) {
		if !o.asJSON && s.Switch.Phase != shown {
			shown = s.Switch.Phase
			cli.Printf(p.Stdout, "%s\n", phaseText(&s.Switch))
		}
	}})
	if err != nil {
		return err
	}
	if o.asJSON {
		return json.NewEncoder(p.Stdout).Encode(shownMove{&s.Switch, s.HeldFor.Milliseconds(), s.Already})
	}
	if s.Already {
		cli.Printf(p.Stdout, "nothing to do: the app has %d partitions\n", s.Switch.To)
		return nil
	}
	cli.Printf(p.Stdout, "done: the app has %d partitions; the input was held for %v\n", s.Switch.To, s.HeldFor.Round(100*time.Millisecond))
	return nil
}

// phaseText returns a text that says what a move does in its present phase.
func phaseText(s *app.Switch) string {
	switch s.Phase {
	case switchover.Preparing:
		from := s.From
		for _, in := range s.Inputs {
			from += in.Partitions
		}
		return fmt.Sprintf("preparing: copies the rows of %d partitions to %d", from, s.To)
	case switchover.Holding:
		return "holding: the input is held, the tasks judge what was routed"
	case switchover.Closing:
		return "closing: the tasks close, their last rows are copied"
	case switchover.Acted:
		return "acted: the new partitions are in force"
	case switchover.None, switchover.Done, switchover.Aborted:
	}
	return s.Phase.String()
}

func (o *moveOptions) abort(ctx context.Context, m *move.Mover, p cli.Process) error {
	s, err := m.Abort(ctx, operatorName())
	if err != nil {
		return err
	}
	switch {
	case o.asJSON:
		return json.NewEncoder(p.Stdout).Encode(shownMove{Switch: s})
	case s == nil:
		cli.Printf(p.Stdout, "no move to undo\n")
	case s.Phase == switchover.Done:
		cli.Printf(p.Stdout, "the move has acted: the app has %d partitions, the input is released\n", s.To)
	case len(s.Inputs) > 0:
		cli.Printf(p.Stdout, "undone: %s stays prepartitioned\n", s.InputNames())
	default:
		cli.Printf(p.Stdout, "undone: the app keeps its %d partitions\n", s.From)
	}
	return nil
}

func (o *moveOptions) runFinish(ctx context.Context, m *move.Mover, p cli.Process) error {
	waiting, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	finished, err := m.Finish(waiting)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = fmt.Errorf("not finished within %v, run it again: %w", o.timeout, err)
	}
	if err != nil {
		return err
	}
	if o.asJSON {
		return json.NewEncoder(p.Stdout).Encode(finished)
	}
	if len(finished.Deleted) == 0 {
		cli.Printf(p.Stdout, "no earlier generation is left\n")
	}
	for _, topic := range finished.Deleted {
		cli.Printf(p.Stdout, "deleted: %s\n", topic)
	}
	return nil
}
