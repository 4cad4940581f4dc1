package transfer

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// simMirror copies a partition as a consumer with producers does: each run begins at the offset
// that was committed, an earlier run may still write, and producers may change the order
// of what is in flight.
type simMirror struct {
	rng       *rand.Rand
	length    int64
	committed int64
	runs      []int64 // next offset to copy, of each run that writes
	copies    []int64 // offset in the source, by offset in the mirror; -1 for another producer
}

func (m *simMirror) step(others bool) {
	switch n := m.rng.IntN(20); {
	case len(m.runs) == 0 || n == 0:
		m.runs = append(m.runs, m.committed)
	case n == 1 && len(m.runs) > 1:
		m.runs = m.runs[1:]
	case n == 2 && others:
		m.copies = append(m.copies, -1)
	default:
		run := m.rng.IntN(len(m.runs))
		if m.runs[run] < m.length {
			m.copies = append(m.copies, m.runs[run])
			m.runs[run]++
		}
		if m.rng.IntN(8) == 0 {
			m.committed = max(m.committed, m.runs[run])
		}
	}
}

// TestMirroredStartErrsBackwardsOnly: whatever a mirror repeats and interleaves, no record from
// the held offset on lies before the start, nor one of another producer that the search saw.
func TestMirroredStartErrsBackwardsOnly(t *testing.T) {
	found, exact, behind := 0, 0, 0
	for seed := range uint64(20_000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := &simMirror{rng: rng, length: 1 + rng.Int64N(60)}
		contents := rng.Int64N(2)*6 + 60 // few contents make equal records
		content := make([]int64, m.length)
		for i := range content {
			content[i] = rng.Int64N(contents)
			if contents > 60 {
				content[i] = int64(i)
			}
		}
		held := 1 + rng.Int64N(m.length)
		others, swaps := rng.IntN(4) == 0, rng.IntN(4) == 0
		for range rng.IntN(400) {
			m.step(others)
		}
		if swaps {
			for i := 1; i < len(m.copies); i++ {
				if rng.IntN(10) == 0 {
					m.copies[i-1], m.copies[i] = m.copies[i], m.copies[i-1]
				}
			}
		}
		sum := func(n int64) (s recordSum) {
			s[0], s[1] = byte(n), 1
			return s
		}
		from := int64(0)
		if rng.IntN(2) == 0 {
			from = rng.Int64N(held)
		}
		var tail []byte
		for _, c := range content[from:held] {
			one := sum(c)
			tail = append(tail, one[:]...)
		}
		// A reader begins at a record that is not behind the first copy of the tail.
		begin := 0
		for begin < len(m.copies) && m.copies[begin] >= 0 && m.copies[begin] < from && rng.IntN(3) > 0 {
			begin++
		}
		s := newMirrorSearch(tail)
		for offset := begin; offset < len(m.copies); offset++ {
			one := recordSum{2}
			if at := m.copies[offset]; at >= 0 {
				one = sum(content[at])
			}
			if s.add(int64(offset), one) {
				break
			}
		}
		if !s.found {
			continue
		}
		found++
		if s.start > int64(len(m.copies)) {
			t.Fatalf("run %d: start %d, the mirror has %d records", seed, s.start, len(m.copies))
		}
		skipped := map[int64]bool{}
		for _, c := range content[:held] {
			skipped[c] = true
		}
		for offset, at := range m.copies[:s.start] {
			if offset < begin {
				continue
			}
			if at < 0 || at >= held && !skipped[content[at]] {
				t.Fatalf("run %d: start %d skips offset %d, a copy of %d; held %d, the mirror has %v", seed, s.start, offset, at, held, m.copies)
			}
			if at >= held && !swaps {
				t.Fatalf("run %d: start %d skips offset %d, a copy of %d, without a changed order; held %d, the mirror has %v", seed, s.start, offset, at, held, m.copies)
			}
		}
		if m.copies[s.start-min(s.start, 1)] == held-1 {
			exact++
		} else {
			behind++
		}
	}
	t.Logf("%d places found: %d exact, %d before", found, exact, behind)
	if exact < 1000 || behind < 1000 {
		t.Error("too few of one kind")
	}
}

// TestSumsDifferByContent: what a mirror keeps is in the sum, and nothing else.
func TestSumsDifferByContent(t *testing.T) {
	base := func() *kgo.Record {
		return &kgo.Record{Key: []byte("k"), Value: []byte("v"), Timestamp: time.UnixMilli(5), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("x")}}}
	}
	want := sumOf(base())
	same := base()
	same.Offset, same.Partition, same.LeaderEpoch, same.Topic = 9, 3, 2, "other"
	if sumOf(same) != want {
		t.Error("the place of a record changes its sum")
	}
	seen := map[recordSum]bool{want: true}
	for _, change := range []func(*kgo.Record){
		func(r *kgo.Record) { r.Key = nil },
		func(r *kgo.Record) { r.Key = []byte{} },
		func(r *kgo.Record) { r.Key, r.Value = []byte("kv"), []byte{} },
		func(r *kgo.Record) { r.Value = nil },
		func(r *kgo.Record) { r.Timestamp = time.UnixMilli(6) },
		func(r *kgo.Record) { r.Headers = nil },
		func(r *kgo.Record) { r.Headers[0].Value = nil },
		func(r *kgo.Record) { r.Headers[0] = kgo.RecordHeader{Key: "hx", Value: []byte{}} },
	} {
		r := base()
		change(r)
		if sum := sumOf(r); seen[sum] {
			t.Errorf("%+v has the sum of another record", r)
		} else {
			seen[sum] = true
		}
	}
}
