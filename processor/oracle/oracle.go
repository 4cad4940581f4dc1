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
}

// A Header is one header of a record, in its place.
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

// A Route is what the oracle needs of a route; durations are ms. A policy
// that is "" is the default of the routes file.
type Route struct {
	Name         string
	Namespace    string // "": Name
	NamespaceID  uint8  // number of its namespace in the manifest
	Window       int64
	Grace        int64
	Skew         int64
	Output       string
	Duplicates   Policy // Drop, Forward or To
	DuplicatesTo string
	Late         Policy
	Future       Policy // DeadLetter or Clamp
	DeadLetter   string
}

// Config is the set-up of the app under test. All its input goes through the
// repartition topic.
type Config struct {
	Repartition string
	Changelog   string
	Partitions  int32             // of both
	Topics      map[string]uint16 // input topics by name: their number in the manifest
	Routes      []Route
	// Claims are the routes in claim mode. Check follows their events into the
	// repartition topic and leaves their outputs to CheckClaims.
	Claims []Claims
	// Emissions has the limits of output, duplicates and dead-letter
	// topics. A topic without an entry takes everything, and the check skips
	// the partitions of its records.
	Emissions map[string]Emission
	// ChangelogRetention is after how many ms of broker time the changelog may
	// lose a row; 0 is what oncebus sets: the longest 2*window+grace, and a day.
	ChangelogRetention int64
}

// Emission is the set-up of a topic that oncebus emits to. Zero values are "no limit".
type Emission struct {
	Partitions int32
	MaxBytes   int   // max.message.bytes
	Before     int64 // message.timestamp.before.max.ms
	After      int64 // message.timestamp.after.max.ms
	AppendTime bool  // message.timestamp.type is LogAppendTime
	Compacted  bool  // cleanup.policy has compact
}

// A Sent is a raw record that the broker acknowledged, with what its sender
// put in.
type Sent struct {
	Record
	Route string
	// ID is the text whose SHA-256 is its dedup key; "" for a record without a
	// dedup key, which belongs into the dead-letter topic unchanged.
	ID string
	// Time is its event time in ms; 0: the record's timestamp.
	Time int64
	// Kind is the kind of its key source: id (if ""), composite, content or order.
	Kind string
}

// A Sample is an offset the group had committed for a partition, at a time; -1
// for none.
type Sample struct {
	Partition int32
	Offset    int64
	Metadata  string
	// Reset says that this was not sampled: the harness set the group to
	// Offset (-1: deleted it) and noted it before the request.
	Reset bool
}

// A Store is the content of one task's local store, read after its process stopped.
type Store struct {
	Partition  int32
	Position   int64             // changelog offset up to which it holds all rows
	Checkpoint []byte            // as in the changelog
	Rows       map[string][]byte // digest (16 bytes) to changelog value
}

// A History is everything that was observed of a run, after it healed and drained.
type History struct {
	// Sent holds every acknowledged raw record.
	Sent []Sent
	// Live holds, by topic, what read_committed consumers that ran all the
	// time saw, in their order: repartition, changelog and all outputs. A
	// topic that is not in it had no records; nil says that they were not read.
	Live map[string][]Record
	// Final holds, by topic, a read_committed read from the beginning after the
	// end. Records that were purged or compacted away are missing from it. A
	// topic that is not in it was empty; nil says that there was no such read.
	Final map[string][]Record
	// Offsets holds samples of the dedup group's committed offsets, oldest
	// first; the last of each partition was taken after the end.
	Offsets []Sample
	// Stores holds local stores, if they were read.
	Stores []Store
	// Open names every "topic/partition" whose last stable offset was still
	// below its end when the time for that was over.
	Open []string
	// Lag holds what each "group topic/partition" still had to read when the
	// time for that was over.
	Lag map[string]int64
	// End is the broker's time of the final read in ms; 0: the newest
	// timestamp in the live changelog.
	End int64
}

// A Violation is a broken promise: the invariant's id (K1 to K11 of the fault
// matrix) and where it shows.
type Violation struct {
	Invariant string
	Message   string
}

func (v Violation) String() string { return v.Invariant + ": " + v.Message }
