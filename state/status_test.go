package state

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// killedStore returns a copy of a store as a kill leaves it, and the store's changelog.
func killedStore(t *testing.T, h *Host) (dir string, m *model) {
	t.Helper()
	m = damageModel()
	live := filepath.Join(t.TempDir(), "live")
	dir = filepath.Join(t.TempDir(), "killed")
	alone := newHost(t, h.cfg)
	alone.boot = h.boot
	idle := watchIdle(alone)
	s := mustOpen(t, alone, live)
	must(t, m.replay(s))
	flush(t, s)
	awaitIdle(t, s, idle)
	must(t, snapshot(live, dir))
	must(t, s.Close())
	return dir, m
}

// TestHostStop opens the files of a store after each way to stop.
func TestHostStop(t *testing.T) {
	if runtime.GOOS == "linux" && bootID() == "" {
		t.Error("this kernel has no boot id")
	}
	for name, c := range map[string]struct {
		before, after string // ids of the boots
		closed        bool
		want          error
	}{
		"killed":                    {"one", "one", false, nil},
		"host stopped":              {"one", "two", false, ErrUnclean},
		"closed, then host stopped": {"one", "two", true, nil},
		"killed, boot unknown":      {"", "", false, ErrUnclean},
		"closed, boot unknown":      {"", "", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, damageConfig())
			h.boot = c.before
			dir, m := killedStore(t, h)
			if c.closed {
				must(t, mustOpenIn(t, h, dir, "one").Close())
			}
			h.boot = c.after
			s, err := h.Open(dir, testIdentity)
			if !errors.Is(err, c.want) {
				t.Fatalf("open returned %v, want %v", err, c.want)
			}
			if err != nil {
				return
			}
			must(t, m.check(s, m.position()))
			must(t, s.Close())
		})
	}
}

// mustOpenIn sets the boot id in a store's status, and opens the store in that boot with a host of its own, because
// the background goroutine of a store reads the boot of its host.
func mustOpenIn(t *testing.T, h *Host, dir, boot string) *Store {
	t.Helper()
	st, err := readStatus(dir)
	must(t, err)
	st.boot = boot
	must(t, st.write(dir))
	alone := newHost(t, h.cfg)
	alone.boot = boot
	return mustOpen(t, alone, dir)
}

// TestDeathsWhileOpening counts the processes that died before the end of the first background round, as happens when
// Badger or the kernel ends them because of the files.
func TestDeathsWhileOpening(t *testing.T) {
	h := newHost(t, damageConfig())
	dir, m := killedStore(t, h)
	for deaths := 1; ; deaths++ {
		restore, err := h.beginOpen(dir)
		if errors.Is(err, ErrCorrupt) {
			if deaths != openTriesMax+1 {
				t.Fatalf("rejected after %d deaths, want %d", deaths-1, openTriesMax)
			}
			break
		}
		must(t, err)
		if deaths == 1 {
			must(t, restore()) // a failure without damage does not count
			_, err := h.beginOpen(dir)
			must(t, err)
		}
	}
	// One complete round resets the count.
	must(t, status{state: statusOpening, boot: h.boot, tries: openTriesMax - 1}.write(dir))
	s := mustOpen(t, h, dir)
	must(t, m.check(s, m.position()))
	must(t, s.Close())
	if st, err := readStatus(dir); err != nil || st.state != statusClosed || st.tries != 0 {
		t.Errorf("status %+v, %v", st, err)
	}
}

// TestStatusAfterFailure requires that the status of a failed store is not closed.
func TestStatusAfterFailure(t *testing.T) {
	h := newHost(t, damageConfig())
	dir := t.TempDir()
	s := mustOpen(t, h, dir)
	must(t, apply(s, damageModel().txns[0]))
	s.fail(errInjected)
	if err := s.Close(); !errors.Is(err, errInjected) {
		t.Fatalf("close returned %v", err)
	}
	if st, err := readStatus(dir); err != nil || st.state == statusClosed {
		t.Errorf("status %+v, %v", st, err)
	}
}

func TestParseStatus(t *testing.T) {
	dir := t.TempDir()
	want := status{state: statusOpen, boot: bootID(), tries: 2}
	must(t, os.WriteFile(filepath.Join(dir, statusName), bytes.Repeat([]byte("x"), 3*statusBytes), 0o600))
	must(t, want.write(dir))
	if got, err := readStatus(dir); err != nil || *got != want {
		t.Errorf("read %+v, %v", got, err)
	}
	for _, text := range []string{
		"", "oncebus store 2\nstate open\nboot b\ntries 0\n", "oncebus store 1\nstate shut\nboot b\ntries 0\n",
		"oncebus store 1\nboot b\nstate open\ntries 0\n", "oncebus store 1\nstate open\nboot b\ntries -1\n", "oncebus store 1\nstate open\nboot b",
	} {
		if s, ok := parseStatus(text); ok {
			t.Errorf("%q is parsed as %+v", text, s)
		}
	}
	if err := (status{state: statusOpen, boot: strings.Repeat("b", 200)}).write(dir); err == nil {
		t.Error("write of an oversized status returned no error")
	}
}

