package app

import "log/slog"

// DuplicateLog says how the duplicates of topics are logged. One by HTTP has its line in the request log
// too.
type DuplicateLog struct {
	// Level is that of the line for a duplicate. One for an event after its window is info, because
	// the event comes out again.
	Level slog.Level `env:"LEVEL" envDefault:"debug" help:"level of the log line for a duplicate: debug, info, warn or error; the line for an event after its window is info"`
	// Max is how many of these lines a task writes in ten seconds, of each kind; 0 for none.
	Max int `env:"MAX" envDefault:"10" help:"most lines for duplicates that a task writes in ten seconds, and as many for events after their window; 0 = none. Metrics count all"`
}

// DuplicateLogMax bounds Max.
const DuplicateLogMax = 10_000
