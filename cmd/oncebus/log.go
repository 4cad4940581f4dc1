package main

import (
	"io"
	"log/slog"
)

// The values of ONCEBUS_LOG_FORMAT.
const (
	logText = "text"
	logJSON = "json"
)

// newLogger returns a logger that writes records of level and above to w.
func newLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == logJSON {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}
