package judge

import (
	"errors"

	"oncebus/processor/wire"
)

// skipDecided returns nil in place of the error about the record that an operator skips.
func (t *Judge) skipDecided(err error) error {
	unreadable, ok := errors.AsType[*wire.UnreadableError](err)
	if !ok || t.Skips == nil || unreadable.Record != t.Skips.Record || unreadable.Digest != t.Skips.Digest {
		return err
	}
	t.Metrics.Skipped.Inc()
	t.Log.Warn("record skipped, as an operator decided", "record", unreadable.Error())
	return nil
}
