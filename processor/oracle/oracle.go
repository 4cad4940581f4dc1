package oracle

// A Record is a Kafka record as a read_committed reader has seen it.
type Record struct {
	Topic     string
	Partition int32
	Offset    int64
	Timestamp int64 // ms, as stored in the log
	Key       []byte
	Value     []byte
	Headers   []Header

	envelope []byte // the envelope of an unwrapped record of the repartition topic
}

// A Header is a header of a record.
type Header struct {
	Key   string
	Value []byte
}

// Policy is a route's policy for events that are not emitted as unique.
type Policy string

// The policies, spelled as in the routes file:
const (
	DeadLetter Policy = "dead_letter"
	Forward    Policy = "forward"
	Drop       Policy = "drop"
	To         Policy = "to" // only for duplicates: to Route.DuplicatesTo
	Clamp      Policy = "clamp"
)

// A Route has the settings of a route that the oracle needs. Durations are ms. A policy that is "" means the
// default of the routes file.
type Route struct {
	Name         string
	Namespace    string // "" stands for Name
	NamespaceID  uint8  // number of the namespace in the manifest
	Window       int64
	Grace        int64
	Skew         int64
	Output       string
	Headers      Headers // the headers of unique events
	Duplicates   Policy  // Drop, Forward or To
	DuplicatesTo string
	Late         Policy
	Future       Policy // DeadLetter or Clamp
	DeadLetter   string
	// LiveKeys is the largest number of keys of the namespace that may be live in a partition; 0 for no limit.
	// OnLimit is DeadLetter or Forward. The routes of a namespace must all have the same LiveKeys and OnLimit.
	LiveKeys int64
	OnLimit  Policy
	// Sender is the header that names the sender; "" if duplicates are not counted by sender. Only for a route
	// with a sender, the oracle also checks the duplicates by day.
	Sender string
	// FailOpen is on_state_failure: fail_open. If it is false, no event of the route may be bypassed.
	FailOpen bool
}

// Headers says which headers of oncebus a unique event has. Every other record has all these headers.
type Headers struct{ Route, Key, Verdict bool }

// Config is the set-up of the app under test. All input of the app goes through the repartition topic. If the
// processes of a run changed their routes one after the other, Routes has every route that any of them had.
type Config struct {
	Repartition string
	// RepartitionNumber is the number of the repartition topic in the manifest. If the ingress wrote a record
	// to the repartition topic, the source of the event is the position of that record itself.
	RepartitionNumber uint16
	// Verdicts is the topic of the verdicts on requests; "" if it was not read.
	Verdicts   string
	Changelog  string
	Partitions int32             // number of partitions of both topics
	Topics     map[string]uint16 // numbers of the input topics in the manifest, by name
	Routes     []Route
	// Sources has, by namespace id, the numbers of the topics from which the namespace's routes get events. The
	// stream time of such a namespace follows the partitions of these topics. The stream time of any other
	// namespace is the highest event time.
	Sources map[uint8][]uint16
	// GoesOn has the ids of those namespaces in Sources whose stream time also advances while no events arrive.
	GoesOn map[uint8]bool
	// Sets are the route sets of an app at level 2 whose windows have changed. They replace the windows of
	// Routes. The checkpoints show from when on a task used which set. Routes with LiveKeys must keep their
	// windows, because after a change the number of counted keys would depend on restores.
	Sets []Set
	// Claims are the routes in claim mode. Check follows the events of these routes into the repartition topic,
	// but only CheckClaims checks their outputs.
	Claims []Claims
	// Emissions has the limits of the output, duplicates and dead-letter topics. A topic without an entry
	// accepts every record, and the oracle does not check the partitions of its records.
	Emissions map[string]Emission
}

// Emission is the set-up of a topic to which oncebus emits. A zero value means that there is no limit.
type Emission struct {
	Partitions int32
	MaxBytes   int   // max.message.bytes, for records that cannot be compressed
	Before     int64 // message.timestamp.before.max.ms
	After      int64 // message.timestamp.after.max.ms
	AppendTime bool  // message.timestamp.type is LogAppendTime
	Compacted  bool  // cleanup.policy includes compact
}

// A Sent is an input record that the broker has acknowledged, with the key and the time that the sender gave
// it.
type Sent struct {
	Record
	Route string
	// ID is the text whose SHA-256 is the dedup key of the record; "" for a record without a dedup key, which
	// becomes a dead letter unchanged.
	ID string
	// Time is the event time in ms; 0 means the timestamp of the record.
	Time int64
	// Kind is the kind of the key source: id (if it is ""), composite, content or order.
	Kind string
	// RouteBefore is the route that took such records before a rolling change of the routes; "" if there was no
	// change. While some processes have the old routes file and others the new one, the record may belong to
	// either route.
	RouteBefore string
}

// A Sample is the committed offset of a partition at some time; -1 if there is none.
type Sample struct {
	Partition int32
	Offset    int64
	Metadata  string
	// Reset means that the harness has set the consumer group to Offset, or has deleted the group if Offset is
	// -1. The sample was taken before that request.
	Reset bool
}

// A Store is the content of a task's local store, read after the process of the task has stopped.
type Store struct {
	Partition  int32
	Position   int64             // changelog offset up to which the store has all rows
	Checkpoint []byte            // as in the changelog
	Rows       map[string][]byte // changelog values by digest (16 bytes)
}

// A History has all observations of a run, made after the faults of the run had ended and its input was
// processed.
type History struct {
	// Sent has every acknowledged input record.
	Sent []Sent
	// Requests has every HTTP request with an event that was sent, including retries.
	Requests []Request
	// Live has the records that read_committed consumers saw during the whole run, by topic and in the order in
	// which they came: of the repartition topic, the changelog and all outputs. A topic without an entry had no
	// records. nil means that there were no consumers.
	Live map[string][]Record
	// Final has the records of a read_committed reading from the beginning, made after the end of the run, by
	// topic. It lacks records that were purged or compacted. A topic without an entry was empty. nil means that
	// there was no such reading.
	Final map[string][]Record
	// Offsets has samples of the committed offsets of the dedup group, the oldest first. The last sample of
	// each partition was taken after the end of the run.
	Offsets []Sample
	// Stores has the local stores, if they were read.
	Stores []Store
	// Refused has, by emission topic, how many produce requests the harness made the brokers refuse for good.
	// At most that many dead letters may give such a refusal as their reason.
	Refused map[string]int
	// Cut names every "topic/partition" of the changelog, and of the input of tasks, from which the harness has
	// deleted records. Only in these partitions may a checkpoint say that rows are missing, or continue at an
	// offset before which there are no records.
	Cut []string
	// Open names every "topic/partition" whose last stable offset was still below its end when the time limit
	// was reached.
	Open []string
	// Lag has the number of records that each "group topic/partition" had not read when the time limit was
	// reached.
	Lag map[string]int64
}

// A Violation has the id of an invariant (K1 to K13), and a message that names the record.
type Violation struct {
	Invariant string
	Message   string
}

func (v Violation) String() string { return v.Invariant + ": " + v.Message }
