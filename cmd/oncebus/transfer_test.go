package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"oncebus/processor/kafka"
)

// TestPartOfAKilledCommandIsUsedAgain: its file stays until the next command, which writes it from its start. One that another command
// writes is left alone.
func TestPartOfAKilledCommandIsUsedAgain(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "keys.obx1")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	killed, err := openPart(name)
	must(err)
	_, err = killed.WriteString("longer than the next one")
	must(err)
	if _, err := openPart(name); !errors.Is(err, kafka.ErrOperator) || !strings.Contains(err.Error(), "keys.obx1.part is written by another command") {
		t.Errorf("a second one while the first one writes: %v", err)
	}
	must(killed.Close()) // as the kernel does

	again, err := openPart(name)
	must(err)
	_, err = again.WriteString("short")
	must(err)
	must(putInPlace(again, name, nil))
	if text, err := os.ReadFile(name); err != nil || string(text) != "short" {
		t.Errorf("%q, %v", text, err)
	}
	failed, err := openPart(name)
	must(err)
	if err := putInPlace(failed, name, io.ErrShortWrite); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("after a failed write: %v", err)
	}
	files, err := os.ReadDir(filepath.Dir(name))
	must(err)
	if text, err := os.ReadFile(name); len(files) != 1 || err != nil || string(text) != "short" {
		t.Errorf("%v are left, and %q, %v", files, text, err)
	}
}
