//go:build unix

package flink

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/jvm"
)

// TestCommand compares the settings with those that the source of the Java program
// reads.
func TestCommand(t *testing.T) {
	task := bench.Task{App: "a", Brokers: []string{"x:1", "y:2"}, Input: "in", Workers: 3, StateDir: t.TempDir()}
	cmd, err := (&App{&jvm.App{}}).Command(context.Background(), task, 20*time.Millisecond, Aligned)
	if err != nil {
		t.Fatal(err)
	}
	settings := map[string]string{}
	for _, variable := range cmd.Env {
		if rest, ours := strings.CutPrefix(variable, "ONCEBUS_FLINK_"); ours {
			name, value, _ := strings.Cut(rest, "=")
			settings[name] = value
			if !bytes.Contains(source, []byte(`setting("`+name+`")`)) {
				t.Errorf("the program does not read %s", name)
			}
		}
	}
	for name, want := range map[string]string{"BROKERS": "x:1,y:2", "GROUP": "a-dedup", "CHECKPOINT_MS": "20", "OUTPUT": "a-output", "PARALLELISM": "3", "EXPIRY": "aligned", "LATE": "a-side", "KEY": "record"} {
		if settings[name] != want {
			t.Errorf("%s is %q, want %q", name, settings[name], want)
		}
	}
	for _, expiry := range []Expiry{TimeToLive, Watermarks, Aligned} {
		if !bytes.Contains(source, []byte(`case "`+expiry+`"`)) {
			t.Errorf("the program has no expiry %s", expiry)
		}
	}
	read := map[string]bool{}
	for _, part := range strings.Split(string(source), `setting("`)[1:] {
		name, _, _ := strings.Cut(part, `"`)
		read[name] = true
	}
	if len(read) != len(settings) {
		t.Errorf("the program reads %v and gets %v", read, settings)
	}
}
