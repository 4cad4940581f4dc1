package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/formats"
	"oncebus/processor/audit"
)

// shownAudit is the output of audit. The JSON names of its fields and their parts are an interface.
type shownAudit struct {
	Topics     []string      `json:"topics"`
	Partitions int           `json:"partitions"`
	Records    int64         `json:"records"`
	Bytes      int64         `json:"value_bytes"`
	From       time.Time     `json:"from"` // lowest and highest timestamp
	To         time.Time     `json:"to"`
	Age        int64         `json:"age_ms"`
	Ignored    []string      `json:"ignored_fields,omitempty"`
	Seconds    float64       `json:"seconds"`
	Ranked     bool          `json:"ranked"` // the rules are in the order of their rank
	Rules      []auditedRule `json:"rules"`
	Warnings   []string      `json:"warnings,omitempty"`
}

// auditedRule has the results of the audit for one rule.
type auditedRule struct {
	Rule           string            `json:"rule"`
	Usable         bool              `json:"usable"`
	Why            string            `json:"why"`
	Counted        string            `json:"counted"`    // memory, disk or sample
	OneIn          uint64            `json:"one_key_in"` // the audit counted 1 of so many keys
	Events         uint64            `json:"events"`
	MissingKey     uint64            `json:"missing_key"`
	Invalid        uint64            `json:"invalid"`
	Future         uint64            `json:"future"`
	Keys           audit.Estimate    `json:"keys"`
	Copies         audit.Estimate    `json:"copies"`
	CopyShare      float64           `json:"copy_share"` // of the events with a key
	OtherPayload   audit.Estimate    `json:"other_payload"`
	OtherPartition audit.Estimate    `json:"other_partition"`
	Prepartitioned bool              `json:"prepartitioned"` // every copy lies in the same partition as its first event
	Window         auditedAdvice     `json:"window"`
	Grace          auditedAdvice     `json:"grace"`
	Delays         []auditedDelay    `json:"delays"`
	Lateness       []auditedLateness `json:"lateness"`
	ByPartition    []auditedPart     `json:"by_partition"`
	BySender       []auditedPart     `json:"by_sender,omitempty"`
	ByHour         []auditedHour     `json:"by_hour"`
	Mismatches     []auditedMismatch `json:"other_payload_samples,omitempty"`
	MostCopied     []auditedTop      `json:"most_copied,omitempty"`
	Reasons        []auditedReason   `json:"reasons,omitempty"`
	KeysInMemory   int               `json:"keys_in_memory"`
	DiskRecords    int64             `json:"disk_records"`
	DiskBytes      int64             `json:"disk_bytes"`
}

// auditedAdvice is a recommended setting.
type auditedAdvice struct {
	MS      int64   `json:"ms"` // 0: no advice
	Text    string  `json:"text"`
	Covers  float64 `json:"covers"`
	Reason  string  `json:"reason"`
	Warning string  `json:"warning,omitempty"`
}

// auditedDelay is the number of copies with a delay up to a bound.
type auditedDelay struct {
	UpTo       int64          `json:"up_to_ms"` // 0: no bound
	Copies     audit.Estimate `json:"copies"`
	Share      float64        `json:"share"`
	ShareError float64        `json:"share_standard_error"`
}

// auditedLateness is the number of events that are late up to a bound.
type auditedLateness struct {
	UpTo   int64   `json:"up_to_ms"` // 0: events in order; -1: no bound
	Events uint64  `json:"events"`
	Share  float64 `json:"share"`
}

// auditedPart is a partition or a sender.
type auditedPart struct {
	Name   string         `json:"name"`
	Events uint64         `json:"events"`
	Copies audit.Estimate `json:"copies"`
}

// auditedHour has the numbers of an hour of event time.
type auditedHour struct {
	Start  time.Time      `json:"start"`
	Events uint64         `json:"events"`
	Copies audit.Estimate `json:"copies"`
}

// auditedMismatch is a copy whose payload differs from the payload of its first record.
type auditedMismatch struct {
	First string `json:"first"`
	Copy  string `json:"copy"`
}

// auditedTop is a key with many copies.
type auditedTop struct {
	First  string `json:"first"`
	Copies uint32 `json:"copies"`
}

// auditedReason is a reason why records have no key.
type auditedReason struct {
	Reason string `json:"reason"`
	First  string `json:"first"`
}

// sendersShown is how many senders the report shows.
const sendersShown = 10

// show converts an audit into its output.
func (w *auditWork) show(a *audit.Audit) *shownAudit {
	s := &shownAudit{
		Topics: a.Log.Topics, Partitions: len(a.Log.Partitions), Records: a.Records, Bytes: a.Bytes, From: time.UnixMilli(a.First).UTC(),
		To: time.UnixMilli(a.Last).UTC(), Age: a.Age(), Ignored: w.ignored, Seconds: a.Took.Seconds(), Ranked: w.suggest, Warnings: slices.Concat(a.Log.Warnings(), audit.Warnings(a.Rules)),
	}
	if f := w.source.Format.Format; w.suggest && f != formats.JSON {
		s.Warnings = append(s.Warnings, fmt.Sprintf("--suggest looks into JSON only: name fields of %v by --key", f))
	}
	order := a.Rank()
	if !w.suggest {
		slices.SortFunc(order, func(x, y audit.Ranked) int { return cmp.Compare(x.Rule, y.Rule) })
	}
	for _, r := range order {
		s.Rules = append(s.Rules, showRule(a, r))
	}
	return s
}

