package audit

import (
	"fmt"

	"oncebus/dedup"
)

// Event is what every rule takes of a record.
type Event struct {
	Partition int32 // index of the partition in the log
	Sender    int32 // index of the sender's name, 0 for none
	Offset    int64
	Timestamp int64  // by which partitions are merged, Unix ms; -1 for a future one at the start
	Payload   uint64 // hash of the value
}

// Key is what a rule finds in a record.
type Key struct {
	Finding Finding
	Digest  dedup.Digest
	Time    int64  // event time, Unix ms
	Reason  string // why there is no key; "" with one
}

// Finding is what a rule finds in a record.
type Finding uint8

// Findings. Elsewhere is a record of another route.
const (
	Keyed Finding = iota
	MissingKey
	Invalid
	Elsewhere
)

// Partition is one partition of a log, with the offsets that are read.
type Partition struct {
	Topic      string
	Number     int32
	Start, End int64
}

// Position is the place of a record.
type Position struct {
	Partition int32 // index of the partition in the log
	Offset    int64
}

// In returns the position as topic/partition/offset.
func (p Position) In(partitions []Partition) string {
	of := partitions[p.Partition]
	return fmt.Sprintf("%s/%d/%d", of.Topic, of.Number, p.Offset)
}
