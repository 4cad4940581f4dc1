package state

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

// residentValueLog returns the resident bytes of the value-log files in dir.
func residentValueLog(t *testing.T, dir string) (resident int) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/smaps")
	must(t, err)
	counts := false
	for line := range bytes.Lines(data) {
		if name, _, _ := bytes.Cut(line, []byte(" ")); !bytes.HasSuffix(name, []byte(":")) { // a mapping's first line
			path, _ := mappedPath(line)
			counts = filepath.Dir(path) == dir && filepath.Ext(path) == ".vlog"
		}
		if value, found := bytes.CutPrefix(line, []byte("Rss:")); found && counts {
			kib, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(string(value)), " kB"))
			must(t, err)
			resident += kib << 10
		}
	}
	return resident
}

// TestLookupsReleaseMappedFiles reads a store whose value log is larger than the limit of mapped memory.
func TestLookupsReleaseMappedFiles(t *testing.T) {
	cfg := DefaultConfig()
	cfg.FlushRows = 16 << 10
	h := newHost(t, cfg)
	idle := watchIdle(h)
	// The path differs from the path in /proc/self/maps.
	root := t.TempDir()
	must(t, os.Mkdir(filepath.Join(root, "a dir"), 0o750))
	must(t, os.Symlink(filepath.Join(root, "a dir"), filepath.Join(root, "link")))
	s := mustOpen(t, h, filepath.Join(root, "link"))
	var m model
	const rows = 50_000
	applyRows(t, s, &m, 0, rows, nil)
	flush(t, s)
	must(t, m.check(s, m.position()))
	awaitRounds := func() {
		for range 2 { // one round may have begun before
			for len(idle) > 0 {
				<-idle
			}
			s.wakeBackground()
			<-idle
		}
	}
	awaitRounds() // no merge is left
	const most = 256 << 10
	if got := residentValueLog(t, filepath.Join(root, "a dir")); got < 4*most {
		t.Fatalf("%d bytes of the value log are resident; the test needs more", got)
	}

	h.mapped.limit, h.mapped.fileLimit = 1, 1
	for round, n := s.db.partsRead.Load()/mappedCheckParts, uint64(0); s.db.partsRead.Load()/mappedCheckParts == round; n++ {
		if _, found, err := s.Get(digestOf(n)); err != nil || !found {
			t.Fatalf("row %d: found %v, %v", n, found, err)
		}
	}
	awaitRounds()
	if got := residentValueLog(t, filepath.Join(root, "a dir")); got > most {
		t.Errorf("%d bytes of the value log are resident after a release", got)
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

// TestReleaseDuringWritesAndMerges releases the value log at every flush and merge step.
func TestReleaseDuringWritesAndMerges(t *testing.T) {
	h, dir := newHost(t, smallConfig()), t.TempDir()
	h.mapped.limit, h.mapped.fileLimit = 1, 1
	s := mustOpen(t, h, dir)
	var m model
	for from := uint64(0); from < 4000; from += 1000 {
		applyRows(t, s, &m, from, from+1000, nil)
		must(t, m.check(s, m.position()))
	}
	must(t, s.Close())
	s = mustOpen(t, h, dir)
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}

func rangeOf(b []byte, offset int) addressRange {
	from := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return addressRange{from, from + uintptr(len(b)), uintptr(offset)}
}

// TestReleaseChangesNoOtherMemory releases memory that is no mapping of a file, as if Badger had removed a mapping
// and Go had put its heap there. That memory must not change.
func TestReleaseChangesNoOtherMemory(t *testing.T) {
	const size = 1 << 20
	b, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	must(t, err)
	defer func() { must(t, syscall.Munmap(b)) }()
	pattern := bytes.Repeat([]byte("pattern!"), size/8)
	copy(b, pattern)
	if err := rangeOf(b, 0).release(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("release of anonymous memory: %v, want EINVAL", err)
	}
	if !bytes.Equal(b, pattern) {
		t.Error("a release changed anonymous memory")
	}
	page := os.Getpagesize()
	heap := rangeOf(pattern, 0)
	heap.from = (heap.from + uintptr(page) - 1) &^ uintptr(page-1)
	heap.to &^= uintptr(page - 1)
	if err := heap.release(); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("release of the heap: %v, want EINVAL", err)
	}
	if !bytes.Equal(b, pattern) {
		t.Error("a release changed the heap")
	}
}

// TestReleaseKeepsWhatIsWritten releases a mapping, also a mapping that begins inside its file, while goroutines
// write and read it. No write may be lost.
func TestReleaseKeepsWhatIsWritten(t *testing.T) {
	const size, goroutines, rounds = 1 << 20, 4, 200
	f, err := os.Create(filepath.Join(t.TempDir(), "000001.vlog"))
	must(t, err)
	defer func() { must(t, f.Close()) }()
	must(t, f.Truncate(2*size))
	for _, offset := range []int{0, size} {
		b, err := syscall.Mmap(int(f.Fd()), int64(offset), size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		must(t, err)
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				part := b[g*size/goroutines : (g+1)*size/goroutines]
				for round := range rounds {
					want := bytes.Repeat([]byte{byte(offset>>20 + g + round)}, len(part))
					copy(part, want)
					if !bytes.Equal(part, want) {
						t.Errorf("round %d of part %d at %d: a release changed the mapping", round, g, offset)
					}
				}
			})
		}
		for range rounds {
			must(t, rangeOf(b, offset).release())
		}
		wg.Wait()
		must(t, rangeOf(b, offset).release())
		written := make([]byte, size)
		_, err = f.ReadAt(written, int64(offset))
		must(t, err)
		if !bytes.Equal(written, b) {
			t.Errorf("offset %d: the file lacks what was written to the mapping", offset)
		}
		must(t, syscall.Munmap(b))
	}
}