func showRule(a *audit.Audit, of audit.Ranked) auditedRule {
	c := a.Counts[of.Rule]
	r := auditedRule{
		Rule: a.Rules[of.Rule].Text, Usable: of.Usable, Why: of.Why, Counted: "memory", OneIn: 1 << c.Sample,
		Events: c.Events, MissingKey: c.MissingKey, Invalid: c.Invalid, Future: c.Future, Keys: c.Keys, Copies: c.Copies,
		CopyShare: ratio(c.Copies.N, c.Keyed), OtherPayload: c.OtherPayload, OtherPartition: c.OtherPartition,
		Prepartitioned: c.Copies.N > 0 && c.OtherPartition.N == 0,
		Window:         showAdvice(c.Window(a.Age())), Grace: showAdvice(c.Grace()),
		KeysInMemory: c.InMemory, DiskRecords: c.DiskRecords, DiskBytes: c.DiskBytes,
	}
	switch {
	case c.Sample > 0:
		r.Counted = "sample"
	case c.DiskRecords > 0:
		r.Counted = "disk"
	}
	for _, d := range c.Delays {
		r.Delays = append(r.Delays, auditedDelay{d.UpTo, d.Copies, d.Share, d.Deviation})
	}
	for _, l := range c.Lateness {
		r.Lateness = append(r.Lateness, auditedLateness(l))
	}
	r.ByPartition, r.BySender = showParts(a, c)
	for _, h := range c.Hours {
		r.ByHour = append(r.ByHour, auditedHour{time.UnixMilli(h.Start).UTC(), h.Events, h.Copies})
	}
	at := func(p audit.Position) string { return p.In(a.Log.Partitions) }
	for _, m := range c.Mismatches {
		r.Mismatches = append(r.Mismatches, auditedMismatch{at(m.First), at(m.Copy)})
	}
	for _, t := range c.Top {
		r.MostCopied = append(r.MostCopied, auditedTop{at(t.First), t.Copies})
	}
	for _, x := range c.Reasons {
		r.Reasons = append(r.Reasons, auditedReason{x.Text, at(x.First)})
	}
	return r
}

// showParts returns the partitions in their order, and the senders with the most copies.
func showParts(a *audit.Audit, c *audit.Counted) (partitions, senders []auditedPart) {
	for _, x := range c.Partitions {
		p := a.Log.Partitions[x.Index]
		partitions = append(partitions, auditedPart{p.Topic + "/" + strconv.Itoa(int(p.Number)), x.Events, x.Copies})
	}
	for _, x := range c.Senders {
		name := a.Senders[x.Index]
		switch x.Index {
		case 0:
			name = "(without one)"
		case 1:
			name = "(others)"
		}
		senders = append(senders, auditedPart{name, x.Events, x.Copies})
	}
	if len(senders) == 1 && senders[0].Name == "(without one)" {
		return partitions, nil
	}
	slices.SortStableFunc(senders, func(x, y auditedPart) int {
		return cmp.Or(cmp.Compare(y.Copies.N, x.Copies.N), cmp.Compare(y.Events, x.Events))
	})
	return partitions, senders[:min(len(senders), sendersShown)]
}

// showAdvice converts an advice. The text is a duration as the routes file spells it.
func showAdvice(a audit.Advice) auditedAdvice {
	s := auditedAdvice{MS: a.Value.Milliseconds(), Text: "none", Covers: a.Covers, Reason: a.Reason, Warning: a.Warning}
	if a.Value > 0 {
		s.Text = a.Value.String()
		if text, ok := strings.CutSuffix(s.Text, "m0s"); ok {
			s.Text = strings.TrimSuffix(text+"m", "h0m")
			if !strings.HasSuffix(s.Text, "m") {
				s.Text += "h"
			}
		}
	}
	return s
}

func ratio(part, all uint64) float64 {
	if all == 0 {
		return 0
	}
	return float64(part) / float64(all)
}

