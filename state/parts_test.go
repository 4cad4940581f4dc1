package state

import (
	"bytes"
	"cmp"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"oncebus/dedup"
)

// TestLookupsDoNotAllocate: absent and recent rows cost no allocation, and
// neither does a transaction once the tables are warm.
func TestLookupsDoNotAllocate(t *testing.T) {
	h := newHost(t, DefaultConfig())
	s := mustOpen(t, h, t.TempDir())
	for n := range uint64(5000) {
		s.Put(rowOf(n))
	}
	must(t, s.Apply(1, nil))
	flush(t, s)
	for n := range uint64(500) {
		s.Put(rowOf(5000 + n))
	}
	must(t, s.Apply(2, nil))
	var absent []dedup.Digest // no false hits: those read a page
	for n := uint64(1 << 40); len(absent) < 64; n++ {
		if d := digestOf(n); !s.mine.runs[0].filter.has(&d) {
			absent = append(absent, d)
		}
	}
	recent := digestOf(5003)
	i := 0
	for name, c := range map[string]struct {
		most float64
		op   func()
	}{
		"absent": {0, func() { i++; _, _, _ = s.Get(absent[i%64]) }},
		"recent": {0, func() { _, _, _ = s.Get(recent) }},
		"page":   {25, func() { _, _, _ = s.Get(digestOf(7)) }},
		"transaction": {0, func() {
			for n := range uint64(100) {
				s.Put(rowOf(5000 + n))
			}
			if _, held, _ := s.Get(recent); !held {
				t.Error("not held")
			}
			must(t, s.Apply(s.Position()+1, nil))
		}},
		"discarded": {0, func() { s.Put(rowOf(1)); s.Discard() }},
	} {
		if got := testing.AllocsPerRun(100, c.op); got > c.most {
			t.Errorf("%s: %v allocations, want at most %v", name, got, c.most)
		}
	}
	must(t, s.Close())
}

func TestTableAgainstMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	tab := newTable(newHashSeed())
	for round := range 20 {
		want := make(map[dedup.Digest]dedup.Row)
		for range 1 + r.IntN(5000)/(round+1) { // also small ones in a large index
			row := rowOf(r.Uint64N(3000))
			row.Fingerprint, row.Shift = r.Uint64(), r.Int64N(4)-2
			if r.IntN(5) == 0 {
				row.HasResult = true
				if r.IntN(2) == 0 {
					row.Result = make([]byte, r.IntN(10))
				}
			}
			want[row.Digest] = row
			tab.put(tab.seed.hash(&row.Digest), slotOf(&row), extraOf(&row))
		}
		if tab.rows != len(want) {
			t.Fatalf("%d rows, want %d", tab.rows, len(want))
		}
		for n := range uint64(4000) {
			d := digestOf(n)
			s := tab.find(tab.seed.hash(&d), &d)
			w, held := want[d]
			if held != (s != nil) || held && !sameRow(tab.row(s), w) {
				t.Fatalf("round %d, row %d: %v, want %v", round, n, s, held)
			}
		}
		tab.clear()
		if i := slices.IndexFunc(tab.index, func(e uint32) bool { return e != 0 }); i >= 0 || tab.weight() != 0 {
			t.Fatalf("round %d: index %d is not clear", round, i)
		}
	}
}

func TestSortedTable(t *testing.T) {
	for _, rows := range []int{0, 1, 2, 63, 64, 5000} {
		tab := newTable(newHashSeed())
		for n := range rows {
			row := rowOf(uint64(n))
			if n%3 == 0 {
				clear(row.Digest[:8]) // one bucket, one prefix
			}
			tab.put(tab.seed.hash(&row.Digest), slotOf(&row), extra{})
		}
		got, order := new(scratch).sorted(tab)
		if len(order) != rows || !slices.IsSortedFunc(order, func(a, b sortKey) int {
			return cmp.Or(bytes.Compare(got[a.place].digest[:], got[b.place].digest[:]), cmp.Compare(a.place, b.place))
		}) {
			t.Fatalf("%d rows are not sorted", rows)
		}
		for i, k := range order {
			if i > 0 && got[k.place].digest == got[order[i-1].place].digest {
				t.Fatalf("%d rows: a row twice", rows)
			}
			if k.prefix != prefix(&got[k.place].digest) {
				t.Fatalf("%d rows: wrong prefix", rows)
			}
		}
	}
}

