package state

import (
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// damage is one injury to a copy of a store's directory.
type damage struct {
	Base string // directory that is copied and injured
	Op   string
	File string
	At   int64  // place in the file, or the seed of a mix
	From string // directory that older pages come from
}

// The injuries.
const (
	opFlip   = "flip"   // one byte
	opZero   = "zero"   // one page
	opCut    = "cut"    // the file ends at the place
	opDelete = "delete" // the file
	opOlder  = "older"  // the file is that of an older copy
	// opMix makes what a power loss may leave: every page of every file is
	// the current one or that of an older copy, by chance.
	opMix = "mix"
)

const injuryPage = 4096

func (d damage) inflict(dir string) error {
	path := filepath.Join(dir, d.File)
	switch d.Op {
	case opCut:
		return os.Truncate(path, d.At)
	case opDelete:
		return os.Remove(path)
	case opOlder:
		return copySparse(filepath.Join(d.From, d.File), path)
	case opMix:
		return mixPages(d.From, dir, rand.New(rand.NewPCG(uint64(d.At), 1)))
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, injuryPage)
	if d.Op == opFlip {
		b = b[:1]
	}
	n, err := f.ReadAt(b, d.At)
	if err != nil && !errors.Is(err, io.EOF) {
		return errors.Join(err, f.Close())
	}
	if d.Op == opFlip {
		b[0] ^= 0x41
	} else {
		clear(b)
	}
	_, err = f.WriteAt(b[:n], d.At)
	return errors.Join(err, f.Close())
}

// mixPages puts pages of older files into those of dir. Now and then it takes
// a whole file: one that was deleted comes back, a new one has no name yet.
func mixPages(older, dir string, r *rand.Rand) error {
	before, err := listing(older)
	if err != nil {
		return err
	}
	now, err := listing(dir)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		from, to := filepath.Join(older, name), filepath.Join(dir, name)
		if _, ok := now[name]; ok {
			err = mixFile(from, to, r)
		} else if r.IntN(4) == 0 {
			err = copySparse(from, to)
		}
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if _, ok := before[name]; !ok && r.IntN(8) == 0 {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	return nil
}

func mixFile(from, to string, r *rand.Rand) error {
	older, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	now, err := os.ReadFile(to)
	if err != nil {
		return err
	}
	share := r.Float64()
	for at := 0; at < min(len(older), len(now)); at += injuryPage {
		if r.Float64() < share {
			copy(now[at:min(at+injuryPage, len(now))], older[at:])
		}
	}
	return os.WriteFile(to, now, 0o600)
}

// fileDamage lists the injuries to one file.
func fileDamage(t *testing.T, r *rand.Rand, older, base, name string) []damage {
	t.Helper()
	cases := []damage{{Base: base, Op: opDelete, File: name}, {Base: base, Op: opCut, File: name}}
	if _, err := os.Lstat(filepath.Join(older, name)); err == nil {
		cases = append(cases, damage{Base: base, Op: opOlder, File: name, From: older})
	}
	used := usedBytes(t, filepath.Join(base, name))
	if used == 0 {
		return cases
	}
	for _, at := range []int64{1, 30, used / 2, used - 1} {
		cases = append(cases, damage{Base: base, Op: opCut, File: name, At: min(at, used-1)})
	}
	for range 16 {
		cases = append(cases, damage{Base: base, Op: opFlip, File: name, At: r.Int64N(used)})
	}
	for range 4 {
		cases = append(cases, damage{Base: base, Op: opCut, File: name, At: r.Int64N(used)},
			damage{Base: base, Op: opZero, File: name, At: r.Int64N(used) / injuryPage * injuryPage})
	}
	return cases
}

// usedBytes is the length of a file without the zeros at its end.
func usedBytes(t *testing.T, path string) int64 {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	n := len(data)
	for n > 0 && data[n-1] == 0 {
		n--
	}
	return int64(n)
}
