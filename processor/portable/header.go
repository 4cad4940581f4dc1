package portable

import (
	"errors"

	"oncebus/dedup"
)

// magic begins a file, and version follows it. A file of an app that leaves its cluster has
// versionLeaving: a build that does not know the header's Leaving would seed it without the
// stream times of the tasks.
const (
	magic          = "OBX1"
	version        = 1
	versionLeaving = 2
)

// RowsPerBlock is the number of rows in each block but the last.
const RowsPerBlock = 8192

// Bounds of a reader. A claim has at most dedup.MaxResultBytes, and a block as many of them as
// the writer's bound on bodies allows.
const (
	headerMax = 64 << 20
	bodiesMax = 64 << 20
	// bodiesSoft is how many bytes of bodies a writer gathers in a block with large rows.
	bodiesSoft = 4 << 20
)

// ErrFile is wrapped by every error about the bytes of a file.
var ErrFile = errors.New("not a whole OBX1 file")

// Header says what app the rows are of, and as of when.
type Header struct {
	Level   int    `json:"level"` // of the app's encodings
	Cluster string `json:"cluster"`
	App     string `json:"app"`
	// At is when the file was written, RFC 3339; for people.
	At string `json:"at"`
	// SecretCheck identifies the secret of the keys; "" if no key rule uses one.
	SecretCheck string      `json:"secret_check,omitempty"`
	Namespaces  []Namespace `json:"namespaces"`
	Tasks       []Task      `json:"tasks"`
	Offsets     []Offset    `json:"offsets"`
	// Leaving is set in the file of an app that leaves its cluster.
	Leaving *Leaving `json:"leaving,omitempty"`
}

// version returns the version of a file with the header.
func (h *Header) version() byte {
	if h.Leaving != nil {
		return versionLeaving
	}
	return version
}

// Leaving is what an app takes along to another cluster, apart from its rows.
type Leaving struct {
	Hold string `json:"hold"` // id of the hold under which the file was written
	// Routes is the digest of the routes in force.
	Routes string `json:"routes"`
	// HashSecret is that of the partitioning hash. With it and as many partitions, each
	// task has the keys that it had.
	HashSecret []byte  `json:"hash_secret"`
	Inputs     []Input `json:"inputs"`
}

// Input is a held partition of an input, and how to find its place in a mirror.
type Input struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Held      int64  `json:"held"` // the offset to route next
	// Outcomes reports that executors write their outcomes to the topic.
	Outcomes bool `json:"outcomes,omitempty"`
	// Tail has the sums of the last records before Held, 16 bytes each, the oldest first.
	// Earliest is the lowest timestamp of the later half of them, in ms.
	Tail     []byte `json:"tail,omitempty"`
	Earliest int64  `json:"earliest,omitempty"`
}

// Namespace is one scope of keys. Its index in the header is its id in the rows.
type Namespace struct {
	Name    string `json:"name"`
	KeyRule string `json:"key_rule"`
	Mode    string `json:"mode"`
	// Adjacent reports that keys of adjacent buckets are in one task. Their rows do not say
	// which.
	Adjacent bool `json:"adjacent,omitempty"`
	// WindowMS and GraceMS are those of the route, in ms; -1 for a namespace without a route.
	WindowMS int64 `json:"window_ms"`
	GraceMS  int64 `json:"grace_ms"`
}

// Task is a partition whose rows the file has, as of a transaction of it.
type Task struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	ChangelogID string `json:"changelog_id"`
	End         int64  `json:"end"` // changelog offset up to which it was read
	// Sequence and Next are those of the newest checkpoint; 0 for a task that never ran.
	Sequence int64 `json:"sequence"`
	Next     int64 `json:"next"`
	// StreamTimes are by namespace name, in ms.
	StreamTimes map[string]int64 `json:"stream_times,omitempty"`
	// Known has the namespaces whose window changed, by name, of an app that leaves.
	Known map[string]Known `json:"known,omitempty"`
}

// Known says from when on the rows of a namespace are complete after a change of its window.
// Events before LateBefore are late. Both are in ms.
type Known struct {
	Since      int64 `json:"since"`
	LateBefore int64 `json:"late_before"`
}

// Offset is the input offset at which the routing stage reads on.
type Offset struct {
	Topic     string `json:"topic"`
	TopicID   string `json:"topic_id"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"` // -1 for a partition without a committed offset
	End       int64  `json:"end"`    // of the partition when the file was written
}

// Trailer counts what the file has.
type Trailer struct {
	Rows   int64 `json:"rows"`
	Blocks int64 `json:"blocks"`
	// ByNamespace has the rows by index of the header's namespaces.
	ByNamespace []int64 `json:"by_namespace"`
	// Open counts claims whose outcome an attempt may still tell: they cannot be seeds.
	Open int64 `json:"open_claims,omitempty"`
}

// count counts a row.
func (t *Trailer) count(row *Row) {
	t.Rows++
	t.ByNamespace[row.NamespaceID]++
	if row.Status == dedup.ClaimInProgress || row.Status == dedup.Submitted {
		if _, err := row.SeedClaim(); err != nil {
			t.Open++
		}
	}
}