// TestFilter: what was added is never denied, also if added twice, and few
// absent keys are said to be there.
func TestFilter(t *testing.T) {
	const rows = 50_000
	f := newFilter(rows)
	for n := range uint64(rows) {
		d := digestOf(n)
		f.add(&d)
		f.add(&d)
	}
	g := newFilter(rows)
	g.load(f.append(nil))
	wrong := 0
	for n := range uint64(rows) {
		d := digestOf(n)
		if !g.has(&d) {
			t.Fatalf("row %d is denied", n)
		}
		if d = digestOf(1<<40 + n); g.has(&d) {
			wrong++
		}
	}
	if wrong > rows/400 {
		t.Fatalf("%d of %d absent keys are said to be there", wrong, rows)
	}
	empty := newFilter(0)
	if d := digestOf(1); empty.has(&d) {
		t.Fatal("an empty filter has a key")
	}
}

// TestMergePolicy applies runs of various sizes and looks how many are left
// and how often a row is written.
func TestMergePolicy(t *testing.T) {
	const flushRows = 256 << 10
	for _, c := range []struct {
		name        string
		rows        func(i int) uint64
		flushes     int
		runs        int
		writesAtMax float64
	}{
		{"full", func(int) uint64 { return flushRows }, 200, 3 + 15 + 4, 3},
		{"half", func(int) uint64 { return flushRows / 2 }, 400, 26, 3},
		{"eighth", func(int) uint64 { return flushRows / 8 }, 1000, 6 + 15 + 4, 4},
		{"tiny", func(int) uint64 { return 10 }, 5000, 20, 10},
		{"uneven", func(i int) uint64 { return []uint64{100, flushRows, 3000, 50, 90_000}[i%5] }, 2000, 16 + 16 + 4, 5},
		{"rising", func(i int) uint64 { return uint64(i+1) * 500 }, 500, 40, 5},
		{"falling", func(i int) uint64 { return uint64(500-i) * 500 }, 500, 40, 5},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg := DefaultConfig()
			tiers := newTiers(cfg)
			var runs []*run
			var in, written, most uint64
			for i := range c.flushes {
				runs = append([]*run{{rows: c.rows(i)}}, runs...)
				in += c.rows(i)
				written += c.rows(i)
				for {
					inputs := tiers.pick(runs)
					if inputs == nil {
						break
					}
					merged := &run{}
					for _, r := range inputs {
						merged.rows += r.rows
					}
					written += merged.rows
					runs = append([]*run{merged}, runs[len(inputs):]...)
				}
				most = max(most, uint64(len(runs)))
			}
			if most > uint64(c.runs) {
				t.Errorf("up to %d runs, want at most %d", most, c.runs)
			}
			if w := float64(written) / float64(in); w > c.writesAtMax {
				t.Errorf("a row is written %.1f times, want at most %.1f", w, c.writesAtMax)
			}
		})
	}
}

// TestPageCoversItsDigests: a page's number follows from the digest alone and
// never falls as digests rise.
func TestPageCoversItsDigests(t *testing.T) {
	for _, n := range []uint32{1, 2, 3, 1000, 1 << 31} {
		if pageOf(0, n) != 0 || pageOf(^uint64(0), n) != n-1 {
			t.Fatalf("%d pages: first %d, last %d", n, pageOf(0, n), pageOf(^uint64(0), n))
		}
	}
}

// goldenManifest has one of everything.
func goldenManifest() *manifest {
	return &manifest{
		identity: []byte("id"), position: 77, checkpoint: []byte("cp"), nextRun: 9,
		runs: []*run{
			{id: 8, nonce: 1 << 60, rows: 300, bytes: 9000, pages: 2, filterBlocks: 19, classes: []classSpan{{0, 100, -5}, {255, 200, 1e13}}},
			{id: 2, nonce: 3, rows: 1, bytes: 100, pages: 1, filterBlocks: 1},
		},
	}
}

func TestManifestRoundTrip(t *testing.T) {
	for _, m := range []*manifest{goldenManifest(), {identity: []byte{}, nextRun: 1}, {identity: []byte{}, checkpoint: []byte{}, nextRun: 1}} {
		b := m.encode()
		got, err := decodeManifest(b)
		must(t, err)
		if !bytes.Equal(got.encode(), b) || got.position != m.position || len(got.runs) != len(m.runs) ||
			(got.checkpoint == nil) != (m.checkpoint == nil) {
			t.Fatalf("%+v became %+v", m, got)
		}
		for i := range b {
			bad := bytes.Clone(b)
			bad[i] ^= 1
			if _, err := decodeManifest(bad); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("byte %d changed: %v", i, err)
			}
			if _, err := decodeManifest(b[:i]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("cut at %d: %v", i, err)
			}
		}
	}
}

