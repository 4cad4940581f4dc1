//go:build unix

package kafkatest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"

	_ "embed"
)

// KafkaVersion is the Apache Kafka release that [StartBroker] runs by default.
const KafkaVersion = "4.4.0"

// versionVariable names another release for every broker that the harness starts.
const versionVariable = "ONCEBUS_TEST_KAFKA"

// The oldest release that oncebus supports, as major and minor version.
const oldestMajor, oldestMinor = 3, 6

// OlderKafkaVersions are the last patch releases of older Kafka versions. CI runs a smoke test on each.
var OlderKafkaVersions = []string{"3.6.2", "3.9.2", "4.3.1"}

// Version returns the release that brokers without [WithVersion] run: the value of ONCEBUS_TEST_KAFKA if it is set,
// else [KafkaVersion].
func Version() string { return cmp.Or(os.Getenv(versionVariable), KafkaVersion) }

var versionPattern = regexp.MustCompile(`^(\d{1,3})\.(\d{1,3})\.\d{1,3}$`)

// validateVersion returns an error unless version is a release that oncebus supports. The check also keeps other text
// out of paths, because the version becomes part of a path.
func validateVersion(version string) error {
	m := versionPattern.FindStringSubmatch(version)
	if m == nil {
		return fmt.Errorf("version %q of Kafka is not major.minor.patch, such as %s; correct %s", version, KafkaVersion, versionVariable)
	}
	major, _ := strconv.Atoi(m[1]) // digits only
	minor, _ := strconv.Atoi(m[2])
	if major < oldestMajor || major == oldestMajor && minor < oldestMinor {
		return fmt.Errorf("version %s of Kafka is older than %d.%d, the oldest that oncebus supports; correct %s", version, oldestMajor, oldestMinor, versionVariable)
	}
	return nil
}

// javaMin is the oldest Java feature release on which the brokers of [KafkaVersion] run.
const javaMin = 17

// dependencyPlugin is the Maven goal that collects the jars, with a pinned version.
const dependencyPlugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"

// ErrUnavailable says that this machine cannot run Kafka. The message of the wrapping error names the missing tool or
// the failed download.
var ErrUnavailable = errors.New("no Apache Kafka on this machine")

// pom names Kafka's broker, and the log4j binding that Kafka's distribution adds.
//
//go:embed pom.xml
var pom []byte

// dist is an installed release of Kafka: the Java launcher, the class path, and the prepared files that make starts
// cheap (see storage.go and classes.go).
type dist struct {
	java      string
	classPath string
	storage   string // the directory with storage that is already formatted
	archive   string // the file with the archive of Kafka's classes
	dump      string // if set, a broker writes an archive of its classes to this file when it ends
}

