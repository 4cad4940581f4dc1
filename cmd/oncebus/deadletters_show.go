package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/deadletter"
)

// showLetterCommand is 'oncebus dead-letters show'.
func showLetterCommand() cli.Command {
	var o letterOptions
	return cli.Command{
		Name: "show", Synopsis: "[OPTIONS] TOPIC/PARTITION/OFFSET", About: "show one dead letter, and what a redrive would do with it", ArgsMax: 1,
		Long: "Shows one dead letter: its record with all headers, why it was turned away, and what a redrive\n" +
			"would do with it now. That is the topic it goes back to and the key that the routes file\n" +
			"derives, or why it cannot be redriven, with the way out.",
		Example: "oncebus dead-letters show oncebus.dead-letter/0/17",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			cli.OutputFlag(fs, &o.json)
			o.attemptsFlag(fs)
		},
		Run: func(ctx context.Context, rest []string, p cli.Process) int {
			if len(rest) == 0 {
				return cli.UsageError(p, "dead-letters show", "the position is missing, want TOPIC/PARTITION/OFFSET, as 'oncebus dead-letters list' prints it")
			}
			at, err := deadletter.ParsePosition(rest[0])
			if err != nil {
				return cli.UsageError(p, "dead-letters show", err.Error())
			}
			return o.run(ctx, "show", p, func(ctx context.Context, w *letterWork) (int, error) { return cli.ExitStopped, w.show(ctx, at) })
		},
	}
}

// shownDeadLetter is the output of show as JSON. Its JSON names are an interface.
type shownDeadLetter struct {
	*shownLetter

	Record  *shownEvent  `json:"record"` // the dead letter itself
	Redrive shownRedrive `json:"redrive"`
}

// shownRedrive says what a redrive would do with a dead letter.
type shownRedrive struct {
	Possible bool        `json:"possible"`
	Cause    string      `json:"cause,omitempty"` // why it is not possible, as a class
	Why      string      `json:"why,omitempty"`   // the same in words, with what the operator can do
	Record   *shownEvent `json:"record,omitempty"`
	To       string      `json:"to,omitempty"` // topic/partition
	Route    string      `json:"route,omitempty"`
	Finding  string      `json:"finding,omitempty"`
	Key      string      `json:"key,omitempty"`
	Reason   string      `json:"reason,omitempty"` // of the finding
}

func newShownRedrive(p *deadletter.Prospect) shownRedrive {
	if p.Skip != nil {
		return shownRedrive{Cause: string(p.Skip.Cause), Why: p.Skip.Why}
	}
	shown := shownRedrive{
		Possible: true, Record: newShownEvent(p.Record), To: p.Record.Topic + "/" + strconv.Itoa(int(p.Record.Partition)),
		Route: p.Fate.Route, Finding: p.Fate.Finding, Key: p.Fate.Key, Reason: p.Fate.Reason,
	}
	shown.Record.At = "" // it has no offset yet
	return shown
}

// text says in one sentence what would happen.
func (r *shownRedrive) text() string {
	switch {
	case !r.Possible:
		return "not possible: " + shownText(r.Why)
	case r.Key != "":
		return fmt.Sprintf("goes to %s; route %s derives the key %s", r.To, r.Route, r.Key)
	case r.Route == "":
		return fmt.Sprintf("goes to %s; %s: %s", r.To, r.Finding, shownText(r.Reason))
	}
	return fmt.Sprintf("goes to %s; route %s: %s: %s", r.To, r.Route, r.Finding, shownText(r.Reason))
}

func (w *letterWork) show(ctx context.Context, at deadletter.Position) error {
	letter, err := w.client.Find(ctx, at)
	if err != nil {
		return err
	}
	prospect, err := w.client.Prospect(ctx, letter, w.attemptsMax)
	if err != nil {
		return err
	}
	shown := shownDeadLetter{newShownLetter(letter, w.client.StateOf(letter)), newShownEvent(letter.Record), newShownRedrive(&prospect)}
	if w.json {
		return json.NewEncoder(w.p.Stdout).Encode(shown)
	}
	table := tabwriter.NewWriter(w.p.Stdout, 0, 0, 2, ' ', 0)
	writeFacts(table, "", []fact{
		{"state", shown.State},
		{"route", shown.Route},
		{"verdict", shown.Verdict},
		{"class", shown.Class},
		{"reason", shownText(shown.Reason)},
		{"key", shown.Key},
		{"origin", shown.Origin},
		{"attempt", strconv.Itoa(shown.Attempt)},
		{"time", timeText(shown.Time)},
		{"redrive", shown.Redrive.text()},
	})
	writeFacts(table, "", shown.Record.facts())
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write standard output: %w", err)
	}
	return nil
}
