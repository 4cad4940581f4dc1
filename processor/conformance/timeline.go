package conformance

import (
	"cmp"
	"fmt"
	"time"
)

// What is the kind of an entry of a timeline.
type What uint8

// The kinds of entries. Each comment names the fields that the entry has, besides At.
const (
	Dispatched What = iota // the kit has produced an event: Dispatch
	Asked                  // the executor has asked with start or renew: Token, Kind, StartID
	Answered               // the kit has answered: Token, Kind, StartID, Granted
	Superseded             // the kit has announced that an attempt is superseded: Token
	Outcome                // an outcome of the executor was committed: Token or ReplyTo, Kind, Value, Producer
	Committed              // the consumer group has committed an offset: Partition, Offset, Producer
	Killed                 // the executor was killed
	Booked                 // the gateway booked a charge: Reference
	IdleOpen               // a transaction was open on the outcomes topic while no event came: Partition
	GroupLost              // the group had no member while no event came
	Missed                 // the kit has waited in vain: Note tells for what
)

// Entry is something that happened in a run.
type Entry struct {
	What What
	At   time.Time

	Dispatch  *Dispatch
	Token     string
	ReplyTo   string
	Kind      string // of an outcome or a question, as in the record's header
	StartID   string
	Granted   bool
	Value     []byte
	Producer  Producer
	Partition int32
	Offset    int64 // next offset that the consumer group reads
	Reference string
	Note      string
}

// Producer is the producer of a record. Together, ID and Epoch identify the producer's transaction if every
// transaction has its own epoch, as in Kafka 4.0 and later.
type Producer struct {
	ID            int64
	Epoch         int16
	Transactional bool
}

// Dispatch is an event that the kit has produced.
type Dispatch struct {
	Step      int // index of the step in the scenario
	Event     *Event
	Token     string // "" if the event has no claim
	ReplyTo   string // names the request that waits for the outcome, if the event has no claim
	Key       string // dedup key as in the header, the same for all attempts; "" if the event has no claim
	Attempt   uint32
	Partition int32
	Offset    int64
	Aborted   bool // produced in a transaction that was aborted
	Refused   bool // its start is to be refused as superseded
	Renewed   bool // it takes longer than the lease, so the executor must renew it
}

// name returns what identifies the event in its outcome: its token, or the waiting request; "" if it gets no
// outcome.
func (d *Dispatch) name() string { return cmp.Or(d.Token, d.ReplyTo) }

// String describes the event for a finding.
func (d *Dispatch) String() string {
	return fmt.Sprintf("event %s of step %d, attempt %d, at %d/%d", d.Event.Name, d.Step+1, d.Attempt, d.Partition, d.Offset)
}

// Timeline is what happened in a run, in the order in which the kit saw it.
type Timeline struct {
	Entries []Entry
	// OffsetsRead reports whether the kit could read Kafka's topic of committed offsets. If it could, Entries
	// has an entry of kind Committed for each commit of the executor's group.
	OffsetsRead bool
}
