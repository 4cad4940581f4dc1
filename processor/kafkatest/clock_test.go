//go:build unix

package kafkatest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestRealSteppedClockIsCompiled compiles the class of the stepped clock on a machine with the JDK version that made
// the stored class, and compares both. The command is in the test.
func TestRealSteppedClockIsCompiled(t *testing.T) {
	t.Parallel()
	version, err := exec.CommandContext(t.Context(), "javac", "-version").CombinedOutput()
	if err != nil || !strings.HasPrefix(string(version), "javac 17.") {
		t.Skipf("needs javac of Java 17: %v %s", err, version)
	}
	found, err := install(t.Context(), KafkaVersion)
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "javac", "--release", "17", "-g:none", "-proc:none", "-cp", found.classPath, "-d", dir, "steppedclock/SystemTime.java")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", cmd, err, out)
	}
	compiled, err := os.ReadFile(filepath.Join(dir, "org", "apache", "kafka", "common", "utils", "SystemTime.class"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(compiled, steppedClock) {
		t.Errorf("steppedclock/SystemTime.class is not what %v makes of its source", cmd)
	}
}
