//go:build unix

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

// TestMain makes the test binary the child, if the benchmark started it as one.
func TestMain(m *testing.M) {
	if os.Getenv(phaseEnv) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

// TestSmall runs the whole benchmark with few keys.
func TestSmall(t *testing.T) {
	out := t.TempDir()
	set := settings{Keys: 20_000, Tasks: 2, Txn: 500, Gets: 1000, Flush: 2000, Dir: t.TempDir()}
	if err := run(t.Context(), set, out); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(out, "state-*"))
	if err != nil || len(files) != 2 {
		t.Fatalf("results %v, %v", files, err)
	}
	text, err := os.ReadFile(files[1])
	if err != nil || !strings.Contains(string(text), "| disk for each key |") {
		t.Errorf("no table in %q (%v)", text, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var rep struct{ Result []result }
	if err := json.Unmarshal(data, &rep); err != nil {
		t.Fatal(err)
	}
	for _, r := range rep.Result {
		if r.WriteCPUMicros <= 0 || r.Load.CPUMicros <= 0 || r.Load.Positive.P50 <= 0 || r.Load.DiskBytes == 0 ||
			r.Open.Seconds <= 0 || r.Open.Checked == 0 {
			t.Errorf("%s measured nothing: %+v", r.Engine, r)
		}
	}
}