// TestUnsupportedRelease protects that releases end, with one line in the log, on a system that does not support them.
func TestUnsupportedRelease(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
	m := mappedMemory{limit: 1, fileLimit: 1}
	if !m.exceeded() {
		t.Error("mapped files take less than a byte")
	}
	for _, below := range []*mappedMemory{{limit: 1, fileLimit: 1 << 40}, {limit: 1 << 40, fileLimit: 1}} {
		if below.exceeded() {
			t.Errorf("both limits are exceeded: %d and %d bytes", below.limit, below.fileLimit)
		}
	}
	for n := range 3 {
		m.disable(fmt.Errorf("reason %d", n), log)
	}
	if m.exceeded() {
		t.Error("the limit holds although the system supports no release")
	}
	if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "level=DEBUG") || !strings.Contains(got, "reason 0") {
		t.Errorf("log %q, want one line of the first reason", got)
	}
}

func TestParseRange(t *testing.T) {
	line := []byte("7f0000001000-7f0000003000 rw-s 00002000 fe:00 1234   /a dir/000001.vlog\n")
	if path, found := mappedPath(line); !found || path != "/a dir/000001.vlog" {
		t.Errorf("path %q, %v", path, found)
	}
	r, err := parseRange(line)
	if want := (addressRange{0x7f0000001000, 0x7f0000003000, 0x2000}); err != nil || r != want {
		t.Errorf("range %x, %v, want %x", r, err, want)
	}
	for _, wrong := range []string{"", "1-2 rw-s 0 fe:00 1", "1-x rw-s 0 fe:00 1 /a", "1 rw-s 0 fe:00 1 /a", "1-2 rw-s z fe:00 1 /a"} {
		if r, err := parseRange([]byte(wrong)); err == nil {
			t.Errorf("%q is %x, want an error", wrong, r)
		}
	}
}

// TestReleaseDuringAWait releases the value log of a store that waits for the merges of other stores.
func TestReleaseDuringAWait(t *testing.T) {
	h, dir := newHost(t, smallConfig()), t.TempDir()
	s := mustOpen(t, h, dir)
	var m model
	applyRows(t, s, &m, 0, 1000, nil)
	flush(t, s)
	var taken []*scratch
	for range cap(h.flushScratch) {
		taken = append(taken, <-h.flushScratch)
	}
	applyRows(t, s, &m, 1000, 1000+uint64(s.host.cfg.FlushRows), nil) // freezes the table
	h.mapped.limit, h.mapped.fileLimit = 1, 1
	h.boundMapped()
	for s.releaseDue.Load() {
		runtime.Gosched()
	}
	for _, work := range taken {
		h.flushScratch <- work
	}
	must(t, m.check(s, m.position()))
	must(t, s.Close())
}
