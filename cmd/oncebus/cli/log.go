package cli

import (
	"io"
	"log/slog"
)

// The values of ONCEBUS_LOG_FORMAT.
const (
	LogText = "text"
	LogJSON = "json"
)

// NewLogger returns a logger that writes lines of this level and above to w. format is LogText or LogJSON.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == LogJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
