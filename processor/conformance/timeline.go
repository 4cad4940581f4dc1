package conformance

import (
	"cmp"
	"fmt"
	"time"
)

// What is the kind of an entry of a timeline.
type What uint8

// The entries. Each comment names the fields that it has, besides At.
const (
	Dispatched What = iota // the kit produced an event: Dispatch
	Asked                  // the executor sent start or renew: Token, Kind, StartID
	Answered               // the kit answered: Token, Kind, StartID, Granted
	Superseded             // the kit announced that the attempt is superseded: Token
	Outcome                // the executor's outcome was committed: Token or ReplyTo, Kind, Value, Producer
	Committed              // the group committed an offset: Partition, Offset, Producer
	Killed                 // the executor was killed
	Booked                 // the gateway booked a charge: Reference
	IdleOpen               // a transaction was open on the outcomes topic while no event was: Partition
	GroupLost              // the group had no member while no event came
	Missed                 // the kit waited in vain: Note says for what
)

// Entry is one thing that happened in a run.
type Entry struct {
	What What
	At   time.Time

	Dispatch  *Dispatch
	Token     string
	ReplyTo   string
	Kind      string // of an outcome or a question, as in its header
	StartID   string
	Granted   bool
	Value     []byte
	Producer  Producer
	Partition int32
	Offset    int64 // the next one that the group reads
	Reference string
	Note      string
}

// Producer is the producer of a record. ID and Epoch name its transaction, where each one has
// an epoch of its own (Kafka 4.0 and later).
type Producer struct {
	ID            int64
	Epoch         int16
	Transactional bool
}

// Dispatch is an event that the kit produced.
type Dispatch struct {
	Step      int // index in the scenario
	Event     *Event
	Token     string // "" without a claim
	ReplyTo   string // of the request that waits, if there is no claim
	Key       string // as its header has it, the same in all attempts; "" without a claim
	Attempt   uint32
	Partition int32
	Offset    int64
	Aborted   bool // in a transaction that was aborted
	Refused   bool // its start is superseded
	Renewed   bool // it takes longer than the lease
}

// name is what the outcome of an event has: its token, or the request that waits; "" for no outcome.
func (d *Dispatch) name() string { return cmp.Or(d.Token, d.ReplyTo) }

// String names an event in a finding.
func (d *Dispatch) String() string {
	return fmt.Sprintf("event %s of step %d, attempt %d, at %d/%d", d.Event.Name, d.Step+1, d.Attempt, d.Partition, d.Offset)
}

// Timeline is what happened in a run, in the order in which the kit saw it.
type Timeline struct {
	Entries []Entry
	// OffsetsRead says that the commits of offsets were read: then Committed has all of them.
	OffsetsRead bool
}
