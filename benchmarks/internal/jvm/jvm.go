//go:build unix

package jvm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// dependencyPlugin is the Maven goal that collects the jars, with a pinned version.
const dependencyPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

// Program is one Java class with a main method, and the jars that it needs.
type Program struct {
	Name   string // the beginning of the names of its directories in the cache
	Class  string
	Pom    []byte // names the jars as dependencies
	Source []byte
}

// App is a built program.
type App struct {
	java, classPath, class string
}

// Build fetches the jars with Maven and compiles the program into the user's cache directory, unless both are there
// already.
func (p Program) Build(ctx context.Context) (*App, error) {
	java, err := tool("java")
	if err != nil {
		return nil, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return nil, fmt.Errorf("find a directory for the program %s (set HOME): %w", p.Name, err)
	}
	dir := filepath.Join(cache, "oncebus")
	lib := filepath.Join(dir, p.Name+"-lib-"+digest(p.Pom))
	if err := once(lib, func(part string) error { return p.fetch(ctx, part) }); err != nil {
		return nil, fmt.Errorf("fetch the jars of %s: %w", p.Name, err)
	}
	jars := filepath.Join(lib, "*")
	classes := filepath.Join(dir, p.Name+"-classes-"+digest(slices.Concat(p.Source, p.Pom)))
	if err := once(classes, func(part string) error { return p.compile(ctx, jars, part) }); err != nil {
		return nil, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	return &App{java: java, classPath: classes + string(filepath.ListSeparator) + jars, class: p.Class}, nil
}

// Command returns a command that runs the program. It creates temp as the temporary directory of the JVM: RocksDB
// extracts its native library there at every start. If temp is below the state directory, both are removed together.
func (a *App) Command(ctx context.Context, heapMiB int, temp string, options ...string) (*exec.Cmd, error) {
	if err := os.MkdirAll(temp, 0o755); err != nil {
		return nil, err
	}
	args := []string{fmt.Sprintf("-Xms%dm", heapMiB), fmt.Sprintf("-Xmx%dm", heapMiB), "-Djava.io.tmpdir=" + temp}
	args = append(args, options...)
	cmd := exec.CommandContext(ctx, a.java, append(args, "-cp", a.classPath, a.class)...)
	cmd.Env = os.Environ()
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd, nil
}

// once creates a directory that is complete whenever it exists: fill works on another directory next to it, which
// once renames at the end. If two calls run concurrently, one of their directories is kept.
func once(dir string, fill func(part string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o750); err != nil {
		return err
	}
	part, err := os.MkdirTemp(filepath.Dir(dir), "part-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(part) }() // after a success the directory was renamed and is not here any more
	if err := fill(part); err != nil {
		return err
	}
	if err := os.Rename(part, dir); err != nil {
		if _, lost := os.Stat(dir); lost != nil {
			return err
		}
	}
	return nil
}

// fetch copies the jars with Maven.
func (p Program) fetch(ctx context.Context, to string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return errors.New("this needs Maven (mvn) once, and it is not in PATH")
	}
	// The pom is in another directory, because the target directory must contain only jars.
	project, err := os.MkdirTemp("", "oncebus-pom-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(project) }()
	file := filepath.Join(project, "pom.xml")
	if err := os.WriteFile(file, p.Pom, 0o600); err != nil {
		return err
	}
	return quiet(exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "--file", file, dependencyPlugin,
		"-DincludeScope=runtime", "-DoutputDirectory="+to))
}

func (p Program) compile(ctx context.Context, jars, to string) error {
	javac, err := tool("javac")
	if err != nil {
		return err
	}
	file := filepath.Join(to, p.Class+".java") // javac requires that the file has the name of the class
	if err := os.WriteFile(file, p.Source, 0o600); err != nil {
		return err
	}
	return quiet(exec.CommandContext(ctx, javac, "-Xlint:all", "-cp", jars, "-d", to, file))
}

// quiet runs a command and returns its output only if it fails.
func quiet(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// tool finds a program of the JDK, in JAVA_HOME if that is set, else in PATH.
func tool(name string) (string, error) {
	if home := os.Getenv("JAVA_HOME"); home != "" {
		name = filepath.Join(home, "bin", name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("a JDK of Java 17 or newer is needed (not only a JRE), set JAVA_HOME or PATH: %w", err)
	}
	return path, nil
}

// digest returns a name for a build from its sources.
func digest(of []byte) string {
	sum := sha256.Sum256(of)
	return hex.EncodeToString(sum[:6])
}
