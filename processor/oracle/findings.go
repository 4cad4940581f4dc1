package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// MaxMessages is how many violations of an invariant are described at most. Report.Violations counts all of
// them.
const MaxMessages = 20

// A Report tells how much was checked.
type Report struct {
	Sent         int            // acknowledged input records
	Requests     int            // by HTTP
	Answers      int            // requests that were answered with a verdict
	Verdicts     int            // records of the verdicts topic
	Bypassed     int            // records that were forwarded or refused without a look-up
	MissingKey   int            // input records without a key
	Routed       int            // records of the repartition topic
	Seeds        int            // records of the repartition topic that are seeds
	Outputs      map[string]int // emitted records by verdict
	Dropped      map[string]int // correctly not emitted, by verdict
	Refused      map[string]int // dead letters about records that a broker refused for another topic, by that topic
	Rows         int            // rows in the changelog, without checkpoints
	Transactions int            // checkpoints
	Idle         int            // checkpoints that move no offset
	Samples      int            // of the group's offsets
	Stores       int
	StoreRows    int
	// Unwatched means that there was no live consumer: Check then uses the final reading instead, and does not
	// check K7. Unread means that there was no final reading.
	Unwatched, Unread bool
	// Violations has the number of violations by invariant.
	Violations map[string]int
}

// String returns the report as one line.
func (r Report) String() string {
	s := fmt.Sprintf("%d sent (%d missing key), %d routed, emitted%s, dropped%s, %d rows in %d transactions (%d idle), %d samples, %d stores with %d rows",
		r.Sent, r.MissingKey, r.Routed, byName(r.Outputs), byName(r.Dropped), r.Rows, r.Transactions, r.Idle, r.Samples, r.Stores, r.StoreRows)
	if r.Requests > 0 {
		s += fmt.Sprintf(", %d requests with %d verdicts in %d records", r.Requests, r.Answers, r.Verdicts)
	}
	if r.Bypassed > 0 {
		s += fmt.Sprintf(", %d bypassed", r.Bypassed)
	}
	if r.Seeds > 0 {
		s += fmt.Sprintf(", %d seeds", r.Seeds)
	}
	if len(r.Refused) > 0 {
		s += ", refused by brokers" + byName(r.Refused)
	}
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

// at returns the position of a record as topic/partition/offset.
func at(r *Record) string { return fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset) }

// brief returns bytes as quoted text. It shortens a long text.
func brief(b []byte) string {
	switch {
	case b == nil:
		return "null"
	case len(b) > 60:
		return fmt.Sprintf("%q... (%d bytes)", b[:60], len(b))
	}
	return fmt.Sprintf("%q", b)
}

// A log has the records of a topic that a reader saw, by partition and in the order of their offsets.
type log map[int32][]*Record

// split groups the records of a reading by partition. An offset that does not rise is a violation; the other
// checks skip such a record.
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

// find returns the record at an offset; nil if there is none.
func find(lane []*Record, offset int64) *Record {
	i, ok := slices.BinarySearchFunc(lane, offset, func(r *Record, offset int64) int { return cmp.Compare(r.Offset, offset) })
	if !ok {
		return nil
	}
	return lane[i]
}
