package kafkatest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"oncebus/processor/kafkatest"
)

// TestStoppedProcessDoesNothing: after Signal(SIGSTOP) has returned, no thread of the process runs, however busy the
// machine is. A test that stops a process and then sends an event relies on this.
func TestStoppedProcessDoesNothing(t *testing.T) {
	if os.Getenv("ONCEBUS_TEST_BUSY") != "" {
		for range 8 {
			go func() {
				for n := 0; ; n++ {
					_ = n
				}
			}()
		}
		select {}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), "ONCEBUS_TEST_BUSY=yes", "GOMAXPROCS=8")
	p, err := kafkatest.StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	}()
	threadsOf := func() []string {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		if err != nil {
			t.Fatal(err)
		}
		return threads
	}
	if err := kafkatest.Await(t.Context(), "the process has its threads", func(context.Context) error {
		if n := len(threadsOf()); n < 8 {
			return fmt.Errorf("%d threads", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	for round := range 50 {
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		for _, thread := range threadsOf() {
			stat, err := os.ReadFile(thread)
			if err != nil {
				t.Fatal(err)
			}
			if _, state, _ := bytes.Cut(stat, []byte(") ")); state[0] != 'T' {
				t.Fatalf("round %d: thread %s is in state %c after SIGSTOP, want T", round, thread, state[0])
			}
		}
		if err := p.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
}
