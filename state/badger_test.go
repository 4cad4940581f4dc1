package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"oncebus/dedup"
)

// damageModel returns the changelog of the damaged stores.
func damageModel() *model {
	m := new(model)
	for i := range 60 {
		var rows []dedup.Row
		for j := range 40 {
			r := rowOf(uint64(i*31+j*17) % 1500)
			r.First = int64(i)
			rows = append(rows, r)
		}
		m.commit(rows)
	}
	return m
}

func damageConfig() Config {
	cfg := smallConfig()
	cfg.FlushRows, cfg.PageBytes = 200, 6000 // pages in the value log and in the LSM tree
	return cfg
}

// TestDamage damages every kind of file of a closed and of a killed store, at hundreds of positions that are the same
// in every run. Each time, the store must either report ErrCorrupt or have exactly the rows of its changelog up to
// its position.
//
// Child processes open the damaged stores, because Badger leaks goroutines when it fails to open, and may end the
// process.
func TestDamage(t *testing.T) {
	older, bases := damageBases(t)
	var cases []injury
	r := rand.New(rand.NewPCG(5, 6))
	kinds := make(map[string]int)
	for _, base := range bases {
		sizes, err := listing(base)
		must(t, err)
		for _, name := range slices.Sorted(maps.Keys(sizes)) {
			cases = append(cases, fileInjuries(t, r, older, base, name)...)
			kinds[cmp.Or(filepath.Ext(name), name)]++
		}
		for seed := range int64(80) {
			cases = append(cases, injury{Base: base, Op: injuryMix, At: seed, From: older})
		}
	}
	for _, kind := range []string{".mem", ".vlog", ".sst", "MANIFEST", "KEYREGISTRY", "DISCARD", "LOCK", statusName} {
		if kinds[kind] == 0 {
			t.Errorf("no file %s was damaged", kind)
		}
	}
	results := make(map[string]int)
	all := len(cases)
	for len(cases) > 0 {
		cases = cases[runDamage(t, cases, results):]
	}
	t.Logf("%d injuries: %v, in files of kinds %v", all, results, kinds)
	for _, op := range []string{injuryFlip, injuryZero, injuryCut, injuryDelete, injuryOlder, injuryMix} {
		if results[op+" corrupt"] == 0 {
			t.Errorf("no injury %q was detected", op)
		}
	}
}

// damageBases returns three copies of one store: at a flush, killed some transactions later, and closed.
func damageBases(t *testing.T) (older string, bases []string) {
	t.Helper()
	root := t.TempDir()
	older = filepath.Join(root, "older")
	clean, killed := filepath.Join(root, "clean"), filepath.Join(root, "killed")
	h := newHost(t, damageConfig())
	m := damageModel()
	take := make(chan string, 1)
	h.beforeWrite = func(dir string) error {
		select {
		case to := <-take:
			return snapshot(dir, to)
		default:
			return nil
		}
	}
	s := mustOpen(t, h, clean)
	for i, txn := range m.txns {
		switch i {
		case len(m.txns) - 20:
			must(t, s.Close()) // so that the LSM tree has tables
			take <- older
			s = mustOpen(t, h, clean)
		case len(m.txns) - 5:
			flush(t, s)
			take <- killed
		}
		must(t, apply(s, txn))
	}
	must(t, s.Close())
	if len(take) > 0 {
		t.Fatal("the store made no write for the snapshot")
	}
	return older, []string{clean, killed}
}

// runDamage runs cases in a child process. It returns the number of cases that ended, including the case in which the
// child died.
func runDamage(t *testing.T, cases []injury, results map[string]int) int {
	input, err := json.Marshal(cases)
	must(t, err)
	work := t.TempDir()
	must(t, os.WriteFile(filepath.Join(work, "cases.json"), input, 0o600))
	log, err := os.Create(filepath.Join(work, "stderr"))
	must(t, err)
	defer log.Close()
	cmd, in := startChild(t, "damage", work, log)
	done := 0
	for ; in.Scan(); done++ {
		result := in.Text()
		if result != "corrupt" && result != "exact" {
			t.Errorf("%+v: %s", cases[done], result)
		}
		results[cases[done].Op+" "+result]++
	}
	if err := cmd.Wait(); err != nil {
		if done == len(cases) {
			t.Fatalf("child failed after the last case: %v", err)
		}
		text, _ := os.ReadFile(log.Name())
		t.Errorf("%+v: the process died: %v\n%s", cases[done], err, tail(text))
		results["died"]++
		done++
	}
	return done
}

func tail(b []byte) []byte { return b[:min(len(b), 3000)] }

// childDamage opens each damaged store and prints the result.
func childDamage() {
	work := os.Args[len(os.Args)-1]
	input, err := os.ReadFile(filepath.Join(work, "cases.json"))
	if err != nil {
		panic(err)
	}
	var cases []injury
	if err := json.Unmarshal(input, &cases); err != nil {
		panic(err)
	}
	h, err := openHost(damageConfig())
	if err != nil {
		panic(err)
	}
	for i, d := range cases {
		result := make(chan string, 1)
		go func() { result <- tryDamage(h, d, filepath.Join(work, fmt.Sprint(i))) }()
		select {
		case text := <-result:
			fmt.Println(text)
		case <-time.After(20 * time.Second): // Badger never released a lock
			fmt.Println("blocked")
		}
	}
	os.Exit(0)
}

