//go:build synctests

package processor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/restore"
)

const (
	// stopMax is how long a process may take to stop once its network works.
	stopMax = 5 * time.Minute
	// noStopTimeout keeps Run waiting for its goroutines. A real process would be ended after its stop timeout, but
	// here its goroutines would go on unseen.
	noStopTimeout = 10_000 * time.Hour
)

// simLife is one process life: an instance with its own piece of network and its state directory.
type simLife struct {
	*instance
	slot int
	net  *simNet
	dir  string
	disk *fakeDisk
	// doomed lives were canceled at doomedAt.
	doomed   bool
	doomedAt time.Time
}

func (l *simLife) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

func (s *sim) launch(slot int, dir string) *simLife {
	cfg := s.config(fmt.Sprint("slot", slot))
	cfg.StateDir, cfg.Workers, cfg.CommitInterval = dir, s.set.workers[slot], s.set.commit[slot]
	cfg.Partitions, cfg.SessionTimeout, cfg.TransactionTimeout = s.set.partitions, s.set.session, s.set.txn
	cfg.StopTimeout, cfg.State = noStopTimeout, s.set.state
	cfg.Disk = restore.Disk{MinFreePercent: 10, StartMinFreePercent: 5}
	n, disk, sleepy := newSimNet(s.vn.DialContext, s.set.latency), new(fakeDisk), s.sleepy()
	disk.free.Store(diskFree)
	place := func(p *processor.Processor) {
		p.Stores().Disk.Space = disk.space
		p.SetPurgeInterval(processor.PurgeInterval)
		if s.seed%2 == 0 { // pauses each input that is polled while the tasks have anything to do
			p.SetPacing(int64(s.seed/2%2), 1, time.Nanosecond, 20*time.Millisecond)
		}
		if sleepy {
			p.SetManifestInterval(10 * time.Minute)
		}
	}
	l := &simLife{instance: s.startWith(cfg, place, kgo.Dialer(n.dial), kgo.DisableClientMetrics()), slot: slot, net: n, dir: dir, disk: disk}
	s.lives = append(s.lives, l)
	return l
}

// running returns the lives that occupy a slot.
func (s *sim) running() []*simLife {
	return slices.DeleteFunc(slices.Clone(s.slots), func(l *simLife) bool { return l == nil })
}

// someLife returns one of the running lives, or nil.
func (s *sim) someLife() *simLife {
	if live := s.running(); len(live) > 0 {
		return live[s.plan.IntN(len(live))]
	}
	return nil
}

func (s *sim) newDir() string {
	dir, err := os.MkdirTemp(s.dir, "state-")
	if err != nil {
		s.t.Fatal(err)
	}
	return dir
}

// snapshot keeps a copy of a running instance's state, which a later life may get when the copy is old.
func (s *sim) snapshot() {
	l := s.someLife()
	if l == nil {
		return
	}
	dir := s.newDir()
	synctest.Wait() // nothing runs now, so the copy is of one moment
	s.copyDir(l.dir, dir)
	if s.older != "" {
		s.removeDir(s.older)
	}
	s.older = dir
}

// heir returns the state directory for the life that follows a life with dir: unchanged, lost, as it was long ago, or
// with two partitions mixed up.
func (s *sim) heir(dir string) (string, string) {
	next := s.newDir()
	kind := pick(s.plan, "as it was", "as it was", "as it was", "lost", "older", "older", "swapped")
	switch {
	case kind == "lost":
		return next, kind
	case kind == "older" && s.older != "":
		s.copyDir(s.older, next)
		return next, kind
	case kind == "older":
		kind = "as it was"
	}
	s.copyDir(dir, next)
	if kind != "swapped" {
		return next, kind
	}
	one, two := s.partitionDir(next, 0), s.partitionDir(next, s.set.partitions-1)
	spare := filepath.Join(next, "spare")
	renamed := false
	for _, move := range [][2]string{{one, spare}, {two, one}, {spare, two}} {
		err := os.Rename(move[0], move[1])
		if err != nil && !os.IsNotExist(err) {
			s.t.Fatal(err)
		}
		renamed = renamed || err == nil && one != two
	}
	s.mixed[next] = s.mixed[next] || renamed
	if !renamed {
		kind = "as it was"
	}
	return next, kind
}

func (s *sim) partitionDir(dir string, partition int32) string {
	return filepath.Join(dir, "app", "app-repartition-"+strconv.Itoa(int(partition)))
}

// crash ends a life in whatever it is doing: nothing that it sends from now on arrives. A successor gets the state
// that heir returns.
func (s *sim) crash() string {
	l := s.someLife()
	if l == nil {
		return ""
	}
	l.net.cut(true)
	synctest.Wait() // so that the copy is of one moment
	dir, kind := s.heir(l.dir)
	s.doom(l)
	s.slots[l.slot] = nil
	switch s.plan.IntN(4) {
	case 0: // others take over
	case 1:
		s.in(time.Duration(s.plan.IntN(20_000))*time.Millisecond, func() { s.fill(l.slot, dir) })
	default:
		s.fill(l.slot, dir)
	}
	return "crash, state " + kind
}

// doom cancels a life, which then ends as far as it can without a network.
func (s *sim) doom(l *simLife) {
	if !l.doomed {
		l.doomed, l.doomedAt = true, time.Now()
	}
	l.cancel()
}

