package ingress

import (
	"errors"
	"slices"
	"testing"
	"time"
)

// TestReloaded: the value follows its source at most once an interval, and a
// failure keeps the last value and is reported once.
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
	if err := r.Start(); err != nil {
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
	if err := r.Start(); !errors.Is(err, broken) {
		t.Error(err)
	}
}