// tryDamage damages a copy, opens and reads it, and applies the transactions that it lacks.
func tryDamage(h *Host, d injury, dir string) string {
	defer os.RemoveAll(dir)
	sizes, err := listing(d.Base)
	if err == nil {
		err = copyFiles(d.Base, dir, sizes)
	}
	if err == nil {
		err = d.apply(dir)
	}
	if err != nil {
		return "test failed to damage the files: " + err.Error()
	}
	s, err := h.Open(dir, testIdentity)
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnclean) {
		return "corrupt" // a damaged status may have another boot
	}
	if err != nil {
		return "not ErrCorrupt: " + err.Error()
	}
	m := damageModel()
	err = m.check(s, s.DurablePosition())
	if err == nil {
		err = m.checkGets(s)
	}
	if err == nil {
		err = m.replay(s)
	}
	if err == nil {
		err = m.check(s, m.position())
	}
	closeErr := s.Close()
	if errors.Is(err, ErrCorrupt) {
		// A quarantine requires that Close has released the lock.
		again, err := openBadger(dir, h.valueLogBytes, quiet())
		if err == nil {
			err = again.Close()
		}
		if err != nil && !errors.Is(err, ErrCorrupt) {
			return "not released: " + err.Error()
		}
		return "corrupt"
	}
	if err == nil {
		err = closeErr
	}
	if errors.Is(err, ErrCorrupt) {
		return "corrupt"
	}
	if err != nil {
		return "wrong: " + err.Error()
	}
	return "exact"
}

// injury is one change that damages a copy of a store's directory.
type injury struct {
	Base string // directory that is copied and injured
	Op   string
	File string
	At   int64  // position in the file, or the seed of injuryMix
	From string // directory with older files
}

// The kinds of injuries.
const (
	injuryFlip   = "flip"   // one byte
	injuryZero   = "zero"   // one page
	injuryCut    = "cut"    // truncate at the position
	injuryDelete = "delete" // the file
	injuryOlder  = "older"  // replace the file by an older one
	// injuryMix simulates a power loss: every page of every file is, at random, the current page or an older one.
	injuryMix = "mix"
)

const injuryPage = 4096

func (d injury) apply(dir string) error {
	path := filepath.Join(dir, d.File)
	switch d.Op {
	case injuryCut:
		return os.Truncate(path, d.At)
	case injuryDelete:
		return os.Remove(path)
	case injuryOlder:
		return copySparse(filepath.Join(d.From, d.File), path)
	case injuryMix:
		return mixPages(d.From, dir, rand.New(rand.NewPCG(uint64(d.At), 1)))
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, injuryPage)
	if d.Op == injuryFlip {
		b = b[:1]
	}
	n, err := f.ReadAt(b, d.At)
	if err != nil && !errors.Is(err, io.EOF) {
		return errors.Join(err, f.Close())
	}
	if d.Op == injuryFlip {
		b[0] ^= 0x41
	} else {
		clear(b)
	}
	_, err = f.WriteAt(b[:n], d.At)
	return errors.Join(err, f.Close())
}

// mixPages copies random pages of older files into the files of dir. It also restores some deleted files and removes
// some new ones.
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
			err = mixPagesOf(from, to, r)
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

func mixPagesOf(from, to string, r *rand.Rand) error {
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

// fileInjuries lists the injuries to one file.
func fileInjuries(t *testing.T, r *rand.Rand, older, base, name string) []injury {
	t.Helper()
	cases := []injury{{Base: base, Op: injuryDelete, File: name}, {Base: base, Op: injuryCut, File: name}}
	if _, err := os.Lstat(filepath.Join(older, name)); err == nil {
		cases = append(cases, injury{Base: base, Op: injuryOlder, File: name, From: older})
	}
	used := usedBytes(t, filepath.Join(base, name))
	if used == 0 {
		return cases
	}
	for _, at := range []int64{1, 30, used / 2, used - 1} {
		cases = append(cases, injury{Base: base, Op: injuryCut, File: name, At: min(at, used-1)})
	}
	for range 16 {
		cases = append(cases, injury{Base: base, Op: injuryFlip, File: name, At: r.Int64N(used)})
	}
	for range 4 {
		cases = append(cases, injury{Base: base, Op: injuryCut, File: name, At: r.Int64N(used)},
			injury{Base: base, Op: injuryZero, File: name, At: r.Int64N(used) / injuryPage * injuryPage})
	}
	return cases
}

// usedBytes returns the length of a file without the zeros at its end.
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

// TestUnfinishedFilesAfterKill opens a store with empty log files and truncated
// statistics.
func TestUnfinishedFilesAfterKill(t *testing.T) {
	h, dir, s := newStore(t)
	var m model
	applyRows(t, s, &m, 0, 100, nil)
	must(t, s.Close())
	for _, name := range []string{"00077.mem", "000077.vlog"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	must(t, os.Truncate(filepath.Join(dir, "DISCARD"), 100))
	s = mustOpen(t, h, dir)
	must(t, m.check(s, m.position()))
	must(t, s.Close())
	must(t, os.WriteFile(filepath.Join(dir, "00078.mem"), make([]byte, 2*memTableBytes+1), 0o600))
	if _, err := h.Open(dir, testIdentity); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("open with a write-ahead log of another size: %v", err)
	}
}
