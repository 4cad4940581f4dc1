package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
)

const forgetAbout = "Erases the rows of keys, so that the next event with the key is unique, or in claim mode a\n" +
	"further attempt. With the row go its result and the ids of its requests. The command writes a\n" +
	"request to the app's manifest topic. The service erases the row in a transaction, and the\n" +
	"command waits for that. The request names the event and the attempt of the row, so it erases\n" +
	"no later one, and may be repeated. It does not erase the records of the topics themselves:\n" +
	"it lists them, and says how to. " + inspectAbout

// forgetOptions are the flags of forget that get does not have.
type forgetOptions struct {
	timeout time.Duration
}

// forgetCommand is 'oncebus forget'.
func forgetCommand() cli.Command {
	var o inspectOptions
	return cli.Command{
		Name: "forget", Synopsis: "[OPTIONS] [FILE|-]", About: "erase the state of keys, so that their next events are unique", ArgsMax: 1,
		Long: forgetAbout, Example: "oncebus forget --route signals --id t-1\n" +
			"oncebus forget --route signals --file ids.txt\n" +
			`echo '{"account":"a","requestId":"r1","operation":"grant"}' | oncebus forget --route operations`,
		Flags: func(fs *pflag.FlagSet) {
			o.define(fs)
			fs.StringVar(&o.file, "file", "", "erase all keys in the `file`, or of standard input for -, one a line: an event as a JSON object,\n"+
				"the parts of a composite id as a JSON array, a dedup key of 64 hexadecimal digits, or an id")
			fs.DurationVar(&o.erased.timeout, "timeout", 30*time.Second, "how long to wait until the service has erased the rows; 0 only writes the requests")
		},
		Words: routeWords(&o.routesFile),
		Run:   o.forget,
	}
}

