package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor/selfaudit"
)

// shownSelfAudit is the result of a self-audit, for printing.
type shownSelfAudit struct {
	*selfaudit.Result
	app    string
	routes *rules.Routes
}

// auditJSON is the output as JSON. Its JSON names are an interface.
type auditJSON struct {
	App     string `json:"app"`
	Verdict string `json:"verdict"` // held, broken, or begins
	// From is where the audited range begins, "" for the app's first record; To is where the range ends.
	From string `json:"from"`
	To   string `json:"to"`
	// Records is how many records the audit has read, within Seconds. CutSeconds is how long it took before to
	// find the end of the range, because the audit had to wait until open transactions ended.
	Records    int64        `json:"records"`
	Seconds    float64      `json:"seconds"`
	CutSeconds float64      `json:"cut_seconds"`
	Routes     []auditRoute `json:"routes"`
	Keys       int          `json:"keys"`
	// The audit followed one of OneIn keys, and matched the outputs of one of OneInMatched keys with the
	// changelog. 1 means all keys.
	OneIn          int64 `json:"one_in"`
	OneInMatched   int64 `json:"one_in_matched"`
	Carried        int   `json:"carried"`
	Replies        int64 `json:"replies"`
	RepliesUnknown int64 `json:"replies_unknown"`
	// Violations has the number of all violations by invariant; Findings describes the first violations of
	// each.
	Violations map[string]int64    `json:"violations"`
	Findings   []selfaudit.Finding `json:"findings"`
	Reasons    []string            `json:"reasons"` // why nothing was audited
	Positions  auditPositions      `json:"positions"`
}

// auditRoute has the numbers of a route.
type auditRoute struct {
	Route string `json:"route"`
	selfaudit.RouteCounts
}

// auditPositions has the first offsets that were not audited, by topic and in the order of partitions.
type auditPositions struct {
	Inputs     map[string][]int64 `json:"inputs"`
	Changelogs map[string][]int64 `json:"changelogs"`
	Emissions  map[string][]int64 `json:"emissions"`
}

func (a *shownSelfAudit) verdict() string {
	switch {
	case !a.Held():
		return "broken"
	case a.Begins:
		return "begins"
	}
	return "held"
}

// since returns the time at which the audited range begins; "" for the app's first record.
func (a *shownSelfAudit) since() string {
	if a.From == nil || a.From.IsStart() {
		return ""
	}
	return a.From.At.Format(time.RFC3339)
}

// rate returns how many records the audit read per second.
func (a *shownSelfAudit) rate() int64 {
	return int64(float64(a.Records) / max(a.Took.Seconds(), 0.001))
}

func (a *shownSelfAudit) writeJSON(to io.Writer) error {
	shown := auditJSON{
		App: a.app, Verdict: a.verdict(), From: a.since(), To: a.To.At.Format(time.RFC3339), Records: a.Records, Seconds: a.Took.Seconds(), CutSeconds: a.Cut.Seconds(), Routes: []auditRoute{},
		Keys: a.Report.Keys, OneIn: a.Report.OneIn, OneInMatched: a.Report.OneInMatched, Carried: a.Report.Carried, Replies: a.Report.Replies, RepliesUnknown: a.Report.RepliesUnknown,
		Violations: a.Report.Counts, Findings: a.Findings, Reasons: a.Since, Positions: auditPositions{a.To.Inputs, a.To.Changelogs, a.To.Emissions},
	}
	for i, r := range a.routes.Routes {
		shown.Routes = append(shown.Routes, auditRoute{r.Name, a.Report.Routes[i]})
	}
	if shown.Findings == nil {
		shown.Findings = []selfaudit.Finding{}
	}
	if shown.Reasons == nil {
		shown.Reasons = []string{}
	}
	return json.NewEncoder(to).Encode(shown)
}

// violations returns the number of all violations.
func (a *shownSelfAudit) violations() (n int64) {
	for _, count := range a.Report.Counts {
		n += count
	}
	return n
}

// writeLine prints one line for a log, and one further line for each finding.
func (a *shownSelfAudit) writeLine(to io.Writer) {
	var inputs, unique, duplicates int64
	for _, r := range a.Report.Routes {
		inputs, unique, duplicates = inputs+r.Inputs, unique+r.Unique, duplicates+r.Duplicates
	}
	cli.Printf(to, "self-audit app=%s verdict=%s from=%s to=%s inputs=%d unique=%d duplicates=%d violations=%d records=%d rate=%d/s one_in=%d\n",
		a.app, a.verdict(), cmp.Or(a.since(), "start"), a.To.At.Format(time.RFC3339), inputs, unique, duplicates, a.violations(), a.Records, a.rate(), a.Report.OneIn)
	a.writeFindings(to)
}

func (a *shownSelfAudit) writeFindings(to io.Writer) {
	for _, f := range a.Findings {
		cli.Printf(to, "%s\n", f)
	}
	for _, invariant := range slices.Sorted(maps.Keys(a.Report.Counts)) {
		if n := a.Report.Counts[invariant]; n > selfaudit.MaxFindings {
			cli.Printf(to, "%s: and %d further findings\n", invariant, n-selfaudit.MaxFindings)
		}
	}
}

// write prints the result as text for people.
func (a *shownSelfAudit) write(to io.Writer) error {
	since := cmp.Or(a.since(), "its first record")
	switch a.verdict() {
	case "begins":
		cli.Printf(to, "app %s: nothing was audited. The audit begins at %s, because records from before were deleted or routes have changed:\n", a.app, a.To.At.Format(time.RFC3339))
		for _, what := range a.Since {
			cli.Printf(to, "  %s\n", what)
		}
		cli.Printf(to, "Save the position with --save, and go on from it with --from.\n")
		return nil
	case "held":
		cli.Printf(to, "app %s: the promise held from %s to %s\n\n", a.app, since, a.To.At.Format(time.RFC3339))
	default:
		cli.Printf(to, "app %s: THE PROMISE DID NOT HOLD from %s to %s: %s\n\n", a.app, since, a.To.At.Format(time.RFC3339), plural(int(a.violations()), "violation"))
	}
	tw := tabwriter.NewWriter(to, 0, 0, 2, ' ', tabwriter.AlignRight)
	cli.Printf(tw, "route\tinputs\tunique\tduplicates\tdead letters\tforwarded\tdropped\tunexplained\t\n")
	for i, r := range a.routes.Routes {
		c := &a.Report.Routes[i]
		cli.Printf(tw, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t\n", r.Name, c.Inputs, c.Unique, c.Duplicates, c.DeadLetters, c.Forwarded, c.Dropped, c.Unexplained)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write standard output: %w", err)
	}
	cli.Printf(to, "\n%d records read in %v, %d/s; %d keys in memory, %s; %d records wait for the next audit\n",
		a.Records, a.Took.Round(time.Millisecond), a.rate(), a.Report.Keys, followed(&a.Report), a.Report.Carried)
	a.writeFindings(to)
	return nil
}

// followed returns a text that says which part of the keys the audit has followed.
func followed(r *selfaudit.Report) string {
	switch {
	case r.OneInMatched > 1:
		return fmt.Sprintf("1 of %d keys followed, outputs of 1 of %d keys matched", r.OneIn, r.OneInMatched)
	case r.OneIn > 1:
		return fmt.Sprintf("1 of %d keys followed, all outputs matched with the changelog", r.OneIn)
	}
	return "all followed"
}
