//go:build linux

package bench

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"
)

// TestUsage compares what /proc says of this process with what it did.
func TestUsage(t *testing.T) {
	before, err := usageOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	began, turns := time.Now(), 0
	for time.Since(began) < 200*time.Millisecond {
		turns++
	}
	after, err := usageOf(os.Getpid())
	if err != nil || after.CPU <= before.CPU || after.CPU > time.Hour {
		t.Errorf("%d turns in 200 ms cost %v after %v (%v)", turns, after.CPU, before.CPU, err)
	}
	if after.RSSMax < 1<<20 || after.RSSMax > 1<<34 {
		t.Errorf("the highest memory of a Go program is %d bytes", after.RSSMax)
	}
}

// TestProcess starts a process, finds it and stops it.
func TestProcess(t *testing.T) {
	p, err := Start(exec.CommandContext(context.Background(), "sleep", "3599.25"))
	if err != nil {
		t.Fatal(err)
	}
	if pid, err := findProcess("3599.25"); err == nil && pid != p.pid || err != nil {
		t.Errorf("found process %d (%v), want %d", pid, err, p.pid)
	}
	if err := p.Stop(); err == nil {
		t.Error("a process that SIGTERM killed ended without error")
	}
	if _, err := p.Usage(); err == nil {
		t.Error("a process that is gone has usage")
	}
}
