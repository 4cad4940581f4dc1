package judge

import (
	"context"
	"log/slog"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// lineKind is a kind of log line that events cause. A task logs only a sample of each kind.
type lineKind uint8

const (
	lineCollision lineKind = iota
	lineLeaseExpired
	lineAfterWindow
	lineUnanswered
	lineUnannounced
	lineDuplicate
	lineKinds
)

// lineTexts are the beginnings of the log lines, by kind.
var lineTexts = [lineKinds]string{"collision", "lease expired", "duplicate after its window", "requests answered without an outcome", "superseded attempt not announced", "duplicate"}

// mayLog reports whether the sample has room for one more line of a kind.
func (t *State) mayLog(kind lineKind) bool { return t.lines[kind].Take() }

// LogOmitted logs how many lines were omitted in the intervals that are over; with all, also in the
// current interval, because the task closes.
func (t *State) LogOmitted(all bool) {
	for kind := range t.lines {
		level := slog.LevelWarn
		if lineKind(kind) == lineDuplicate {
			level = t.App.DuplicateLog.Level
		}
		t.lines[kind].LogOmitted(t.Log, level, lineTexts[kind], all)
	}
}

// logRepeat logs a duplicate, or an event after its window that is emitted again. If no line is due, it
// costs a few comparisons and allocates nothing.
func (t *State) logRepeat(ev *event, first *dedup.Row) {
	kind, level := lineDuplicate, t.App.DuplicateLog.Level
	if ev.counted == dedup.AfterWindow {
		kind, level = lineAfterWindow, slog.LevelInfo
	}
	line := &t.lines[kind]
	if line.Max = t.App.DuplicateLog.Max; line.Max == 0 || !t.Log.Enabled(context.Background(), level) || !line.Take() {
		return
	}
	attrs := []slog.Attr{
		slog.String("route", ev.route.Name), slog.String("verdict", ev.counted.String()), slog.String("key", wire.KeyText(ev.dedupKey())),
		slog.String("event", string(t.App.PositionText(ev.from))), slog.String("first", string(t.App.PositionText(first.At))), slog.Int64("first_time", first.First),
	}
	if kind == lineAfterWindow {
		t.Log.LogAttrs(context.Background(), level, "duplicate after its window is emitted again", attrs...)
		return
	}
	t.Log.LogAttrs(context.Background(), level, "duplicate", attrs...)
}
