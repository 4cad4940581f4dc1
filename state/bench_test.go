package state

import (
	"sync"
	"testing"

	"oncebus/dedup"
)

// benchHost uses the defaults and the real sizes of files.
func benchHost(b *testing.B) *Host {
	h := newHost(b, DefaultConfig())
	h.valueLogBytes = valueLogBytes
	return h
}

// loadedStore is a store of 1.2 M rows that benchmarks of look-ups share.
func loadedStore(b *testing.B) *Store {
	s := mustOpen(b, benchHost(b), b.TempDir())
	b.Cleanup(func() { must(b, s.Abandon()) })
	for n := range uint64(benchRows) {
		s.Put(rowOf(n))
		if n%4000 == 3999 {
			must(b, s.Apply(int64(n+1), nil))
		}
	}
	flush(b, s)
	for n := range uint64(1000) { // these are recent
		s.Put(rowOf(benchRows + n))
	}
	must(b, s.Apply(benchRows+1000, nil))
	return s
}

const benchRows = 1_200_000

func BenchmarkGet(b *testing.B) {
	s := loadedStore(b)
	for _, c := range []struct {
		name string
		key  func(i uint64) uint64
		held bool
	}{
		{"absent", func(i uint64) uint64 { return 1<<40 + i }, false},
		{"recent", func(i uint64) uint64 { return benchRows + i%1000 }, true},
		{"page", func(i uint64) uint64 { return i * 7919 % benchRows }, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			digests := make([]dedup.Digest, 1<<16)
			for i := range digests {
				digests[i] = digestOf(c.key(uint64(i)))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, held, err := s.Get(digests[i%len(digests)]); held != c.held || err != nil {
					b.Fatal(held, err)
				}
			}
		})
	}
}

// BenchmarkApply is a row from Put to its place in a merged run, a look-up
// before it included; what the background does is in the time only as far as
// it holds the owner up.
func BenchmarkApply(b *testing.B) {
	s := mustOpen(b, benchHost(b), b.TempDir())
	defer func() { must(b, s.Close()) }()
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		row := rowOf(n)
		if _, held, err := s.Get(row.Digest); held || err != nil {
			b.Fatal(held, err)
		}
		s.Put(row)
		if n%4000 == 3999 {
			must(b, s.Apply(int64(n+1), nil))
		}
	}
}

// BenchmarkRows is the whole life of 10 million rows in 8 stores; run it with
// -benchtime 1x and a CPU profile to see where the time goes.
func BenchmarkRows(b *testing.B) {
	const tasks, perTask, txn = 8, 1_250_000, 4000
	for b.Loop() {
		h := benchHost(b)
		var stores []*Store
		for range tasks {
			stores = append(stores, mustOpen(b, h, b.TempDir()))
		}
		for from := 0; from < perTask; from += txn {
			for i, s := range stores {
				for n := from; n < min(from+txn, perTask); n++ {
					row := rowOf(uint64(i)<<40 | uint64(n))
					if _, held, err := s.Get(row.Digest); held || err != nil {
						b.Fatal(held, err)
					}
					s.Put(row)
				}
				must(b, s.Apply(int64(from+txn), nil))
			}
		}
		var wg sync.WaitGroup
		for _, s := range stores {
			wg.Go(func() { must(b, s.Close()) })
		}
		wg.Wait()
	}
}