func (o *inspectOptions) forget(ctx context.Context, rest []string, p cli.Process) int {
	in, code, done := o.inspect(ctx, "forget", rest, p)
	if done {
		return code
	}
	options := front.ForgetOptions{Timeout: o.erased.timeout, By: operatorName()}
	erasing := cli.NewProgress(p, "rows")
	options.Progress = func(done, all int64) {
		in.inspector.OnProgress(nil)
		in.progress.End()
		erasing.Set(done, all)
	}
	erasures, err := in.inspector.Forget(ctx, in.targets, options)
	in.progress.End()
	erasing.End()
	in.inspector.Close()
	if err != nil {
		cli.Printf(p.Stderr, "oncebus forget: %v\n", err)
		return codeOf(err)
	}
	shown := showErasures(erasures)
	if o.json {
		if err := json.NewEncoder(p.Stdout).Encode(shown); err != nil {
			cli.Printf(p.Stderr, "oncebus forget: %v\n", err)
			return cli.ExitFailed
		}
	} else {
		shown.write(p)
	}
	if shown.Requested > 0 && o.erased.timeout > 0 {
		cli.Printf(p.Stderr, "oncebus forget: %s not erased within %v: the service does not run, or a task restores or bypasses its store; it erases them when it can\n",
			plural(shown.Requested, "row"), o.erased.timeout)
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// shownErasures is the output of forget. Its JSON names are an interface.
type shownErasures struct {
	Keys       int `json:"keys"`
	WithoutRow int `json:"without_row"` // keys without a row
	Erased     int `json:"erased"`      // rows that were erased
	Superseded int `json:"superseded"`
	Requested  int `json:"requested"` // rows whose erasure was requested but has not happened yet
	// Results has one element for each key.
	Results []shownErasure `json:"results"`
	// Remains lists the topics that may still contain the events: the command does not delete records from
	// these topics.
	Remains []remains `json:"remains"`
}

// shownErasure is what happened to one of the selected keys.
type shownErasure struct {
	Selected string           `json:"selected"` // as on the command line, or file:line
	Route    string           `json:"route"`
	Key      string           `json:"key"`
	Digest   string           `json:"digest"`
	Rows     []shownErasedRow `json:"rows"`
	// FreeAfter is the last attempt of a key of claim mode that is already free.
	FreeAfter uint32 `json:"free_after_attempt,omitempty"`
	hint      string
}

// shownErasedRow is a row that the command has erased, or has asked to be erased.
type shownErasedRow struct {
	Digest  string              `json:"digest"`
	Task    string              `json:"task"`
	First   string              `json:"first"`
	Status  string              `json:"status"`
	Attempt uint32              `json:"attempt,omitempty"`
	Result  front.ErasureResult `json:"result"`
}

// remains is a topic whose records may contain the event.
type remains struct {
	Topic string `json:"topic"`
	What  string `json:"what"`
}

func showErasures(erasures []front.Erasure) *shownErasures {
	s := &shownErasures{Keys: len(erasures), Remains: []remains{}}
	var routes []*rules.Route
	for i := range erasures {
		e := &erasures[i]
		shown := shownErasure{
			Selected: e.Text, Route: e.Key.Route.Name, Key: hex.EncodeToString(e.Key.Key[:]), Digest: e.Key.Digest.String(), Rows: []shownErasedRow{}, FreeAfter: e.FreeAfter, hint: adjacentHint(&e.Key),
		}
		for _, row := range e.Rows {
			shown.Rows = append(shown.Rows, shownErasedRow{row.Digest.String(), row.Task, row.First, row.Status.String(), row.Attempt, row.Result})
			switch row.Result {
			case front.Erased:
				s.Erased++
			case front.Superseded:
				s.Superseded++
			case front.Requested:
				s.Requested++
			}
		}
		if len(e.Rows) == 0 {
			s.WithoutRow++
		}
		s.Results = append(s.Results, shown)
		if !slices.Contains(routes, e.Key.Route) {
			routes = append(routes, e.Key.Route)
			s.addRemains(e.Key.Route)
		}
	}
	return s
}

// addRemains adds the topics of a route whose records may contain the route's events.
func (s *shownErasures) addRemains(r *rules.Route) {
	add := func(what string, topics ...string) {
		for _, topic := range topics {
			if topic != "" && !slices.ContainsFunc(s.Remains, func(have remains) bool { return have.Topic == topic }) {
				s.Remains = append(s.Remains, remains{topic, what})
			}
		}
	}
	add("input", r.Topics...)
	add("output", r.Output)
	add("duplicates", r.Duplicates.Topic)
	add("dead letters", r.DeadLetter)
	add("outcomes", r.Claim.Outcomes)
	add("replies", r.Claim.Replies)
	add("answers", r.Claim.Answers)
}

// listedMax is how many keys the output for people lists individually. It always lists the keys with rows that
// are not erased.
const listedMax = 20

// write prints the erasures as text for people.
func (s *shownErasures) write(p cli.Process) {
	for i := range s.Results {
		r := &s.Results[i]
		if s.Keys > listedMax && !slices.ContainsFunc(r.Rows, func(row shownErasedRow) bool { return row.Result != front.Erased }) {
			continue
		}
		switch {
		case len(r.Rows) == 0 && r.FreeAfter > 0:
			cli.Printf(p.Stdout, "key %s of route %s is free after attempt %d: nothing to erase\n", r.Key, r.Route, r.FreeAfter)
		case len(r.Rows) == 0:
			cli.Printf(p.Stdout, "no row for key %s of route %s: nothing to erase%s\n", r.Key, r.Route, r.hint)
		}
		for _, row := range r.Rows {
			cli.Printf(p.Stdout, "%s key %s of route %s: the row of %s, %s, in task %s%s\n", row.Result, r.Key, r.Route, row.First, row.Status, row.Task, describeErasure[row.Result])
		}
	}
	if s.Keys > 1 {
		cli.Printf(p.Stdout, "%s: %s erased, %d superseded, %d requested and not yet erased; %s without a row\n",
			plural(s.Keys, "key"), plural(s.Erased, "row"), s.Superseded, s.Requested, plural(s.WithoutRow, "key"))
	}
	if s.Erased+s.Requested+s.Superseded == 0 {
		return
	}
	cli.Printf(p.Stdout, "Not erased are records of topics, which may have the event:\n")
	for _, r := range s.Remains {
		cli.Printf(p.Stdout, "  %s: %s\n", r.What, r.Topic)
	}
	cli.Printf(p.Stdout, "They go by the topic's retention, by kafka-delete-records.sh, or in a compacted topic by a tombstone of\n"+
		"their record key. The changelog keeps the former row until compaction or trimming, and backups keep all.\n"+
		"COMMANDS.md, \"Erase keys\", says until when.\n")
}

var describeErasure = map[front.ErasureResult]string{
	front.Erased:     "",
	front.Superseded: "; a later event or attempt took the key first, and keeps it: repeat the command to erase that too",
	front.Requested:  "; no task has applied the request yet",
}
