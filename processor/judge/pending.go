package judge

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/formats"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// PendingSchemaError reports a record whose schema has not been read yet. That is neither a fault of
// the record nor a verdict: the partition waits for the schema, and nothing of the record was emitted.
// A transaction of the routing stage aborts, because it would commit everything that was polled.
type PendingSchemaError struct {
	Format rules.RecordFormat
	Schema formats.Reference
	Offset int64 // offset of the record
}

// Error implements error.
func (e *PendingSchemaError) Error() string {
	what := e.Format.SchemaFile
	if what == "" {
		what = e.Schema.String()
	}
	return fmt.Sprintf("the record at offset %d waits, and all after it, until %s was read", e.Offset, what)
}

// Unwrap returns kafka.ErrMustAbort: the transaction must abort.
func (e *PendingSchemaError) Unwrap() error { return kafka.ErrMustAbort }

// pendingOf returns the error for a record with the finding SchemaPending.
func pendingOf(rec *kgo.Record, derived *rules.Derived) error {
	return &PendingSchemaError{Format: derived.Format, Schema: derived.Schema, Offset: rec.Offset}
}
