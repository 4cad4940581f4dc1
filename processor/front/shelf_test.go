package front

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// opened opens the shelf in a directory and returns its entries and what was found.
func opened(t *testing.T, dir string, most int64) (s *shelf, entries []string, found string) {
	t.Helper()
	s, found, err := openShelf(dir, most, func(entry []byte) { entries = append(entries, string(entry)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	if n, _, _ := s.left(); n != len(entries) {
		t.Errorf("%d entries are left, and %d were read", n, len(entries))
	}
	return s, entries, found
}

// shelved writes entries in a new directory, and closes the shelf.
func shelved(t *testing.T, entries ...string) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "ingress")
	s, _, _ := opened(t, dir, 1<<20)
	for _, entry := range entries {
		if err := s.add([]byte(entry)); err != nil {
			t.Fatal(err)
		}
	}
	s.close()
	return dir
}

// edit changes the file of a shelf.
func edit(t *testing.T, dir string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, shelfName)
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, change(b), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestShelfOutlivesTheProcess(t *testing.T) {
	dir := shelved(t, "a", "", strings.Repeat("b", 70_000))
	s, entries, found := opened(t, dir, 1<<20)
	if !slices.Equal(entries, []string{"a", "", strings.Repeat("b", 70_000)}) || found != "" {
		t.Fatalf("%d entries, %q", len(entries), found)
	}
	if _, _, err := openShelf(dir, 1, func([]byte) {}); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second process opened it: %v", err)
	}
	for _, name := range []string{".", shelfName} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("others may read %s: %v, %v", name, info.Mode(), err)
		}
	}
	// Taken entries stay in the file until all are, and it is used again from its start.
	read, places, err := s.peek(2, 1<<20)
	if err != nil || len(read) != 2 {
		t.Fatal(read, err)
	}
	if err := s.take(places[:2]); err != nil {
		t.Fatal(err)
	}
	s.close()
	s, entries, _ = opened(t, dir, 1<<20)
	if len(entries) != 3 {
		t.Errorf("%d entries after a crash before the last was taken, want all 3", len(entries))
	}
	_, places, err = s.peek(3, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.take(places); err != nil {
		t.Fatal(err)
	}
	if err := s.add([]byte("c")); err != nil {
		t.Fatal(err)
	}
	s.close()
	if _, entries, _ = opened(t, dir, 1<<20); !slices.Equal(entries, []string{"c"}) {
		t.Errorf("entries %q after the file was emptied, want c", entries)
	}
}

