package state

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"oncebus/dedup"
)

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

// TestDamage injures every kind of file, of a store closed cleanly and of one
// that was killed: hundreds of places, the same in every run. Each time the
// store is either found corrupt, or holds exactly what its changelog says up
// to its position.
//
// The injured stores are opened in child processes: Badger leaks goroutines
// when it fails to open, and might end the process.
func TestDamage(t *testing.T) {
	t.Parallel()
	older, bases := damageBases(t)
	var cases []damage
	r := rand.New(rand.NewPCG(5, 6))
	kinds := make(map[string]int)
	for _, base := range bases {
		sizes, err := listing(base)
		must(t, err)
		for _, name := range slices.Sorted(maps.Keys(sizes)) {
			cases = append(cases, fileDamage(t, r, older, base, name)...)
			kinds[cmp.Or(filepath.Ext(name), name)]++
		}
		for seed := range int64(80) {
			cases = append(cases, damage{Base: base, Op: opMix, At: seed, From: older})
		}
	}
	for _, kind := range []string{".mem", ".vlog", ".sst", "MANIFEST", "KEYREGISTRY", "DISCARD", "LOCK", statusName} {
		if kinds[kind] == 0 {
			t.Errorf("no file %s was injured", kind)
		}
	}
	outcomes := make(map[string]int)
	all := len(cases)
	for len(cases) > 0 {
		cases = cases[runDamage(t, cases, outcomes):]
	}
	t.Logf("%d injuries: %v, in files of kinds %v", all, outcomes, kinds)
	for _, op := range []string{opFlip, opZero, opCut, opDelete, opOlder, opMix} {
		if outcomes[op+" corrupt"] == 0 {
			t.Errorf("no injury %q was found out", op)
		}
	}
}

// damageBases makes three stores of one life: as they were at a flush, killed
// some transactions later, and closed cleanly.
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
			must(t, s.Close()) // so that the clean part lies in tables
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
		t.Fatal("no write to take the snapshot at")
	}
	return older, []string{clean, killed}
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
		outcomes[cases[done].Op+" "+outcome]++
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
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnclean) {
		return "corrupt" // an injured status may name another boot
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
