package state

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
)

// damage is one injury to one file: a byte flipped at a place, or the file cut
// there.
type damage struct {
	Base string // directory that is copied and injured
	File string
	At   int64
	Cut  bool
}

func (d damage) inflict(dir string) error {
	path := filepath.Join(dir, d.File)
	if d.Cut {
		return os.Truncate(path, d.At)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, d.At); err != nil {
		return errors.Join(err, f.Close())
	}
	b[0] ^= 0x41
	_, err = f.WriteAt(b, d.At)
	return errors.Join(err, f.Close())
}

// damageModel is the changelog of the damaged stores.
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

// TestDamage flips bytes in and cuts every kind of file, of a store closed
// cleanly and of one that was killed. Each time the store is either found
// corrupt, or holds exactly what its changelog says up to its position.
//
// The injured stores are opened in child processes: Badger leaks goroutines
// when it fails to open, and might end the process.
func TestDamage(t *testing.T) {
	t.Parallel()
	bases := damageBases(t)
	var cases []damage
	r := rand.New(rand.NewPCG(5, 6))
	kinds := make(map[string]int)
	for _, base := range bases {
		sizes, err := listing(base)
		must(t, err)
		for name := range sizes {
			used := usedBytes(t, filepath.Join(base, name))
			if used == 0 {
				continue
			}
			kinds[filepath.Ext(name)+"/"+name[:1]]++
			for range 8 {
				cases = append(cases, damage{Base: base, File: name, At: r.Int64N(used)})
			}
			for _, at := range []int64{0, 1, 30, used / 2, used - 1} {
				cases = append(cases, damage{Base: base, File: name, At: min(at, used-1), Cut: true})
			}
		}
	}
	slices.SortFunc(cases, compareText)
	outcomes := make(map[string]int)
	for len(cases) > 0 {
		done := runDamage(t, cases, outcomes)
		cases = cases[done:]
	}
	t.Logf("%v in files of kinds %v", outcomes, kinds)
	if outcomes["corrupt"] == 0 || outcomes["exact"] == 0 {
		t.Fatalf("outcomes %v: both corrupt and exact were expected", outcomes)
	}
}

func compareText(a, b damage) int {
	return strings.Compare(fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b))
}

// usedBytes is the length of a file without the zeros at its end.
func usedBytes(t *testing.T, path string) int64 {
	data, err := os.ReadFile(path)
	must(t, err)
	n := len(data)
	for n > 0 && data[n-1] == 0 {
		n--
	}
	return int64(n)
}

// damageBases makes the two stores: closed cleanly, and killed.
func damageBases(t *testing.T) []string {
	root := t.TempDir()
	clean, killed := filepath.Join(root, "clean"), filepath.Join(root, "killed")
	h := newHost(t, damageConfig())
	m := damageModel()
	take := false
	h.beforeWrite = func(dir string) error {
		if !take {
			return nil
		}
		take = false
		return snapshot(dir, killed)
	}
	s := mustOpen(t, h, clean)
	for i, txn := range m.txns {
		if i == len(m.txns)-5 {
			must(t, s.Close()) // so that the clean part lies in tables
			take = true
			s = mustOpen(t, h, clean)
		}
		must(t, apply(s, txn))
	}
	must(t, s.Close())
	if take {
		t.Fatal("no write to take the snapshot at")
	}
	return []string{clean, killed}
}

// runDamage runs cases in a child process and returns how many it got through.
func runDamage(t *testing.T, cases []damage, outcomes map[string]int) int {
	input, err := json.Marshal(cases)
	must(t, err)
	work := t.TempDir()
	must(t, os.WriteFile(filepath.Join(work, "cases.json"), input, 0o600))
	cmd := exec.Command(os.Args[0], work)
	cmd.Env = append(os.Environ(), childEnv+"=damage")
	log, err := os.Create(filepath.Join(work, "stderr"))
	must(t, err)
	defer log.Close()
	cmd.Stderr = log
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	done := 0
	for in := bufio.NewScanner(out); in.Scan(); done++ {
		outcome := in.Text()
		if outcome != "corrupt" && outcome != "exact" {
			t.Errorf("%+v: %s", cases[done], outcome)
		}
		outcomes[outcome]++
	}
	if err := cmd.Wait(); err != nil {
		if done == len(cases) {
			t.Fatalf("child failed after its work: %v", err)
		}
		text, _ := os.ReadFile(log.Name())
		t.Errorf("%+v: the process died: %v\n%s", cases[done], err, tail(text))
		outcomes["died"]++
		done++
	}
	return done
}

func tail(b []byte) []byte { return b[:min(len(b), 3000)] }

// childDamage opens each injured store and prints what came of it.
func childDamage() {
	work := os.Args[len(os.Args)-1]
	input, err := os.ReadFile(filepath.Join(work, "cases.json"))
	if err != nil {
		panic(err)
	}
	var cases []damage
	if err := json.Unmarshal(input, &cases); err != nil {
		panic(err)
	}
	h, err := openHost(damageConfig())
	if err != nil {
		panic(err)
	}
	for i, d := range cases {
		outcome := make(chan string, 1)
		go func() { outcome <- tryDamage(h, d, filepath.Join(work, fmt.Sprint(i))) }()
		select {
		case text := <-outcome:
			fmt.Println(text)
		case <-time.After(20 * time.Second): // a lock that Badger never gives back
			fmt.Println("hangs")
		}
	}
	os.Exit(0)
}

// tryDamage injures a copy, opens and reads it and applies what it lacks.
func tryDamage(h *Host, d damage, dir string) string {
	defer os.RemoveAll(dir)
	sizes, err := listing(d.Base)
	if err == nil {
		err = copyFiles(d.Base, dir, sizes)
	}
	if err == nil {
		err = d.inflict(dir)
	}
	if err != nil {
		return "test is wrong: " + err.Error()
	}
	s, err := h.Open(dir, testIdentity)
	if errors.Is(err, ErrCorrupt) {
		return "corrupt"
	}
	if err != nil {
		return "not called corrupt: " + err.Error()
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
		// The lock must be free, so that the directory can be set aside.
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