// TestShelfMakesItsDirectories: those above it too, for this user only. A file in their place is a failure.
func TestShelfMakesItsDirectories(t *testing.T) {
	above := t.TempDir()
	opened(t, filepath.Join(above, "a", "b", "c"), 1<<20)
	for _, name := range []string{"a", "a/b", "a/b/c"} {
		if info, err := os.Stat(filepath.Join(above, name)); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if err := os.WriteFile(filepath.Join(above, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openShelf(filepath.Join(above, "file", "a"), 1<<20, func([]byte) {}); err == nil {
		t.Error("a file was taken for a directory")
	}
}

// TestShelfWithATornTail cuts the last entry off at each of its bytes: those before it are whole.
func TestShelfWithATornTail(t *testing.T) {
	tail := len(framed([]byte("torn")))
	for cut := 1; cut < tail; cut++ {
		dir := shelved(t, "whole", "torn")
		edit(t, dir, func(b []byte) []byte { return b[:len(b)-cut] })
		s, entries, found := opened(t, dir, 1<<20)
		if !slices.Equal(entries, []string{"whole"}) || !strings.Contains(found, fmt.Sprintf("the last %d bytes", tail-cut)) || s.aside() != nil {
			t.Fatalf("cut by %d: %q, %q, aside %v", cut, entries, found, s.aside())
		}
		if err := s.add([]byte("next")); err != nil {
			t.Fatal(err)
		}
		s.close()
		if _, entries, found = opened(t, dir, 1<<20); !slices.Equal(entries, []string{"whole", "next"}) || found != "" {
			t.Fatalf("cut by %d, then the next: %q, %q", cut, entries, found)
		}
	}
}

// TestShelfWithDamage changes each byte of the file: no damage goes unsaid, the damaged file is kept as
// it is, and no entry is read that was not written.
func TestShelfWithDamage(t *testing.T) {
	written := []string{"first", "second", "third"}
	size := 0
	for _, entry := range written {
		size += len(framed([]byte(entry)))
	}
	for at := range size {
		dir := shelved(t, written...)
		var damaged []byte
		edit(t, dir, func(b []byte) []byte {
			b[at] ^= 0x5a
			damaged = bytes.Clone(b)
			return b
		})
		s, entries, found := opened(t, dir, 1<<20)
		if len(entries) >= len(written) || !strings.Contains(found, "is damaged from offset") {
			t.Fatalf("byte %d: %q, %q", at, entries, found)
		}
		for _, entry := range entries {
			if !slices.Contains(written, entry) {
				t.Fatalf("byte %d: read %q", at, entry)
			}
		}
		aside := s.aside()
		if len(aside) != 1 || !strings.Contains(found, aside[0]) {
			t.Fatalf("byte %d: aside %v, said %q", at, aside, found)
		}
		if b, err := os.ReadFile(aside[0]); err != nil || !bytes.Equal(b, damaged) {
			t.Fatalf("byte %d: the file aside is not as it was found: %v", at, err)
		}
		if err := s.add([]byte("next")); err != nil {
			t.Fatal(err)
		}
		s.close()
		if _, again, found := opened(t, dir, 1<<20); !slices.Equal(again, append(entries, "next")) || found != "" {
			t.Fatalf("byte %d, the next start: %q, %q", at, again, found)
		}
	}
}

func TestShelfIsBounded(t *testing.T) {
	entry := []byte("twelve bytes")
	dir := filepath.Join(t.TempDir(), "ingress")
	s, _, _ := opened(t, dir, 2*int64(len(framed(entry))))
	for n := range 3 {
		if err := s.add(entry); (err != nil) != (n == 2) || n == 2 && !errors.Is(err, errShelfFull) {
			t.Errorf("entry %d: %v", n, err)
		}
	}
	_, places, err := s.peek(9, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.take(places[:2]); err != nil {
		t.Fatal(err)
	}
	if err := s.add(entry); err != nil {
		t.Errorf("an entry after it was emptied: %v", err)
	}
}

// TestShelfThatCannotBeWritten: an entry is not on disk after a failed write or sync, and no later sync
// hides that.
func TestShelfThatCannotBeWritten(t *testing.T) {
	dir := shelved(t, "old")
	s, _, _ := opened(t, dir, 1<<20)
	whole := s.file
	broken, err := os.Open(whole.Name()) // not for writing
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	s.file = broken
	if err := s.add([]byte("new")); err == nil {
		t.Error("an entry was added to a file that cannot be written")
	}
	if s.file = whole; s.add([]byte("new")) == nil {
		t.Error("an entry was added although the end of the file is unknown")
	}
	if _, _, failed := s.left(); failed == nil {
		t.Error("the failure does not show")
	}
	if entries, _, err := s.peek(9, 1<<20); err != nil || len(entries) != 1 {
		t.Errorf("%d entries can be taken, %v; want the old one", len(entries), err)
	}
}

// TestShelfTakesBehindAnEntry: an entry that is taken behind one that is not does not come again in the process,
// and one that is skipped comes again after recall. The file is emptied once all are taken.
func TestShelfTakesBehindAnEntry(t *testing.T) {
	dir := shelved(t, "a", "b", "c", "d")
	s, _, _ := opened(t, dir, 1<<20)
	next := func(want string) []span {
		t.Helper()
		entries, places, err := s.peek(9, 1<<20)
		if got := string(bytes.Join(entries, nil)); err != nil || got != want {
			t.Fatalf("the next entries are %q, %v, want %q", got, err, want)
		}
		return places
	}
	take := func(places ...span) {
		t.Helper()
		if err := s.take(places); err != nil {
			t.Fatal(err)
		}
	}
	all := next("abcd")
	take(all[1])
	next("acd")
	s.pass(all[2:3])
	next("ad")
	take(all[0])
	next("d")
	s.recall()
	next("cd")
	if n, size, _ := s.left(); n != 2 || size != all[3].end {
		t.Errorf("%d entries of %d bytes are left, want 2 of %d", n, size, all[3].end)
	}
	take(all[2:]...)
	next("")
	if n, size, _ := s.left(); n != 0 || size != 0 || len(s.taken)+len(s.passed) != 0 {
		t.Errorf("%d entries of %d bytes are left", n, size)
	}
}

// TestRefusedEntriesComeBack: the file of refused entries can be appended to the one of kept ones, as the log says.
func TestRefusedEntriesComeBack(t *testing.T) {
	dir := shelved(t, "kept")
	s, _, _ := opened(t, dir, 1<<20)
	path, err := s.refuse([]byte("refused"))
	if err != nil {
		t.Fatal(err)
	}
	s.close()
	refused, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	edit(t, dir, func(b []byte) []byte { return append(b, refused...) })
	if _, entries, found := opened(t, dir, 1<<20); !slices.Equal(entries, []string{"kept", "refused"}) || found != "" {
		t.Errorf("entries %q, found %q", entries, found)
	}
}

// TestShelfThatCannotBeSynced: a file that was emptied without a sync takes entries again after heal, and they begin
// at its start.
func TestShelfThatCannotBeSynced(t *testing.T) {
	dir := shelved(t, "old")
	s, _, _ := opened(t, dir, 1<<20)
	_, places, err := s.peek(9, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	s.sync = func(*os.File) error { return errors.New("no sync") }
	if s.take(places) == nil || s.heal() == nil || s.add([]byte("early")) == nil {
		t.Error("the failure does not show")
	}
	if _, err := s.refuse([]byte("early")); err == nil {
		t.Error("a refused entry is not synced, and its failure does not show")
	}
	s.sync = (*os.File).Sync
	refused, err := s.refuse([]byte("late"))
	if got, _ := os.ReadFile(refused); err != nil || !bytes.Equal(got, framed([]byte("late"))) {
		t.Errorf("the file of refused entries has %q, error %v; want late alone", got, err)
	}
	if err := errors.Join(s.heal(), s.add([]byte("new"))); err != nil {
		t.Error(err)
	}
	if _, _, failed := s.left(); failed != nil {
		t.Error("the failure stays:", failed)
	}
	s.close()
	if _, entries, found := opened(t, dir, 1<<20); !slices.Equal(entries, []string{"new"}) || found != "" {
		t.Errorf("entries %q, found %q; want new", entries, found)
	}
}

// TestShelfThatFailedWhileEmpty: an empty file whose end became unknown is used again after heal.
func TestShelfThatFailedWhileEmpty(t *testing.T) {
	dir := shelved(t)
	s, _, _ := opened(t, dir, 1<<20)
	whole := s.file
	broken, err := os.Open(whole.Name()) // not for writing
	if err != nil {
		t.Fatal(err)
	}
	defer broken.Close()
	s.file = broken
	if s.add([]byte("lost")) == nil || s.heal() == nil {
		t.Error("the failure does not show")
	}
	s.file = whole
	if err := errors.Join(s.heal(), s.add([]byte("new"))); err != nil {
		t.Error(err)
	}
}

// TestKeptTooLong: an event that was in time when it arrived is judged at most a window and half of the grace before
// now. Others, and those that are not that old, keep their own time.
func TestKeptTooLong(t *testing.T) {
	route := &rules.Route{Window: time.Hour, Grace: 10 * time.Minute}
	now := time.UnixMilli(1e12)
	ago := func(d time.Duration) int64 { return now.Add(-d).UnixMilli() }
	for _, c := range []struct{ own, arrived, want time.Duration }{ // before now
		{0, 0, 0},
		{65 * time.Minute, 65 * time.Minute, 65 * time.Minute},
		{66 * time.Minute, 66 * time.Minute, 65 * time.Minute},
		{24 * time.Hour, 24 * time.Hour, 65 * time.Minute},
		{69 * time.Minute, time.Minute, 65 * time.Minute},                              // in time, and late before long
		{24*time.Hour + 70*time.Minute, 24 * time.Hour, 65 * time.Minute},              // in time when it arrived
		{24*time.Hour + 71*time.Minute, 24 * time.Hour, 24*time.Hour + 71*time.Minute}, // late when it arrived
		{-time.Hour, time.Minute, -time.Hour},                                          // of the future
	} {
		if got := judgedAt(route, ago(c.own), now.Add(-c.arrived), now); got != ago(c.want) {
			t.Errorf("an event of %v ago that arrived %v ago is judged at %d ms, want %v ago", c.own, c.arrived, got, c.want)
		}
	}
}

// TestKeptKeyHoldsLaterEventsBack: while an event of a key is kept, later ones go behind it.
func TestKeptKeyHoldsLaterEventsBack(t *testing.T) {
	k := &kept{keys: map[dedup.Digest]int{}}
	a, b := &rules.Derived{Finding: rules.Keyed, Digest: dedup.Digest{1}}, &rules.Derived{Finding: rules.Keyed, Digest: dedup.Digest{2}}
	without := &rules.Derived{Finding: rules.KeyMissing}
	for _, d := range []*rules.Derived{a, a, without} {
		k.count(d, 1)
	}
	k.count(a, -1)
	if !k.has(a) || k.has(b) || k.has(without) {
		t.Errorf("held back: %v %v %v, want only the kept key", k.has(a), k.has(b), k.has(without))
	}
	if k.count(a, -1); k.has(a) || len(k.keys) != 0 {
		t.Error("a key without kept events is held back")
	}
	if (*kept)(nil).has(a) {
		t.Error("a process that keeps nothing holds a key back")
	}
}

// TestShelfSharesSyncs adds at once from several sides: each entry that add returned for is there.
func TestShelfSharesSyncs(t *testing.T) {
	dir := shelved(t)
	s, _, _ := opened(t, dir, 1<<20)
	var all sync.WaitGroup
	for n := range 50 {
		all.Go(func() {
			if err := s.add(fmt.Append(nil, n)); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s.close()
	_, entries, _ := opened(t, dir, 1<<20)
	slices.Sort(entries)
	if len(slices.Compact(entries)) != 50 {
		t.Errorf("%d entries, want 50", len(entries))
	}
}
