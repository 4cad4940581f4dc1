//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// wallStepVariable names the file with the step of a process's wall clock, in seconds.
const wallStepVariable = "FAULTS_WALL_STEP"

// wallStepSource becomes part of package time of the program under test. It is read at
// most every 20 ms, so that reading the clock stays fast.
const wallStepSource = `package time

import (
	"sync/atomic"
	"syscall"
)

var wallStepReadAt, wallStepSeconds atomic.Int64

func wallStep(mono int64) int64 {
	last := wallStepReadAt.Load()
	if mono-last < int64(20*Millisecond) || !wallStepReadAt.CompareAndSwap(last, mono) {
		return wallStepSeconds.Load()
	}
	name, _ := syscall.Getenv("` + wallStepVariable + `")
	if name == "" {
		return 0
	}
	text, err := readFile(name)
	if err != nil {
		return wallStepSeconds.Load()
	}
	seconds, sign := int64(0), int64(1)
	for _, c := range text {
		if c == '-' {
			sign = -1
		} else {
			seconds = 10*seconds + int64(c-'0')
		}
	}
	wallStepSeconds.Store(sign * seconds)
	return sign * seconds
}
`

// readsClock is where time.Now reads both clocks.
var readsClock = regexp.MustCompile(`(?m)^(func Now\(\) Time \{\n\tsec, nsec, mono := \w+\(\)\n)`)

// wallClockOverlay writes the files with which go build makes a program whose wall clock
// steps: package time adds the step to what the system says, wherever the program reads the
// clock. The monotonic clock stays the machine's, as after a step of the system's clock. It
// returns the flags of go build.
func wallClockOverlay(ctx context.Context, dir string) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return nil, fmt.Errorf("find the sources of package time: %w", err)
	}
	from := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	source, err := os.ReadFile(filepath.Join(from, "time.go"))
	if err != nil {
		return nil, fmt.Errorf("read package time: %w", err)
	}
	stepped, err := insertStep(source)
	if err != nil {
		return nil, err
	}
	clock, step, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "wallstep.go"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(from, "time.go"): clock, filepath.Join(from, "wallstep.go"): step,
	}})
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.WriteFile(clock, stepped, 0o600), os.WriteFile(step, []byte(wallStepSource), 0o600), os.WriteFile(overlay, replace, 0o600))
	return []string{"-overlay", overlay}, err
}

// insertStep adds the step to the time that time.Now reads.
func insertStep(source []byte) ([]byte, error) {
	if len(readsClock.FindAll(source, -1)) != 1 {
		return nil, errors.New("package time of this Go reads the clock in another way: change readsClock")
	}
	return bytes.Replace(source, readsClock.Find(source), []byte(string(readsClock.Find(source))+"\tsec += wallStep(mono)\n"), 1), nil
}

// stepFile is the file with the step of the slot's wall clock.
func (s *slot) stepFile() string { return filepath.Join(s.app.dir, "wall-step-"+s.label) }

// stepWall sets the wall clock of the slot's processes to the machine's plus d, in whole
// seconds.
func (s *slot) stepWall(d time.Duration) error {
	next := s.stepFile() + ".next"
	if err := os.WriteFile(next, strconv.AppendInt(nil, int64(d/time.Second), 10), 0o600); err != nil {
		return fmt.Errorf("step the clock of process %s: %w", s.name, err)
	}
	return os.Rename(next, s.stepFile())
}
