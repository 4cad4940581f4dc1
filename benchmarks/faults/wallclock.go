//go:build unix

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// stepFile returns the path of the file that says how far the slot's wall clock has stepped.
func (s *slot) stepFile() string { return filepath.Join(s.app.dir, "wall-step-"+s.label) }

// stepWall sets the wall clock of the slot's processes to the machine's wall clock plus d.
func (s *slot) stepWall(d time.Duration) error {
	next := s.stepFile() + ".next"
	if err := os.WriteFile(next, strconv.AppendInt(nil, d.Milliseconds(), 10), 0o600); err != nil {
		return fmt.Errorf("step the clock of process %s: %w", s.name, err)
	}
	return os.Rename(next, s.stepFile())
}
