package page

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Limits of the log: how many entries it keeps, and how many bytes of an entry's fields.
const (
	entriesMax     = 50
	detailBytesMax = 1000
)

// Log keeps the latest warnings and errors of a process. Its methods may be called concurrently.
type Log struct {
	mu      sync.Mutex
	entries []Entry // the oldest first
}

// Handler returns a handler that passes every record to next and keeps the records at level WARN or above. A
// handler that redacts secrets must be in front of this handler.
func (l *Log) Handler(next slog.Handler) slog.Handler { return &logHandler{log: l, next: next} }

// Entries returns the entries, beginning with the newest.
func (l *Log) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := slices.Clone(l.entries)
	slices.Reverse(all)
	if all == nil {
		all = []Entry{}
	}
	return all
}

// add adds a line to the log. Equal lines that follow each other become a single entry with a count.
func (l *Log) add(at time.Time, level slog.Level, text, detail string) {
	if len(detail) > detailBytesMax {
		detail = strings.ToValidUTF8(detail[:detailBytesMax], "") + " ..."
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.entries); n > 0 && l.entries[n-1].Text == text && l.entries[n-1].Detail == detail {
		l.entries[n-1].Time = at
		l.entries[n-1].Count++
		return
	}
	if len(l.entries) == entriesMax {
		l.entries = slices.Delete(l.entries, 0, 1)
	}
	known := advices[text]
	l.entries = append(l.entries, Entry{
		Time: at, Level: level.String(), Text: text, Detail: detail, Count: 1, Advice: known.do, Page: known.page,
	})
}

// logHandler keeps warnings and errors in a Log, and passes all records on.
type logHandler struct {
	log    *Log
	next   slog.Handler
	fields string // the fields of WithAttrs as text
	prefix string // the groups of WithGroup, each with a dot
}

// Enabled implements slog.Handler.
func (h *logHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn || h.next.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelWarn {
		text := strings.Builder{}
		text.WriteString(h.fields)
		r.Attrs(func(a slog.Attr) bool {
			appendField(&text, h.prefix, a)
			return true
		})
		h.log.add(r.Time, r.Level, r.Message, text.String())
	}
	if !h.next.Enabled(ctx, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	text := strings.Builder{}
	text.WriteString(h.fields)
	for _, a := range attrs {
		appendField(&text, h.prefix, a)
	}
	return &logHandler{log: h.log, next: h.next.WithAttrs(attrs), fields: text.String(), prefix: h.prefix}
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	return &logHandler{log: h.log, next: h.next.WithGroup(name), fields: h.fields, prefix: h.prefix + name + "."}
}

// appendField appends a field as name=value. It appends the fields of a group individually.
func appendField(to *strings.Builder, prefix string, a slog.Attr) {
	v := a.Value.Resolve()
	if v.Kind() == slog.KindGroup {
		for _, member := range v.Group() {
			appendField(to, prefix+a.Key+".", member)
		}
		return
	}
	if a.Key == "instance" && prefix == "" || a.Key == "" {
		return // the page shows the instance anyway
	}
	if to.Len() > 0 {
		to.WriteByte(' ')
	}
	to.WriteString(prefix + a.Key + "=" + v.String())
}
