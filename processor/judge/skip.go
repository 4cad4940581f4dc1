package judge

import (
	"errors"
)

// skipDecided returns nil if err is about the record that an operator decided to skip, else err.
func (t *Judge) skipDecided(err error) error {
	if t.Skips == nil || !errors.Is(err, t.Skips) {
		return err
	}
	t.Metrics.Skipped.Inc()
	t.Log.Warn("record skipped, as an operator decided", "reason", err)
	return nil
}
