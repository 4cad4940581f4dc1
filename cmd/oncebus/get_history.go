package main

import (
	"strings"
	"time"

	"oncebus/processor/front"
)

// historyFacts returns the lines of a history in the output for people.
func historyFacts(h *front.History) []fact {
	if h == nil {
		return nil
	}
	var facts []fact
	if h.Earlier > 0 {
		facts = append(facts, fact{"history", plural(h.Earlier, "earlier record") + " not shown: raise --history"})
	}
	for i := range h.Entries {
		facts = append(facts, fact{"history", describeHistory(&h.Entries[i])})
	}
	if len(h.Entries) == 0 {
		facts = append(facts, fact{"history", "no record about the key in " + strings.Join(h.Topics, ", ")})
	}
	if h.CountsOnly {
		facts = append(facts, fact{"history", "the route drops duplicates: only their number is known, see oncebus stats"})
	}
	if h.Cut != "" {
		facts = append(facts, fact{"history", "incomplete: reading ended " + h.Cut})
	}
	return facts
}

func describeHistory(e *front.HistoryEntry) string {
	parts := []string{time.UnixMilli(e.Time).UTC().Format(time.RFC3339Nano), e.At}
	for _, part := range []fact{
		{"", e.Verdict}, {"outcome", e.Outcome}, {"status", e.ClaimStatus}, {"attempt", e.Attempt}, {"sent as", e.Source},
	} {
		if part.value != "" {
			parts = append(parts, strings.TrimSpace(part.name+" "+part.value))
		}
	}
	text := strings.Join(parts, " ")
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if !printable([]byte(text)) {
		text = strings.ToValidUTF8(strings.Map(visible, text), "\uFFFD")
	}
	return text
}

// visible replaces a control character. Any producer may put control characters into a header.
func visible(r rune) rune {
	if r < ' ' || r == 0x7f {
		return '\uFFFD'
	}
	return r
}
