//go:build unix && !linux

package main

import (
	"errors"
	"fmt"
	"os"
)

func mountSmall(string) error { return errors.ErrUnsupported }

func unmount(string) error { return nil }

// allocate writes that many bytes to a file.
func allocate(f *os.File, bytes int64) error {
	block := make([]byte, 1<<20)
	for ; bytes > 0; bytes -= int64(len(block)) {
		if _, err := f.Write(block[:min(int64(len(block)), bytes)]); err != nil {
			return fmt.Errorf("write %s: %w", f.Name(), err)
		}
	}
	return nil
}

func freezeDisk(string) error { return errors.ErrUnsupported }

func thawDisk(string) error { return errors.ErrUnsupported }
