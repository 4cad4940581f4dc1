package app

import (
	"context"
	"log/slog"
)

// Level is how much a finding matters. The levels are ordered.
type Level uint8

const (
	// OK is a fact as it should be.
	OK Level = iota
	// Unchecked is a fact that oncebus has no right to read, and needs none to run.
	Unchecked
	// Note is a fact that matters in production.
	Note
	// AtRisk is a fact with which the app works, and may lose something.
	AtRisk
	// Fails is a fact with which the app does not start, or does not process.
	Fails
)

func (l Level) String() string {
	return [...]string{"ok", "unchecked", "note", "at risk", "fails"}[l]
}

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Finding is one verdict of a diagnosis. Its JSON names are an interface.
type Finding struct {
	Check string `json:"check"`
	Level Level  `json:"level"`
	Text  string `json:"finding"`
	// Action is what the operator can do; "" if nothing has to be done.
	Action string `json:"action,omitempty"`
}

// Worst returns the highest level of findings.
func Worst(findings []Finding) Level {
	worst := OK
	for _, f := range findings {
		worst = max(worst, f.Level)
	}
	return worst
}

// LogFindings logs the findings that are not fine, one line each. The highest level is
// a warning: the process stops by itself, with an error, if it cannot work.
func LogFindings(ctx context.Context, log *slog.Logger, findings []Finding) {
	levels := map[Level]slog.Level{OK: slog.LevelDebug, Unchecked: slog.LevelDebug, Note: slog.LevelInfo, AtRisk: slog.LevelWarn, Fails: slog.LevelWarn}
	for _, f := range findings {
		log.Log(ctx, levels[f.Level], "start check", "check", f.Check, "result", f.Level.String(), "finding", f.Text, "action", f.Action)
	}
}
