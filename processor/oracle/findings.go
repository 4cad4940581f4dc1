package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxMessages is how many violations of one invariant the report describes. All
// of them are counted in Report.Violations.
const MaxMessages = 20

// A Report says how much was checked.
type Report struct {
	Sent         int            // acknowledged raw records
	MissingKey   int            // of them, those without a key
	Routed       int            // records of the repartition topic
	Outputs      map[string]int // emitted records by verdict
	Dropped      map[string]int // judged and rightly not emitted, by verdict
	Rows         int            // changelog rows, without checkpoints
	Transactions int            // checkpoints
	Idle         int            // of them, those that moved nothing
	Samples      int            // of the group's offsets
	Stores       int
	StoreRows    int
	// Unwatched means that there was no live consumer: K7 was not checked, and
	// the final read was used instead. Unread means the same of the final read.
	Unwatched, Unread bool
	// Violations counts by invariant.
	Violations map[string]int
}

// String is the report in one line.
func (r Report) String() string {
	s := fmt.Sprintf("%d sent (%d missing key), %d routed, emitted%s, dropped%s, %d rows in %d transactions (%d idle), %d samples, %d stores with %d rows",
		r.Sent, r.MissingKey, r.Routed, byName(r.Outputs), byName(r.Dropped), r.Rows, r.Transactions, r.Idle, r.Samples, r.Stores, r.StoreRows)
	if r.Unwatched {
		s += ", not watched live"
	}
	if r.Unread {
		s += ", not read at the end"
	}
	return s + ", violations" + byName(r.Violations)
}

func byName(counts map[string]int) string {
	if len(counts) == 0 {
		return " none"
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, " %s:%d", name, counts[name])
	}
	return b.String()
}

// findings collects violations.
type findings struct {
	list   []Violation
	counts map[string]int
}

func (f *findings) add(invariant, format string, args ...any) {
	f.counts[invariant]++
	if f.counts[invariant] <= MaxMessages {
		f.list = append(f.list, Violation{invariant, fmt.Sprintf(format, args...)})
	}
}

// sorted returns the violations by invariant, in the order in which they were found.
func (f *findings) sorted() []Violation {
	number := func(v Violation) (n int) {
		_, _ = fmt.Sscanf(v.Invariant, "K%d", &n) // our own ids
		return n
	}
	slices.SortStableFunc(f.list, func(a, b Violation) int { return cmp.Compare(number(a), number(b)) })
	return f.list
}

// at is the place of a record, for messages.
func at(r *Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }

// brief shows bytes that may be long or no text.
func brief(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > 60:
		return fmt.Sprintf("%q... (%d bytes)", b[:60], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// A log is a topic as one reader saw it, by partition, offsets rising.
type log map[int32][]*Record

// split sorts a reading by partition. An offset that does not rise is a
// violation, and the record is left out of all other checks.
func split(f *findings, reader string, records []Record) log {
	l := log{}
	for i := range records {
		r := &records[i]
		lane := l[r.Partition]
		if n := len(lane); n > 0 && lane[n-1].Offset >= r.Offset {
			f.add("K7", "%s: the %s saw it after offset %d, record key %s", at(r), reader, lane[n-1].Offset, brief(r.Key))
			continue
		}
		l[r.Partition] = append(lane, r)
	}
	return l
}

// find returns the record of an offset, or nil.
func find(lane []*Record, offset int64) *Record {
	i, ok := slices.BinarySearchFunc(lane, offset, func(r *Record, offset int64) int { return cmp.Compare(r.Offset, offset) })
	if !ok {
		return nil
	}
	return lane[i]
}
