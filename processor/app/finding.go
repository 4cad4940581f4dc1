package app

import (
	"context"
	"log/slog"
)

// Level is how much a finding matters. A higher level matters more.
type Level uint8

const (
	// OK marks a fact that is as it should be.
	OK Level = iota
	// Unchecked marks a fact that the user has no right to read; oncebus runs without this right.
	Unchecked
	// Note marks a fact that matters in production.
	Note
	// AtRisk marks a fact with which the app works but may lose something.
	AtRisk
	// Fails marks a fact with which the app does not start or does not process.
	Fails
)

func (l Level) String() string {
	return [...]string{"ok", "unchecked", "note", "at risk", "fails"}[l]
}

// MarshalText implements encoding.TextMarshaler.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// Finding is one verdict of a diagnosis. Its JSON names are an interface: programs read them.
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

// LogFindings logs each finding, in one line, at the log level of its Level. It logs nothing above a warning:
// if the process cannot work, it stops by itself with an error.
func LogFindings(ctx context.Context, log *slog.Logger, findings []Finding) {
	levels := map[Level]slog.Level{OK: slog.LevelDebug, Unchecked: slog.LevelDebug, Note: slog.LevelInfo, AtRisk: slog.LevelWarn, Fails: slog.LevelWarn}
	for _, f := range findings {
		log.Log(ctx, levels[f.Level], "start check", "check", f.Check, "result", f.Level.String(), "finding", f.Text, "action", f.Action)
	}
}
