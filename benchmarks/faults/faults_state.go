//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	mathrand "math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/state"
)

// stateFaults are rows s1 to s4: faults of the local state.
var stateFaults = []*fault{
	{row: "s1", name: "disk-full", slots: 1, apply: diskFull},
	{row: "s2", name: "truncated", slots: 1, apply: damaged(truncateFile)},
	{row: "s2", name: "flipped-bytes", weight: 2, slots: 1, apply: damaged(flipBytes)},
	{row: "s2", name: "deleted-file", slots: 1, apply: damaged(deleteFile)},
	{row: "s2", name: "not-a-file", slots: 1, apply: damaged(replaceFile)},
	{row: "s2", name: "state-lost", slots: 1, apply: stateLost},
	{row: "s3", name: "power-loss", weight: 2, slots: 1, apply: powerLoss},
	{row: "s4", name: "older-copy", weight: 2, slots: 1, apply: olderCopy},
	{row: "s4", name: "other-partition", slots: 1, apply: otherPartition},
}

// quarantineMessage is what a process logs when it does not trust the files of a task.
const quarantineMessage = "local store quarantined"

// stores returns the task directories of a stopped process.
func stores(s *slot) ([]string, error) {
	entries, err := os.ReadDir(s.storesDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() && !strings.Contains(e.Name(), ".quarantine-") {
			dirs = append(dirs, filepath.Join(s.storesDir(), e.Name()))
		}
	}
	return dirs, nil
}

// haveStores returns the stores of a process. It returns an error if there are none.
func haveStores(s *slot) ([]string, error) {
	dirs, err := stores(s)
	if err == nil && len(dirs) == 0 {
		err = fmt.Errorf("%w: process %s has no store", errNotStruck, s.name)
	}
	return dirs, err
}

// loseStores removes a stopped process's state directory.
func loseStores(s *slot) error { return os.RemoveAll(s.stateDir()) }

// damageStores makes every store of a stopped process unreadable.
func damageStores(rng *mathrand.Rand, s *slot) error {
	dirs, err := haveStores(s)
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "MANIFEST"), []byte{byte(rng.IntN(256))}, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// stateLost starts a process without its state directory.
func stateLost(ctx context.Context, k *strike) error {
	s := k.slots[0]
	if err := errors.Join(s.kill(), loseStores(s), s.start(ctx), s.awaitReady(ctx)); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}

// damaged returns a fault that kills a process, damages one file in each of its stores, and restarts it. If the
// process opens a damaged store and notices the damage, it must quarantine and rebuild the store. If it reads
// damaged data without noticing, the check of the epoch finds the effect.
func damaged(harm func(*mathrand.Rand, string) (string, error)) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		s := k.slots[0]
		if err := s.kill(); err != nil {
			return err
		}
		dirs, err := haveStores(s)
		if err != nil {
			return errors.Join(err, s.start(ctx))
		}
		harms := map[string]string{}
		for _, dir := range dirs {
			did, err := harm(k.rng, dir)
			if err != nil {
				return errors.Join(fmt.Errorf("damage %s: %w", dir, err), s.start(ctx))
			}
			harms[filepath.Base(dir)] = did
		}
		return k.afterDamage(ctx, s, harms, false)
	}
}

// afterDamage starts a process with damaged stores. certain says that the process must quarantine every store that it
// opens.
func (k *strike) afterDamage(ctx context.Context, s *slot, harms map[string]string, certain bool) error {
	ready, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	if err := errors.Join(s.start(ctx), s.awaitReady(ready)); err != nil {
		return fmt.Errorf("%w; damaged were %v", err, harms)
	}
	log := s.current().Log
	opened, quarantined := 0, 0
	var trusted []string
	for dir, did := range harms {
		at := strings.LastIndexByte(dir, '-')
		task := dir[:at] + "/" + dir[at+1:]
		switch {
		case log.CountTask(quarantineMessage, task) > 0:
			opened, quarantined = opened+1, quarantined+1
		case log.CountTask("restored", task) > 0:
			opened++
			trusted = append(trusted, dir+" "+did)
		}
	}
	k.note("%d stores damaged, %d opened, %d quarantined, trusted %v", len(harms), opened, quarantined, trusted)
	if certain && len(trusted) > 0 {
		return fmt.Errorf("process %s trusted %v", s.name, trusted)
	}
	if opened == 0 {
		return fmt.Errorf("%w: process %s got none of its former tasks", errNotStruck, s.name)
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}

// pick returns a random file of a store and its size. It never picks the lock file.
func pick(rng *mathrand.Rand, dir string) (string, int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", 0, err
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Name() == "LOCK" || !e.Type().IsRegular() })
	if len(entries) == 0 {
		return "", 0, fmt.Errorf("%w: %s is empty", errNotStruck, dir)
	}
	e := entries[rng.IntN(len(entries))]
	info, err := e.Info()
	if err != nil {
		return "", 0, err
	}
	return filepath.Join(dir, e.Name()), info.Size(), nil
}

