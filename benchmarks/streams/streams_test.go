//go:build unix

package streams

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/jvm"
	"oncebus/processor/kafkatest"
)

// TestVersion compares the peer's version with the broker's.
func TestVersion(t *testing.T) {
	if want := "<artifactId>kafka-streams</artifactId>\n      <version>" + kafkatest.KafkaVersion + "</version>"; !bytes.Contains(pom, []byte(want)) {
		t.Errorf("pom.xml does not contain %q", want)
	}
}

// TestCommand compares the settings with those that the source of the Java program
// reads.
func TestCommand(t *testing.T) {
	task := bench.Task{App: "a", Brokers: []string{"x:1", "y:2"}, Input: "in", Workers: 3, Commit: 20 * time.Millisecond, StateDir: t.TempDir()}
	cmd, err := (&App{&jvm.App{}}).Command(context.Background(), task, Window)
	if err != nil {
		t.Fatal(err)
	}
	var settings []string
	for _, variable := range cmd.Env {
		if rest, ours := strings.CutPrefix(variable, "ONCEBUS_STREAMS_"); ours {
			name, value, _ := strings.Cut(rest, "=")
			settings = append(settings, name)
			if want := map[string]string{"BROKERS": "x:1,y:2", "APPLICATION_ID": "a-dedup", "COMMIT_MS": "20", "STORE": "window", "OUTPUT": "a-output"}[name]; want != "" && value != want {
				t.Errorf("%s is %q, want %q", name, value, want)
			}
		}
	}
	for _, name := range settings {
		if !bytes.Contains(source, []byte(`setting("`+name+`")`)) {
			t.Errorf("the program does not read %s", name)
		}
	}
	asked := bytes.Count(source, []byte(`setting("`)) - 1 // an error's text names the store too
	if asked != len(settings) || len(slices.Compact(slices.Sorted(slices.Values(settings)))) != len(settings) {
		t.Errorf("the program reads %d settings and gets %v", asked, settings)
	}
}