// sealedBlock returns a block with a right checksum around any payload.
func sealedBlock(h blockHeader, payload []byte) []byte {
	b := append(appendBlockHeader(nil, h), payload...)
	sealBlock(b)
	return b
}

func TestBlockOfAnotherPlace(t *testing.T) {
	r := &run{id: 5, nonce: 6}
	right := blockHeader{kind: kindPage, run: 5, nonce: 6, part: 7, chunk: 0, chunks: 1, rows: 3}
	h, _, err := decodeBlock(sealedBlock(right, []byte("x")))
	must(t, err)
	must(t, h.check(r, kindPage, 7, 0))
	for _, wrong := range []blockHeader{
		{kind: kindFilter, run: 5, nonce: 6, part: 7, chunks: 1},
		{kind: kindPage, run: 4, nonce: 6, part: 7, chunks: 1},
		{kind: kindPage, run: 5, nonce: 7, part: 7, chunks: 1},
		{kind: kindPage, run: 5, nonce: 6, part: 8, chunks: 1},
		{kind: kindPage, run: 5, nonce: 6, part: 7, chunk: 1, chunks: 2},
		{kind: kindPage, run: 5, nonce: 6, part: 7},
	} {
		if err := wrong.check(r, kindPage, 7, 0); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	block := sealedBlock(right, []byte("payload"))
	for i := range block {
		bad := bytes.Clone(block)
		bad[i] ^= 4
		if h, _, err := decodeBlock(bad); err == nil && h.check(r, kindPage, 7, 0) == nil {
			t.Errorf("byte %d changed and not noticed", i)
		}
		if _, _, err := decodeBlock(block[:i]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
}

// samplePage returns the payload of a page with every kind of row.
func samplePage() (rows uint32, payload []byte) {
	var b pageBuilder
	var sorted []dedup.Row
	for n := range uint64(20) {
		r := rowOf(n)
		r.Fingerprint, r.Attempt, r.HasResult = n%3, uint32(n%2), n%4 == 0
		r.Shift = int64(n%5) - 2
		if n%8 == 0 {
			r.Result = []byte("result")
		}
		sorted = append(sorted, r)
	}
	slices.SortFunc(sorted, func(a, b dedup.Row) int { return bytes.Compare(a.Digest[:], b.Digest[:]) })
	for _, r := range sorted {
		b.add(&r.Digest, r.AppendBody(nil))
	}
	return b.rows, bytes.Clone(b.bytes())
}

// FuzzPage decodes any payload as a page: no panic, and what is found is there.
func FuzzPage(f *testing.F) {
	rows, payload := samplePage()
	f.Add(rows, payload)
	f.Add(uint32(0), []byte{})
	f.Add(uint32(1), make([]byte, 20))
	f.Fuzz(func(t *testing.T, rows uint32, payload []byte) {
		p, err := decodePage(rows, payload)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		for i := range p.rows {
			d := p.digest(i)
			if at, found := p.find(&d); found && p.digest(at) != d {
				t.Fatalf("find of row %d leads to %d", i, at)
			}
			if _, err := p.row(i); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
		}
	})
}

// FuzzBlock decodes any bytes as a block, with the checksum put right.
func FuzzBlock(f *testing.F) {
	rows, payload := samplePage()
	f.Add(sealedBlock(blockHeader{kind: kindPage, run: 1, nonce: 2, chunks: 1, rows: rows}, payload))
	f.Fuzz(func(t *testing.T, input []byte) {
		b := bytes.Clone(input)
		if len(b) >= blockHeaderBytes {
			sealBlock(b)
		}
		h, payload, err := decodeBlock(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if !bytes.Equal(sealedBlock(h, payload), b) {
			t.Fatal("a block does not encode to itself")
		}
	})
}

// FuzzManifest decodes any bytes as a manifest, with the checksum put right.
func FuzzManifest(f *testing.F) {
	f.Add(goldenManifest().encode()[manifestSumFrom:])
	f.Fuzz(func(t *testing.T, fields []byte) {
		m, err := decodeManifest(sealManifest(append(make([]byte, manifestSumFrom), fields...)))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if _, err := decodeManifest(m.encode()); err != nil {
			t.Fatalf("what was decoded encodes to %v", err)
		}
	})
}