// install finds Java and the jars of a release. The first call on a machine fetches the jars, formats storage and
// makes the archive of classes. go test runs several packages at once, so install takes a file lock: calls in other
// processes wait for the first one.
func install(ctx context.Context, version string) (dist, error) {
	java, err := findJava()
	if err != nil {
		return dist{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return dist{}, fmt.Errorf("find a directory for Kafka's jars (set HOME): %w", err)
	}
	dir := filepath.Join(cache, "oncebus", "kafka-"+version)
	installed.Lock()
	defer installed.Unlock()
	if d, ok := installed.dists[[2]string{java, dir}]; ok {
		return d, nil
	}
	d, err := installInto(ctx, java, version, dir)
	if err == nil {
		installed.dists[[2]string{java, dir}] = d
	}
	return d, err
}

// installed caches the results of install in this process, by the path of the Java launcher and the release's
// directory. Without the cache each call would start a JVM to ask it for its version.
var installed = struct {
	sync.Mutex
	dists map[[2]string]dist
}{dists: map[[2]string]dist{}}

func installInto(ctx context.Context, java, version, dir string) (dist, error) {
	of, err := whichJava(ctx, java)
	if err != nil {
		return dist{}, err
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return dist{}, fmt.Errorf("make the directory for Kafka's jars: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return dist{}, err
	}
	defer unlock()
	lib := filepath.Join(dir, "lib")
	switch _, err := os.Stat(lib); {
	case errors.Is(err, fs.ErrNotExist):
		if err := fetch(ctx, version, dir, lib); err != nil {
			return dist{}, err
		}
	case err != nil:
		return dist{}, fmt.Errorf("list Kafka's jars: %w", err)
	}
	jars, err := filepath.Glob(filepath.Join(lib, "*.jar")) // sorted, because an archive of classes is valid for one class path only
	if err != nil {
		return dist{}, fmt.Errorf("list Kafka's jars: %w", err)
	}
	archive, err := archiveName(of, jars)
	if err != nil {
		return dist{}, err
	}
	d := dist{
		java: java, classPath: strings.Join(jars, string(filepath.ListSeparator)),
		storage: filepath.Join(dir, "storage"), archive: filepath.Join(dir, archive),
	}
	if err := d.formatted(ctx); err != nil {
		return dist{}, err
	}
	return d, d.archived(ctx)
}

// fetch lets Maven copy the jars into a directory next to lib and renames that directory to lib at the end. A
// directory lib is therefore always complete.
func fetch(ctx context.Context, version, dir, lib string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return fmt.Errorf("%w: Maven (mvn) is needed once to fetch its jars, and is not in PATH", ErrUnavailable)
	}
	pomPath, part := filepath.Join(dir, "pom.xml"), lib+".part"
	if err := os.WriteFile(pomPath, pom, 0o600); err != nil {
		return fmt.Errorf("write the Maven project for Kafka's jars: %w", err)
	}
	if err := os.RemoveAll(part); err != nil {
		return fmt.Errorf("remove an unfinished download: %w", err)
	}
	//nolint:gosec // the program is mvn of PATH and every argument is ours.
	cmd := exec.CommandContext(ctx, mvn, "--batch-mode", "--quiet", "--file", pomPath, dependencyPlugin,
		"-DincludeScope=runtime", "-DoutputDirectory="+part, "-Dkafka.version="+version)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: Maven could not fetch the jars of Kafka %s: %w: %s", ErrUnavailable, version, err, tail(out, 3))
	}
	if err := os.Rename(part, lib); err != nil {
		return fmt.Errorf("move Kafka's jars into place: %w", err)
	}
	return nil
}

var (
	specVersion = regexp.MustCompile(`java\.specification\.version = (\d+)`)
	// ofJava matches the lines that distinguish one Java installation from another in the output of java
	// -XshowSettings.
	ofJava = regexp.MustCompile(`(?m)^ *(java\.home|java\.(vm|runtime)\.version|java\.vm\.name|os\.arch) = .*$`)
)

// findJava returns the java launcher below JAVA_HOME if that is set, else the launcher in PATH.
func findJava() (string, error) {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	java, err := exec.LookPath(java)
	if err != nil {
		return "", fmt.Errorf("%w: Java %d or newer is needed: %w", ErrUnavailable, javaMin, err)
	}
	return java, nil
}

// whichJava returns the properties that distinguish this Java from another. It returns an error if Java is older than
// javaMin.
func whichJava(ctx context.Context, java string) ([]byte, error) {
	out, err := exec.CommandContext(ctx, java, "-XshowSettings:properties", "-version").CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("%w: %s -version: %w", ErrUnavailable, java, err)
	}
	m := specVersion.FindSubmatch(out)
	if m == nil {
		return nil, fmt.Errorf("%w: %s prints no version", ErrUnavailable, java)
	}
	if v, err := strconv.Atoi(string(m[1])); err != nil || v < javaMin {
		return nil, fmt.Errorf("%w: %s is Java %s, Java %d or newer is needed", ErrUnavailable, java, m[1], javaMin)
	}
	return bytes.Join(ofJava.FindAll(out, -1), nil), nil
}

// lock takes the exclusive lock of a file and waits for it. If the process is killed, the kernel releases the lock.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock of Kafka's jars: %w", err)
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock Kafka's jars: %w", err), f.Close())
	}
	//nolint:errcheck // closing a file that was only locked loses nothing.
	return func() { f.Close() }, nil
}

// tail returns the last n lines of out.
func tail(out []byte, n int) string {
	lines := strings.Split(string(bytes.TrimSpace(out)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
