package audit

import (
	"fmt"

	"oncebus/dedup"
)

// Event has the parts of a record that every rule needs.
type Event struct {
	Partition int32 // index of the partition in the log
	Sender    int32 // index of the sender's name; 0 if there is no sender
	Offset    int64
	Timestamp int64  // Unix ms, for the merge; -1 while all timestamps so far lie in the future
	Payload   uint64 // hash of the value
}

// Key is what a rule finds in a record.
type Key struct {
	Finding Finding
	Digest  dedup.Digest
	Time    int64  // event time, Unix ms
	Reason  string // why there is no key; "" if there is one
}

// Finding is what a rule finds in a record.
type Finding uint8

// The findings. Elsewhere means that the record belongs to another route.
const (
	Keyed Finding = iota
	MissingKey
	Invalid
	Elsewhere
)

// Partition is a partition of the log, with the range of offsets to read.
type Partition struct {
	Topic      string
	Number     int32
	Start, End int64
}

// Position is the position of a record in the log.
type Position struct {
	Partition int32 // index of the partition in the log
	Offset    int64
}

// In returns the position as topic/partition/offset.
func (p Position) In(partitions []Partition) string {
	of := partitions[p.Partition]
	return fmt.Sprintf("%s/%d/%d", of.Topic, of.Number, p.Offset)
}
