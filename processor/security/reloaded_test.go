package security

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestReloaded: the value follows its source at most once an interval; after a
// failure the last value stays, and the failure is reported once.
func TestReloaded(t *testing.T) {
	source, broken := "a", error(nil)
	now := time.Unix(0, 0)
	var events []string
	r := &Reloaded[string]{
		Load:     func() (string, error) { return source, broken },
		Equal:    func(a, b string) bool { return a == b },
		Interval: time.Second,
		Now:      func() time.Time { return now },
		Changed:  func(value string) { events = append(events, value) },
		Failed:   func(err error) { events = append(events, err.Error()) },
	}
	if value, err := r.Start(); err != nil || value != "a" {
		t.Fatal(err)
	}
	for _, step := range []struct {
		source  string
		broken  error
		after   time.Duration
		value   string
		version uint64
	}{
		{"b", nil, time.Second - 1, "a", 0},
		{"b", nil, 1, "b", 1},
		{"b", nil, time.Second, "b", 1},
		{"c", errors.New("torn"), time.Second, "b", 1},
		{"c", errors.New("torn"), time.Second, "b", 1},
		{"c", errors.New("gone"), time.Second, "b", 1},
		{"b", nil, time.Second, "b", 1},
		{"b", errors.New("gone"), time.Second, "b", 1},
		{"c", nil, time.Second, "c", 2},
	} {
		source, broken = step.source, step.broken
		now = now.Add(step.after)
		if value, version := r.Current(); value != step.value || version != step.version {
			t.Errorf("%+v: value %q, version %d", step, value, version)
		}
	}
	if want := []string{"b", "torn", "gone", "gone", "c"}; !slices.Equal(events, want) {
		t.Errorf("events %q, want %q", events, want)
	}
}

// TestReloadedStartFails: without a first value there is no value to keep.
func TestReloadedStartFails(t *testing.T) {
	broken := errors.New("torn")
	r := &Reloaded[int]{Load: func() (int, error) { return 0, broken }}
	if _, err := r.Start(); !errors.Is(err, broken) {
		t.Error(err)
	}
}

// TestReloadedLoadsOneAtATime: connections share a value, and each of them may
// load it.
func TestReloadedLoadsOneAtATime(t *testing.T) {
	var loading, loads, changes atomic.Int64
	r := &Reloaded[int64]{
		Load: func() (int64, error) {
			if loading.Add(1) != 1 {
				t.Error("two loads at the same time")
			}
			defer loading.Add(-1)
			return loads.Add(1) / 10, nil
		},
		Equal:   func(a, b int64) bool { return a == b },
		Changed: func(int64) { changes.Add(1) },
	}
	if _, err := r.Start(); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for last := uint64(0); last < 20; {
				value, version := r.Current()
				if version < last || int64(version) != value {
					t.Errorf("value %d of version %d after version %d", value, version, last)
				}
				last = version
			}
		})
	}
	wg.Wait()
	if _, version := r.Current(); int64(version) != changes.Load() {
		t.Errorf("%d changes, version %d", changes.Load(), version)
	}
}
