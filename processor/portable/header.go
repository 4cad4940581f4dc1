package portable

import (
	"errors"

	"oncebus/dedup"
)

// magic begins a file, and the version follows it. The file of an app that leaves its cluster has the version
// versionLeaving, so that builds which do not know Header.Leaving refuse the file: they would seed it without
// the stream times of the tasks.
const (
	magic          = "OBX1"
	version        = 1
	versionLeaving = 2
)

// RowsPerBlock is the number of rows in every block but the last, unless the rows are large (bodiesSoft).
const RowsPerBlock = 8192

// Bounds of a reader, in bytes. They follow from the bounds of the writer: a claim has at most
// dedup.MaxResultBytes, and a writer ends a block after bodiesSoft bytes of bodies.
const (
	headerMax = 64 << 20
	bodiesMax = 64 << 20
	// bodiesSoft is the number of bytes of bodies after which a writer ends a block of large rows.
	bodiesSoft = 4 << 20
)

// ErrFile is wrapped by every error about the content of a file.
var ErrFile = errors.New("not a whole OBX1 file")

// Header says to which app the rows in the file belong, and of which time they are.
type Header struct {
	Level   int    `json:"level"` // level of the app's encodings
	Cluster string `json:"cluster"`
	App     string `json:"app"`
	// At is when the file was written, as RFC 3339, for people.
	At string `json:"at"`
	// SecretCheck identifies the secret with which the keys were made; "" if no key rule uses a secret.
	SecretCheck string      `json:"secret_check,omitempty"`
	Namespaces  []Namespace `json:"namespaces"`
	Tasks       []Task      `json:"tasks"`
	Offsets     []Offset    `json:"offsets"`
	// Leaving is set only in the file of an app that leaves its cluster.
	Leaving *Leaving `json:"leaving,omitempty"`
}

// version returns the version of a file with this header.
func (h *Header) version() byte {
	if h.Leaving != nil {
		return versionLeaving
	}
	return version
}

// Leaving has what an app takes along to another cluster, besides its rows.
type Leaving struct {
	Hold string `json:"hold"` // id of the hold under which the file was written
	// Routes is the digest of the routes in force.
	Routes string `json:"routes"`
	// HashSecret is the secret of the partitioning hash. With the same secret and the same number of
	// partitions, each task has the same keys as before.
	HashSecret []byte  `json:"hash_secret"`
	Inputs     []Input `json:"inputs"`
}

// Input is a held partition of an input, and what is needed to find the held offset in a mirror.
type Input struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Held      int64  `json:"held"` // the offset of the record that would be routed next
	// Outcomes reports that executors write their outcomes to this topic.
	Outcomes bool `json:"outcomes,omitempty"`
	// Tail has the checksums of the last records before Held, 16 bytes each, the oldest first. Earliest is the
	// lowest timestamp in the later half of these records, in ms.
	Tail     []byte `json:"tail,omitempty"`
	Earliest int64  `json:"earliest,omitempty"`
}

// Namespace is a scope of keys. Its index in the header is its id in the rows.
type Namespace struct {
	Name    string `json:"name"`
	KeyRule string `json:"key_rule"`
	Mode    string `json:"mode"`
	// Adjacent reports that the keys of adjacent buckets are in the same task. The rows themselves do not show
	// this.
	Adjacent bool `json:"adjacent,omitempty"`
	// WindowMS and GraceMS are the window and the grace period of the route, in ms; -1 for a namespace without
	// a route.
	WindowMS int64 `json:"window_ms"`
	GraceMS  int64 `json:"grace_ms"`
}

// Task is a task whose rows the file has, as of one of its transactions.
type Task struct {
	Topic       string `json:"topic"`
	Partition   int32  `json:"partition"`
	ChangelogID string `json:"changelog_id"`
	End         int64  `json:"end"` // the changelog offset up to which the rows were read
	// Sequence and Next are from the newest checkpoint; 0 for a task that has never run.
	Sequence int64 `json:"sequence"`
	Next     int64 `json:"next"`
	// StreamTimes has the stream times in ms, by the name of the namespace.
	StreamTimes map[string]int64 `json:"stream_times,omitempty"`
	// Known has the namespaces whose window has changed, by name. Only the file of an app that leaves its
	// cluster has it.
	Known map[string]Known `json:"known,omitempty"`
}

// Known says from which first seen time on the rows of a namespace are complete after a change of its window.
// Events before LateBefore are late. Both are in ms.
type Known struct {
	Since      int64 `json:"since"`
	LateBefore int64 `json:"late_before"`
}

// Offset is the offset of an input partition at which the routing stage continues.
type Offset struct {
	Topic     string `json:"topic"`
	TopicID   string `json:"topic_id"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"` // -1 if the partition has no committed offset
	End       int64  `json:"end"`    // end of the partition when the file was written
}

// Trailer has the numbers of what the file contains.
type Trailer struct {
	Rows   int64 `json:"rows"`
	Blocks int64 `json:"blocks"`
	// ByNamespace has the numbers of rows, by index into the header's namespaces.
	ByNamespace []int64 `json:"by_namespace"`
	// Open counts the claims whose outcome an executor may still send. Claims of that kind cannot be seeds.
	Open int64 `json:"open_claims,omitempty"`
}

func (t *Trailer) count(row *Row) {
	t.Rows++
	t.ByNamespace[row.NamespaceID]++
	if row.Status == dedup.ClaimInProgress || row.Status == dedup.Submitted {
		if _, err := row.SeedClaim(); err != nil {
			t.Open++
		}
	}
}
