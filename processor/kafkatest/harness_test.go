//go:build unix

package kafkatest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// TestUnavailable: without Java, with a Java that is too old, or without both Maven and the jars, the error is
// ErrUnavailable and names the tool that is missing.
func TestUnavailable(t *testing.T) {
	fakeJava := func(version string) string {
		home := t.TempDir()
		script := "#!/bin/sh\necho '    java.specification.version = " + version + "' >&2\n"
		if err := os.Mkdir(filepath.Join(home, "bin"), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(home, "bin", "java"), []byte(script), 0o700); err != nil {
			t.Fatal(err)
		}
		return home
	}
	for _, test := range []struct{ name, javaHome, want string }{
		{"no Java", "", "Java 17 or newer is needed"},
		{"Java 11", fakeJava("11"), "is Java 11"},
		{"no Maven", fakeJava("17"), "Maven (mvn) is needed once"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("PATH", t.TempDir())
			t.Setenv("JAVA_HOME", test.javaHome)
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			t.Setenv("HOME", t.TempDir())
			_, err := StartBroker(t.Context(), t.TempDir())
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want ErrUnavailable with %q", err, test.want)
			}
		})
	}
}

// TestRealOlderKafkaIsInstalled fetches the jars of the older releases, so that the tests that run these releases
// spend no time on downloads.
func TestRealOlderKafkaIsInstalled(t *testing.T) {
	for _, version := range OlderKafkaVersions {
		if _, err := install(t.Context(), version); err != nil {
			unavailable(t, err)
		}
	}
}

// childEnv tells a second process of the test binary that it is the child of TestBrokerDiesWithTheTest: the test
// process that is killed.
const childEnv = "KAFKATEST_CHILD"

// TestBrokerDiesWithTheTest: if a test process is killed, the kernel kills its broker. Here cat replaces the broker,
// because cat would wait for input for ever. The standard error of cat is a pipe to this test; the kernel closes the
// pipe when the last process that has it ends.
func TestBrokerDiesWithTheTest(t *testing.T) {
	if os.Getenv(childEnv) != "" {
		startAndWait(t)
		return
	}
	if runtime.GOOS != "linux" {
		t.Skip("skipped: only Linux has a parent-death signal")
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestBrokerDiesWithTheTest$")
	child.Env = append(os.Environ(), childEnv+"=1")
	child.Stderr = w
	stdin, err := child.StdinPipe() // open until the test ends, so that cat does not end by itself
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(r)
	if line, err := in.ReadString('\n'); err != nil || line != "started\n" {
		t.Fatalf("the child wrote %q, %v", line, err)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := child.Wait(); err == nil {
		t.Error("the child ended by itself")
	}
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("read %q, %v to the end of the pipe", rest, err)
	}
}

// startAndWait starts cat in place of the broker, and then waits until this process is killed.
func startAndWait(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "cat")
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	p, err := StartProcess(cmd)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stderr.WriteString("started\n"); err != nil {
		t.Fatal(err)
	}
	<-p.Exited()
}

// TestFreePorts: the ports differ from each other and are below the range of local ports for outgoing connections.
func TestFreePorts(t *testing.T) {
	ports, err := freePorts(t.Context(), 20)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for _, p := range ports {
		if seen[p] || p >= 32_768 || p < 1024 {
			t.Errorf("ports %v", ports)
		}
		seen[p] = true
	}
}