func truncateFile(rng *mathrand.Rand, dir string) (string, error) {
	path, size, err := pick(rng, dir)
	if err != nil {
		return "", err
	}
	to := rng.Int64N(size + 1)
	return fmt.Sprintf("%s from %d to %d bytes", filepath.Base(path), size, to), os.Truncate(path, to)
}

func flipBytes(rng *mathrand.Rand, dir string) (did string, err error) {
	path, size, err := pick(rng, dir)
	if err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n := min(size, 1+rng.Int64N(16))
	for range n {
		at, b := rng.Int64N(size), make([]byte, 1)
		if _, err := f.ReadAt(b, at); err != nil {
			return "", err
		}
		b[0] ^= byte(1 << rng.IntN(8))
		if _, err := f.WriteAt(b, at); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%s %d bits of %d bytes", filepath.Base(path), n, size), nil
}

func deleteFile(rng *mathrand.Rand, dir string) (string, error) {
	path, _, err := pick(rng, dir)
	if err != nil {
		return "", err
	}
	return filepath.Base(path) + " deleted", os.Remove(path)
}

// replaceFile replaces a file by a directory, which no process can open as a file. To take away permissions
// would not suffice, because permissions do not apply to root.
func replaceFile(rng *mathrand.Rand, dir string) (string, error) {
	path, _, err := pick(rng, dir)
	if err != nil {
		return "", err
	}
	return filepath.Base(path) + " replaced by a directory", errors.Join(os.Remove(path), os.Mkdir(path, 0o700))
}

// copyDir copies a directory of files and directories.
func copyDir(from, to string) error { return os.CopyFS(to, os.DirFS(from)) }

// olderCopy replaces the state by a copy that is some seconds old.
func olderCopy(ctx context.Context, k *strike) error {
	s := k.slots[0]
	older := s.stateDir() + "-older"
	if err := k.copyAndGoOn(ctx, s, older); err != nil {
		return err
	}
	defer os.RemoveAll(older) //nolint:errcheck // a copy that stays is removed with the app's directory.
	if err := errors.Join(loseStores(s), os.Rename(older, s.stateDir()), s.start(ctx), s.awaitReady(ctx)); err != nil {
		return err
	}
	return k.recovers(ctx, time.Now(), takeOverMax)
}

// copyAndGoOn kills the process, copies its state, runs the process for some more seconds, and kills it again.
func (k *strike) copyAndGoOn(ctx context.Context, s *slot, to string) error {
	if err := s.kill(); err != nil {
		return err
	}
	if _, err := haveStores(s); err != nil {
		return errors.Join(err, s.start(ctx))
	}
	if err := errors.Join(os.RemoveAll(to), copyDir(s.stateDir(), to), s.start(ctx)); err != nil {
		return err
	}
	return errors.Join(kafkatest.Pause(ctx, k.between(3*time.Second, 8*time.Second)), s.kill())
}

// otherPartition exchanges the state directories of two tasks.
func otherPartition(ctx context.Context, k *strike) error {
	s := k.slots[0]
	if err := s.kill(); err != nil {
		return err
	}
	dirs, err := stores(s)
	if err == nil && len(dirs) < 2 {
		err = fmt.Errorf("%w: process %s has fewer than two stores", errNotStruck, s.name)
	}
	if err != nil {
		return errors.Join(err, s.start(ctx))
	}
	k.rng.Shuffle(len(dirs), func(i, j int) { dirs[i], dirs[j] = dirs[j], dirs[i] })
	a, b, aside := dirs[0], dirs[1], dirs[0]+"-moved"
	if err := errors.Join(os.Rename(a, aside), os.Rename(b, a), os.Rename(aside, b)); err != nil {
		return errors.Join(err, s.start(ctx))
	}
	return k.afterDamage(ctx, s, map[string]string{filepath.Base(a): "exchanged", filepath.Base(b): "exchanged"}, true)
}

// bootLine matches the line in a store's status file that names the boot during which the store was open.
var bootLine = regexp.MustCompile(`(?m)^boot .*$`)

// powerLoss mixes two copies of the state as a power loss would: in each file some pages are some seconds old, and
// others are new. It also changes the boot id, from which the stores must detect the power loss.
func powerLoss(ctx context.Context, k *strike) error {
	s := k.slots[0]
	older := s.stateDir() + "-older"
	if err := k.copyAndGoOn(ctx, s, older); err != nil {
		return err
	}
	defer os.RemoveAll(older) //nolint:errcheck // a copy that stays is removed with the app's directory.
	dirs, err := haveStores(s)
	if err != nil {
		return errors.Join(err, s.start(ctx))
	}
	boot := "boot " + randomUUID()
	harms := map[string]string{}
	for _, dir := range dirs {
		path := filepath.Join(dir, "STATUS")
		status, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the process was killed while the store was creating its files
		}
		old := filepath.Join(older, s.app.id, filepath.Base(dir))
		if err == nil {
			err = mixDir(k.rng, dir, old)
		}
		if err != nil {
			return errors.Join(err, s.start(ctx))
		}
		if strings.Contains(string(status), "state closed") {
			continue // the store was not open at the power loss
		}
		if err := os.WriteFile(path, bootLine.ReplaceAll(status, []byte(boot)), 0o600); err != nil {
			return errors.Join(err, s.start(ctx))
		}
		harms[filepath.Base(dir)] = "pages mixed"
	}
	if len(harms) == 0 {
		return errors.Join(fmt.Errorf("%w: no store of process %s was open", errNotStruck, s.name), s.start(ctx))
	}
	return k.afterDamage(ctx, s, harms, true)
}

