package oracle

// A Record is a Kafka record as a read_committed reader saw it.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Timestamp int64 // ms, as stored in the log
	Key       []byte
	Value     []byte
	Headers   []Header

	envelope []byte // of an unwrapped record of the repartition topic
}

// A Header is one header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Policy of a route for events that are not emitted as unique.
type Policy string

// The policies, spelled as in the routes file.
const (
	DeadLetter Policy = "dead_letter"
	Forward    Policy = "forward"
	Drop       Policy = "drop"
	To         Policy = "to" // duplicates only: to Route.DuplicatesTo
	Clamp      Policy = "clamp"
)

// A Route has the settings of a route that the oracle uses; durations are ms. The
// policy "" is the default of the routes file.
type Route struct {
	Name         string
	Namespace    string // "": Name
	NamespaceID  uint8  // number of its namespace in the manifest
	Window       int64
	Grace        int64
	Skew         int64
	Output       string
	Headers      Headers // of unique events
	Duplicates   Policy  // Drop, Forward or To
	DuplicatesTo string
	Late         Policy
	Future       Policy // DeadLetter or Clamp
	DeadLetter   string
	// LiveKeys bounds the keys of the namespace that are live in one partition; 0 for
	// no limit. OnLimit is DeadLetter or Forward. Routes of one namespace have the same.
	LiveKeys int64
	OnLimit  Policy
	// Sender is the header that names the sender; "" if duplicates are not counted by sender.
	// Only those of a route with a sender are checked by day, too.
	Sender string
	// FailOpen is on_state_failure: fail_open. Without it no event may be bypassed.
	FailOpen bool
}

// Headers says which headers of oncebus a unique event has; every other record has them all.
type Headers struct{ Route, Key, Verdict bool }

// Config is the set-up of the app under test. All its input goes through the
// repartition topic. In a run whose processes changed their routes one by one, Routes
// has every route that any of them had.
type Config struct {
	Repartition string
	// RepartitionNumber is the topic's number in the manifest: a record that the ingress
	// wrote is its own source.
	RepartitionNumber uint16
	// Verdicts is the topic of the verdicts on requests; "" if it was not read.
	Verdicts   string
	Changelog  string
	Partitions int32             // of both
	Topics     map[string]uint16 // input topics by name: their number in the manifest
	Routes     []Route
	// Sources has, by namespace id, the numbers of the topics from which its routes get events. The
	// stream time of such a namespace follows the partitions of these topics. That of any other
	// one is the highest event time.
	Sources map[uint8][]uint16
	// GoesOn has the namespace ids of Sources whose stream time goes on without events.
	GoesOn map[uint8]bool
	// Sets are the route sets of an app at level 2 whose windows changed, and take the place of
	// the windows of Routes. The checkpoints say when a task went over to which. Routes with
	// LiveKeys must keep their windows: how many keys count depends on restores.
	Sets []Set
	// Claims are the routes in claim mode. Check follows their events into the
	// repartition topic and leaves their outputs to CheckClaims.
	Claims []Claims
	// Emissions has the limits of output, duplicates and dead-letter
	// topics. A topic without an entry accepts every record, and the partitions
	// of its records are not checked.
	Emissions map[string]Emission
}

// Emission is the set-up of a topic that oncebus emits to. Zero values are "no limit".
type Emission struct {
	Partitions int32
	MaxBytes   int   // max.message.bytes, for records that no codec shortens
	Before     int64 // message.timestamp.before.max.ms
	After      int64 // message.timestamp.after.max.ms
	AppendTime bool  // message.timestamp.type is LogAppendTime
	Compacted  bool  // cleanup.policy has compact
}

// A Sent is a raw record that the broker acknowledged, with the sender's key and
// time.
type Sent struct {
	Record
	Route string
	// ID is the text whose SHA-256 is its dedup key; "" for a record without a
	// dedup key, which becomes a dead letter unchanged.
	ID string
	// Time is its event time in ms; 0: the record's timestamp.
	Time int64
	// Kind is the kind of its key source: id (if ""), composite, content or order.
	Kind string
	// RouteBefore is the route that took such records before a rolling change of the
	// routes, "" for none. While processes with either routes file run, either route may
	// take the record.
	RouteBefore string
}

// A Sample is the committed offset of a partition at a time; -1 for none.
type Sample struct {
	Partition int32
	Offset    int64
	Metadata  string
	// Reset means that the harness set the group to Offset (-1: deleted it); the
	// sample is from before that request.
	Reset bool
}

// A Store is the content of one task's local store, read after its process stopped.
type Store struct {
	Partition  int32
	Position   int64             // changelog offset up to which it has all rows
	Checkpoint []byte            // as in the changelog
	Rows       map[string][]byte // digest (16 bytes) to changelog value
}

// A History has all observations of a run, after its faults ended and its input was
// processed.
type History struct {
	// Sent has every acknowledged raw record.
	Sent []Sent
	// Requests has every HTTP request with an event that was sent, retries included.
	Requests []Request
	// Live has the records that read_committed consumers saw during the whole
	// run, by topic and in their order: repartition, changelog and all outputs.
	// A topic that is missing had no records; nil means that there were no
	// consumers.
	Live map[string][]Record
	// Final has the records of a read_committed read from the beginning, after
	// the end, by topic. It lacks purged and compacted records. A topic that is
	// missing was empty; nil means that there was no such read.
	Final map[string][]Record
	// Offsets has samples of the dedup group's committed offsets, oldest
	// first; the last of each partition was taken after the end.
	Offsets []Sample
	// Stores has local stores, if they were read.
	Stores []Store
	// Refused has, by emission topic, how many produce requests the harness let the brokers
	// refuse for good. So many records may be dead letters that say so.
	Refused map[string]int
	// Cut names every "topic/partition" of the changelog and of the input of tasks from which
	// the harness deleted records. Only there may a checkpoint say that rows are missing, or
	// continue where no record lies before.
	Cut []string
	// Open names every "topic/partition" whose last stable offset was still
	// below its end at the time limit.
	Open []string
	// Lag has the number of records that each "group topic/partition" had not
	// read at the time limit.
	Lag map[string]int64
}

// A Violation has an invariant's id (K1 to K13) and a message that names the
// record.
type Violation struct {
	Invariant string
	Message   string
}

func (v Violation) String() string { return v.Invariant + ": " + v.Message }