// expireGhosts removes members from the groups that have been gone for long. Kafka does that when their session ends;
// the embedded broker forgets to watch a session if the member's connection was lost before the answer to its join
// (kfake, groups.go: reply).
func (s *sim) expireGhosts() {
	for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
		info := s.cluster.GroupInfo(app.GroupName("app", stage))
		if info == nil {
			continue
		}
		var ghosts []string
		for _, m := range info.Members {
			if m.InstanceID != nil && s.isGhost(*m.InstanceID) {
				ghosts = append(ghosts, *m.InstanceID)
			}
		}
		if len(ghosts) == 0 {
			continue
		}
		s.note("members that should have expired: %v", ghosts)
		if _, err := s.admin.LeaveGroup(context.Background(), kadm.LeaveGroup(info.Group).InstanceIDs(ghosts...)); err != nil {
			s.note("expire members: %v", err)
		}
	}
}

// isGhost reports whether every life that ever used an instance id has been gone for longer than any session lasts.
func (s *sim) isGhost(instanceID string) bool {
	for _, l := range s.lives {
		if strings.HasPrefix(instanceID, fmt.Sprintf("app-slot%d-", l.slot)) && (!l.doomed || time.Since(l.doomedAt) < 2*s.set.session) {
			return false
		}
	}
	return true
}

func (s *sim) fill(slot int, dir string) {
	if s.slots[slot] == nil {
		s.slots[slot] = s.launch(slot, dir)
	}
}

// zombie cuts an instance off, or freezes it, and lets it go on later, when others have taken over its partitions;
// sometimes one of them runs under the zombie's own name.
func (s *sim) zombie() string {
	l := s.someLife()
	if l == nil {
		return ""
	}
	kind := "zombie cut off"
	if s.plan.IntN(3) > 0 {
		kind = "zombie frozen"
		l.net.freeze()
	} else {
		l.net.cut(true)
	}
	gone := time.Duration(200+s.plan.IntN(2_800)) * time.Millisecond
	if s.plan.IntN(4) > 0 {
		gone = time.Duration(s.plan.Int64N(int64(s.set.session + s.set.txn + 15*time.Second)))
	}
	if s.plan.IntN(8) == 0 {
		gone += 3 * time.Minute // long enough for the records at its offsets to be purged
	}
	if s.plan.IntN(3) > 0 {
		s.in(gone, l.net.mend)
		return kind
	}
	kind += ", with a successor"
	synctest.Wait()
	dir, _ := s.heir(l.dir)
	s.slots[l.slot] = nil
	s.fill(l.slot, dir)
	s.in(gone, l.net.mend)
	// Two processes with one name fence each other until one of them ends.
	s.in(gone+time.Duration(1+s.plan.IntN(40))*time.Second, func() { s.doom(l) })
	return kind
}

func (s *sim) stopOne() string {
	l := s.someLife()
	if l == nil {
		return ""
	}
	s.stopLife(l)
	return "stop"
}

// stopLife asks a life to stop. If the life cannot stop soon, it goes on trying while another life gets its slot.
func (s *sim) stopLife(l *simLife) {
	s.doom(l)
	s.slots[l.slot] = nil
	timer := time.NewTimer(20 * time.Second)
	defer timer.Stop()
	select {
	case <-l.done:
		if l.err != nil {
			s.t.Errorf("stopping slot %d: %v", l.slot, l.err)
		}
	case <-timer.C:
		s.note("slot %d takes its time to stop", l.slot)
	}
}

func (s *sim) startOne() string {
	slot := slices.Index(s.slots, nil)
	if slot < 0 {
		return ""
	}
	s.fill(slot, s.newDir())
	return "join"
}

// roll restarts every instance, one after the other.
func (s *sim) roll() string {
	rolled := false
	for _, l := range s.running() {
		s.stopLife(l)
		if l.ended() {
			s.fill(l.slot, l.dir)
			rolled = true
		}
	}
	if !rolled {
		return ""
	}
	return "rolling restart"
}

// diskFree and diskFull are the free megabytes of a disk of 1000. With diskFull, tasks that fail open bypass their
// stores.
const diskFree, diskFull = 500, 80

// fillDisk leaves an instance without room for its local state for a while.
func (s *sim) fillDisk() string {
	l := s.someLife()
	if l == nil || l.disk.free.Load() == diskFull {
		return ""
	}
	l.disk.free.Store(diskFull)
	s.in(time.Duration(s.plan.Int64N(int64(time.Minute))), func() { l.disk.free.Store(diskFree) })
	return "disk full"
}

func (s *sim) removeDir(dir string) {
	if err := os.RemoveAll(dir); err != nil {
		s.t.Fatal(err)
	}
}

// copyDir copies files with their holes, because Badger's files consist mostly of holes.
func (s *sim) copyDir(from, to string) {
	s.t.Helper()
	s.mixed[to] = s.mixed[from]
	err := filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, rel), 0o700)
		}
		return copyFile(path, filepath.Join(to, rel))
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// seekData and seekHole are Linux's numbers. On a system where they mean something else, all of the file is copied.
const seekData, seekHole = 3, 4

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	info, err := src.Stat()
	for at := int64(0); err == nil && at < info.Size(); {
		data, hole := at, info.Size()
		if next, seekErr := syscall.Seek(int(src.Fd()), at, seekData); errors.Is(seekErr, syscall.ENXIO) {
			break // a hole up to the end
		} else if seekErr == nil {
			data = next
			if hole, err = syscall.Seek(int(src.Fd()), data, seekHole); err != nil {
				break
			}
		}
		_, err = io.Copy(io.NewOffsetWriter(dst, data), io.NewSectionReader(src, data, hole-data))
		at = hole
	}
	if err == nil {
		err = dst.Truncate(info.Size())
	}
	if closeErr := dst.Close(); err == nil {
		err = closeErr
	}
	return err
}