// TestWrongPermissions removes the permission to read or write each file, and the directory, from a process that is
// not root. This does not count as damage: the error names the file, and once the permission is restored the store is
// unchanged.
func TestWrongPermissions(t *testing.T) {
	h := newHost(t, damageConfig())
	dir, _ := killedStore(t, h)
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	must(t, os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755))
	cmd := exec.Command("/proc/self/exe", dir)
	cmd.Env = append(os.Environ(), childEnv+"=permissions")
	if os.Getuid() == 0 {
		const unprivileged = 65534
		must(t, filepath.Walk(dir, func(path string, _ os.FileInfo, err error) error {
			return errors.Join(err, os.Chown(path, unprivileged, unprivileged))
		}))
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged}}
	}
	if runtime.GOOS != "linux" {
		cmd.Path = os.Args[0]
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// childPermissions is the child program of TestWrongPermissions.
func childPermissions() {
	dir := os.Args[len(os.Args)-1]
	if err := tryPermissions(dir); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func tryPermissions(dir string) error {
	h, err := openHost(damageConfig())
	if err != nil {
		return err
	}
	sizes, err := listing(dir)
	if err != nil {
		return err
	}
	for _, name := range append(slices.Sorted(maps.Keys(sizes)), ".") {
		modes := []os.FileMode{0, 0o444}
		if name == "." {
			modes = []os.FileMode{0, 0o555}
		}
		for _, mode := range modes {
			if err := tryMode(h, dir, name, mode); err != nil {
				return fmt.Errorf("%s with mode %o: %w", name, mode, err)
			}
		}
	}
	return nil
}

// tryMode opens the store with another mode of one file, and again with the
// original mode.
func tryMode(h *Host, dir, name string, mode os.FileMode) error {
	path := filepath.Join(dir, name)
	info, err := os.Stat(path)
	if os.IsNotExist(err) {
		return nil // Badger replaces files at every open
	}
	if err == nil {
		err = os.Chmod(path, mode)
	}
	if err != nil {
		return err
	}
	s, err := h.Open(dir, testIdentity)
	if err == nil {
		err = s.Close()
	}
	fmt.Printf("%s %o: %v\n", name, mode, err)
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrUnclean) || errors.Is(err, ErrForeign) {
		return fmt.Errorf("reported as damage: %w", err)
	}
	err = os.Chmod(path, info.Mode())
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	m := damageModel()
	s, err = h.Open(dir, testIdentity)
	if err == nil {
		err = errors.Join(m.check(s, m.position()), s.Close())
	}
	if err != nil {
		return fmt.Errorf("after restoring mode %o: %w", info.Mode(), err)
	}
	return nil
}

// TestDirectoryForFile replaces each file by a directory. This counts as damage, and not as a lack of permissions.
func TestDirectoryForFile(t *testing.T) {
	t.Parallel()
	h := newHost(t, damageConfig())
	killed, _ := killedStore(t, h)
	sizes, err := listing(killed)
	must(t, err)
	for name := range sizes {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "store")
			must(t, snapshot(killed, dir))
			path := filepath.Join(dir, name)
			must(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
			s, err := h.Open(dir, testIdentity)
			if err == nil {
				must(t, s.Close())
			}
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("open with a directory for %s: %v, want %v", name, err, ErrCorrupt)
			}
		})
	}
}

// TestHintedPosition reads the position of a store without opening it: after a flush of an open store, after a kill,
// and after a close. Files that Open would not trust have no position.
func TestHintedPosition(t *testing.T) {
	h := newHost(t, damageConfig())
	h.boot = "one"
	dir, m := killedStore(t, h)
	expect := func(what string, want int64) {
		t.Helper()
		if got := h.HintedPosition(dir); got != want {
			t.Errorf("%s: hinted position %d, want %d", what, got, want)
		}
	}
	expect("killed", m.position())
	h.boot = "two"
	expect("after the host stopped", 0)
	h.boot = "one"
	s := mustOpen(t, h, dir)
	must(t, s.Apply(m.position()+7, nil))
	flush(t, s)
	must(t, s.Close())
	expect("closed", m.position()+7)
	h.boot = "two"
	expect("closed, then host stopped", m.position()+7)

	status, err := os.ReadFile(filepath.Join(dir, statusName))
	must(t, err)
	for text, want := range map[string]int64{"position 12": 12, "position -1": 0, "position 99999999999999999999": 0, "elsewhere 1": 0, "": 0} {
		lines := strings.Split(string(status), "\n")
		lines[4] = text
		must(t, os.WriteFile(filepath.Join(dir, statusName), []byte(strings.Join(lines, "\n")), 0o600))
		expect(text, want)
	}
	if got := h.HintedPosition(t.TempDir()); got != 0 {
		t.Errorf("a directory without a store hints at %d", got)
	}
}