// write prints an audit as text.
func (s *shownAudit) write(w io.Writer) error {
	cli.Printf(w, "%s: %s, %s events, %s, in %.1f s\n", strings.Join(s.Topics, ", "), plural(s.Partitions, "partition"), withCommas(s.Records), audit.Duration(s.Age), s.Seconds)
	if len(s.Ignored) > 0 {
		cli.Printf(w, "payloads are compared without %s\n", strings.Join(s.Ignored, ", "))
	}
	for _, warning := range s.Warnings {
		cli.Printf(w, "warning: %s\n", warning)
	}
	if s.Ranked && len(s.Rules) > 0 {
		cli.Printf(w, "\n")
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		cli.Printf(tw, "rank\trule\tcopies\tno key\tother payload\twhy\n")
		for i := range s.Rules {
			r := &s.Rules[i]
			rank := strconv.Itoa(i + 1)
			if !r.Usable {
				rank = "-"
			}
			cli.Printf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", rank, r.Rule, estimated(r.Copies), withCommas(r.MissingKey+r.Invalid), estimated(r.OtherPayload), r.Why)
		}
		if err := tw.Flush(); err != nil {
			return fmt.Errorf("write standard output: %w", err)
		}
	}
	for i := range s.Rules {
		if s.Ranked && !s.Rules[i].Usable {
			continue
		}
		s.Rules[i].write(w)
	}
	return nil
}

// write prints the results of the audit for one rule.
func (r *auditedRule) write(w io.Writer) {
	cli.Printf(w, "\n%s\n", r.Rule)
	line := func(name, format string, args ...any) {
		cli.Printf(w, "  %-15s %s\n", name, fmt.Sprintf(format, args...))
	}
	switch r.Counted {
	case "sample":
		line("counted", "1 key in %d: a number after ± is a standard error; --exact DIR counts all keys", r.OneIn)
	case "disk":
		line("counted", "exactly; %s of %s records on disk", withCommas(r.DiskBytes/1e6)+" MB", withCommas(r.DiskRecords))
	}
	line("keys", "%s, copies %s (%s), without a key %s, invalid %s", estimated(r.Keys), estimated(r.Copies), audit.Percent(r.CopyShare), withCommas(r.MissingKey), withCommas(r.Invalid))
	for _, x := range r.Reasons {
		line("", "%s (%s)", x.Reason, x.First)
	}
	if r.Future > 0 {
		line("future", "%s events are more than an hour ahead of the clock, and not counted", withCommas(r.Future))
	}
	if r.Copies.N == 0 {
		line("window", "%s", r.Window.Reason)
		return
	}
	r.writeCopies(line)
	r.writeAdvice(line)
}

// writeCopies prints in which partitions and from which senders the copies are.
func (r *auditedRule) writeCopies(line func(name, format string, args ...any)) {
	var samples []string
	for _, m := range r.Mismatches[:min(3, len(r.Mismatches))] {
		samples = append(samples, m.Copy+" after "+m.First)
	}
	if len(samples) > 0 {
		line("other payload", "%s: %s", estimated(r.OtherPayload), strings.Join(samples, ", "))
	} else {
		line("other payload", "%s", estimated(r.OtherPayload))
	}
	if r.Prepartitioned {
		line("partitions", "all copies lie in the partition of the first: the route may be prepartitioned")
	} else {
		line("partitions", "%s of the copies lie in another partition: not prepartitioned", audit.Percent(ratio(r.OtherPartition.N, r.Copies.N)))
	}
	var senders []string
	for _, s := range r.BySender[:min(5, len(r.BySender))] {
		senders = append(senders, fmt.Sprintf("%s %s of %s", s.Name, estimated(s.Copies), withCommas(s.Events)))
	}
	if len(senders) > 0 {
		line("senders", "%s", strings.Join(senders, ", "))
	}
	var top []string
	for _, t := range r.MostCopied[:min(3, len(r.MostCopied))] {
		top = append(top, fmt.Sprintf("%s %s", t.First, withCommas(uint64(t.Copies))))
	}
	line("most copies", "%s", strings.Join(top, ", "))
}

// delaysShown are the delays that the text shows.
var delaysShown = []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour, 6 * time.Hour, 24 * time.Hour, 72 * time.Hour, 168 * time.Hour, 720 * time.Hour}

// writeAdvice prints delays, lateness, and the advice that follows from them.
func (r *auditedRule) writeAdvice(line func(name, format string, args ...any)) {
	var delays []string
	for _, d := range r.Delays {
		if !slices.Contains(delaysShown, time.Duration(d.UpTo)*time.Millisecond) {
			continue
		}
		text := audit.Duration(d.UpTo) + " " + audit.Percent(d.Share)
		if d.ShareError > 0 {
			text += " ± " + audit.Percent(d.ShareError)
		}
		if delays = append(delays, text); d.Share == 1 {
			break
		}
	}
	line("copies within", "%s", cmp.Or(strings.Join(delays, ", "), "a minute 100 %"))
	line("window", "%s: %s", r.Window.Text, r.Window.Reason)
	if r.Window.Warning != "" {
		line("", "warning: %s", r.Window.Warning)
	}
	line("grace", "%s: %s", r.Grace.Text, r.Grace.Reason)
}

// estimated writes an estimate with its standard error.
func estimated(e audit.Estimate) string {
	if e.Error == 0 {
		return withCommas(e.N)
	}
	return withCommas(e.N) + " ± " + withCommas(uint64(e.Error+0.5))
}
