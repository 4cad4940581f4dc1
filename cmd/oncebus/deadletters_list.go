package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/deadletter"
)

// listLettersCommand is 'oncebus dead-letters list'.
func listLettersCommand() cli.Command {
	var o letterOptions
	return cli.Command{
		Name: "list", Synopsis: "[OPTIONS]", About: "list the dead letters that are open",
		Long: "Lists the dead letters that are open, one on each line: those that were neither redriven nor\n" +
			"dropped. The time is that of the record, as its producer set it. --summary counts them by\n" +
			"route and class of reason. As JSON the list has one object on each line.",
		Example: "oncebus dead-letters list --summary\n" +
			"oncebus dead-letters list --route signals --reason missing_key --since 2h",
		Flags: func(fs *pflag.FlagSet) {
			o.define(fs)
			fs.BoolVar(&o.all, "all", false, "also list those that were redriven or dropped")
			fs.BoolVar(&o.summary, "summary", false, "print the numbers only, by route and class")
		},
		Words: o.words,
		Run: func(ctx context.Context, _ []string, p cli.Process) int {
			return o.run(ctx, "list", p, func(ctx context.Context, w *letterWork) (int, error) { return cli.ExitStopped, w.list(ctx) })
		},
	}
}

// shownLetter is a dead letter in the output of list and show. Its JSON names are an interface.
type shownLetter struct {
	At      string `json:"at"` // topic/partition/offset
	State   string `json:"state"`
	Time    int64  `json:"time"` // of the record, Unix milliseconds
	Route   string `json:"route,omitempty"`
	Verdict string `json:"verdict,omitempty"`
	Class   string `json:"class"`
	Reason  string `json:"reason,omitempty"`
	Key     string `json:"key,omitempty"`
	Origin  string `json:"origin,omitempty"` // topic/partition/offset
	Attempt int    `json:"attempt"`          // how often it was redriven before
}

func newShownLetter(l *deadletter.Letter, state deadletter.State) *shownLetter {
	shown := &shownLetter{
		At: l.At.String(), State: state.String(), Time: l.Time, Route: l.Route, Verdict: l.Verdict, Class: string(l.Class),
		Reason: l.Reason, Key: l.Key, Attempt: l.Attempt,
	}
	if l.Origin.IsSet() {
		shown.Origin = l.Origin.String()
	}
	return shown
}

// lettersPerTable is how many lines are aligned to common columns. A longer list is printed in several tables,
// while the dead letters are being read.
const lettersPerTable = 200

func (w *letterWork) list(ctx context.Context) error {
	progress := w.progress("offsets")
	defer progress.End()
	groups := map[groupKey]*letterGroup{}
	encoder := json.NewEncoder(w.p.Stdout)
	table := tabwriter.NewWriter(w.p.Stdout, 0, 0, 2, ' ', 0)
	listed := 0
	var failed error
	err := w.client.Scan(ctx, &w.filter, progress.Set, func(l *deadletter.Letter) bool {
		state := w.client.StateOf(l)
		if state != deadletter.Open && !w.all {
			return true
		}
		listed++
		switch {
		case w.summary:
			addLetter(groups, l)
		case w.json:
			failed = encoder.Encode(newShownLetter(l, state))
		default:
			if listed == 1 {
				cli.Printf(table, "position\ttime\tstate\troute\tverdict\tkey\torigin\tattempt\treason\n")
			}
			writeLetter(table, newShownLetter(l, state))
			if listed%lettersPerTable == 0 {
				failed = table.Flush()
			}
		}
		return failed == nil && (w.limit == 0 || listed < w.limit)
	})
	progress.End()
	if err := cmp.Or(err, failed, table.Flush()); err != nil {
		return err
	}
	if w.summary {
		return writeSummary(w, groups)
	}
	if listed == 0 && !w.json {
		cli.Printf(w.p.Stdout, "no dead letter is open that the options select\n")
	}
	return nil
}

func writeLetter(table *tabwriter.Writer, l *shownLetter) {
	cli.Printf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", l.At, timeText(l.Time), l.State, cmp.Or(l.Route, "-"), cmp.Or(l.Verdict, "-"),
		cmp.Or(shortKey(l.Key), "-"), cmp.Or(l.Origin, "-"), l.Attempt, cmp.Or(shownText(l.Reason), "not written by oncebus"))
}

// shortKey shortens a dedup key to the digits that suffice for people to recognise it.
func shortKey(key string) string { return key[:min(len(key), 12)] }

// shownText quotes a text if it has characters that a terminal would interpret.
func shownText(text string) string {
	if printable([]byte(text)) {
		return text
	}
	return strconv.Quote(text)
}

func timeText(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }

// groupKey is what --summary counts dead letters by.
type groupKey struct{ route, class string }

// letterGroup counts the dead letters of a route and class. Its JSON names are an interface.
type letterGroup struct {
	Route  string `json:"route"`
	Class  string `json:"class"`
	Count  int    `json:"count"`
	Oldest int64  `json:"oldest"` // time of a record, Unix milliseconds
	Newest int64  `json:"newest"`
	Reason string `json:"reason"` // of one of them
}

func addLetter(groups map[groupKey]*letterGroup, l *deadletter.Letter) {
	of := groupKey{l.Route, string(l.Class)}
	g := groups[of]
	if g == nil {
		g = &letterGroup{Route: l.Route, Class: of.class, Oldest: l.Time, Newest: l.Time, Reason: l.Reason}
		groups[of] = g
	}
	g.Count++
	g.Oldest, g.Newest = min(g.Oldest, l.Time), max(g.Newest, l.Time)
}

func writeSummary(w *letterWork, groups map[groupKey]*letterGroup) error {
	sorted := slices.SortedFunc(maps.Values(groups), func(a, b *letterGroup) int {
		return cmp.Or(cmp.Compare(a.Route, b.Route), cmp.Compare(a.Class, b.Class))
	})
	if w.json {
		if sorted == nil {
			sorted = []*letterGroup{}
		}
		return json.NewEncoder(w.p.Stdout).Encode(map[string]any{"groups": sorted})
	}
	table := tabwriter.NewWriter(w.p.Stdout, 0, 0, 2, ' ', 0)
	cli.Printf(table, "route\tclass\tcount\toldest\tnewest\treason of one\n")
	total := 0
	for _, g := range sorted {
		total += g.Count
		cli.Printf(table, "%s\t%s\t%d\t%s\t%s\t%s\n", cmp.Or(g.Route, "-"), g.Class, g.Count, timeText(g.Oldest), timeText(g.Newest), shownText(g.Reason))
	}
	cli.Printf(table, "all\t\t%d\t\t\t\n", total)
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write standard output: %w", err)
	}
	return nil
}