func randomUUID() string {
	b := make([]byte, 16)
	rand.Read(b) // never fails (crypto/rand)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// mixDir replaces random pages of the current files by the same pages of the older files.
func mixDir(rng *mathrand.Rand, dir, older string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || e.Name() == "STATUS" || e.Name() == "LOCK" {
			continue
		}
		if err := mixFile(rng, filepath.Join(dir, e.Name()), filepath.Join(older, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

func mixFile(rng *mathrand.Rand, path, older string) (err error) {
	const page = 4096
	src, err := os.Open(older)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the file did not exist yet when the copy was made
	}
	if err != nil {
		return err
	}
	defer src.Close() //nolint:errcheck // it was only read.
	dst, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	buf := make([]byte, page)
	for at := int64(0); ; at += page {
		n, err := src.ReadAt(buf, at)
		if n > 0 && rng.IntN(2) == 0 {
			if _, err := dst.WriteAt(buf[:n], at); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// diskFull fills the disk of one process. The process must pause its tasks before the disk is full, keep running, and
// resume when there is space again.
func diskFull(ctx context.Context, k *strike) (err error) {
	s := k.slots[0]
	ballast := filepath.Join(s.stateDir(), "ballast")
	settings, undo, err := smallDisk(s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.kill(), undo(), s.start(ctx)) }()
	if err := errors.Join(s.start(ctx, settings...), s.awaitReady(ctx)); err != nil {
		return err
	}
	if err := fill(ballast, 4); err != nil {
		return err
	}
	paused, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = kafkatest.Await(paused, "process "+s.name+" pauses", func(ctx context.Context) error { return k.diskPaused(ctx, s, 1) })
	if err != nil {
		return err
	}
	if err := errors.Join(kafkatest.Pause(ctx, k.between(time.Second, 5*time.Second)), os.Remove(ballast)); err != nil {
		return err
	}
	freed := time.Now()
	resumed, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err = kafkatest.Await(resumed, "process "+s.name+" resumes", func(ctx context.Context) error { return k.diskPaused(ctx, s, 0) })
	if err != nil {
		return err
	}
	return k.recovers(ctx, freed, takeOverMax)
}

func (k *strike) diskPaused(ctx context.Context, s *slot, want float64) error {
	proc := s.current()
	if err := proc.Ended(); err != nil {
		return kafkatest.Fatal(err)
	}
	m, err := proc.Metrics(ctx)
	if err != nil {
		return err
	}
	if got := m.Sum("oncebus_disk_paused"); got != want {
		return fmt.Errorf("oncebus_disk_paused is %v", got)
	}
	return nil
}

// smallDisk stops a process and gives its state a small disk. If the harness may mount file systems, the small
// disk is a tmpfs. Otherwise the state stays on its disk, and the level at which tasks pause is set just below
// the disk's present free space.
func smallDisk(s *slot) (settings []string, undo func() error, err error) {
	if err := errors.Join(s.kill(), loseStores(s), os.MkdirAll(s.stateDir(), 0o700)); err != nil {
		return nil, nil, err
	}
	if mountSmall(s.stateDir()) == nil {
		// This is the default of the program. The harness switches it off for the machine's own disk.
		return []string{"DISK_MIN_FREE_PERCENT=10"}, func() error { return errors.Join(unmount(s.stateDir()), loseStores(s)) }, nil
	}
	space, err := state.DiskSpace(s.stateDir())
	if err != nil {
		return nil, nil, err
	}
	least := strconv.FormatInt(int64(space.Free)-(1<<30), 10)
	return []string{"DISK_MIN_FREE_BYTES=" + least}, func() error { return nil }, nil
}

// fill makes a file so large that only the given percentage of a small disk stays free. On a large disk the file has
// two gigabytes.
func fill(path string, percent int64) (err error) {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	space, err := state.DiskSpace(filepath.Dir(path))
	if err != nil {
		return err
	}
	return allocate(f, min(int64(space.Free)-int64(space.Total)*percent/100, 2<<30))
}
