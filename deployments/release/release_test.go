//go:build release

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"oncebus/processor/kafkatest"
)

// TestRelease runs make release in two clones of the commit that is checked out. The second clone compiles everything
// again. All files must be equal in both, the check sums and the program must be right, and the image must run the
// demo. make release-check runs this test.
func TestRelease(t *testing.T) {
	if runtime.GOOS != "linux" {
		kafkatest.Lack(t, "the image is for Linux, this is %s", runtime.GOOS)
	}
	c, err := headOf(t.Context(), moduleRoot)
	if err != nil {
		t.Fatal(err)
	}
	first := makeRelease(t, c, filepath.Join(t.TempDir(), "a"), "REBUILD=false")
	second := makeRelease(t, c, filepath.Join(t.TempDir(), "another", "directory"), "REBUILD=true")
	t.Run("equal", func(t *testing.T) { compare(t, first, second) })
	t.Run("sums", func(t *testing.T) { checkSums(t, first) })
	t.Run("program", func(t *testing.T) { checkProgram(t, first, c) })
	t.Run("image", func(t *testing.T) { runImage(t, filepath.Join(first, "oncebus_"+c.version()+"_image.oci.tar"), c) })
}

// makeRelease clones the repository into dir, runs make release there, and returns the
// directory of the release.
func makeRelease(t *testing.T, c commit, dir, option string) string {
	t.Helper()
	if err := checkOut(t.Context(), moduleRoot, dir, c); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "make", "release", "RELEASE_PLATFORMS=host", option)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("make release: %v", err)
	}
	return filepath.Join(dir, "bin", "release")
}

// compare compares two directories, byte by byte.
func compare(t *testing.T, a, b string) {
	t.Helper()
	names := namesIn(t, a)
	if got := namesIn(t, b); strings.Join(got, " ") != strings.Join(names, " ") || len(names) != 4 {
		t.Fatalf("files %v and %v, want the same four", names, got)
	}
	for _, name := range names {
		if x, y := content(t, a, name), content(t, b, name); !bytes.Equal(x, y) {
			t.Errorf("%s differs: %d bytes with digest %s, %d with %s", name, len(x), digestOf(x), len(y), digestOf(y))
		}
	}
}

func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func content(t *testing.T, dir, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// checkSums verifies SHA256SUMS with sha256sum.
func checkSums(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--strict", "-c", "SHA256SUMS")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || bytes.Count(out, []byte(": OK\n")) != len(namesIn(t, dir))-1 {
		t.Errorf("sha256sum: %v\n%s", err, out)
	}
}

// checkProgram extracts the archive with tar, and runs the program.
func checkProgram(t *testing.T, dir string, c commit) {
	t.Helper()
	name := "oncebus_" + c.version() + "_" + runtime.GOOS + "_" + runtime.GOARCH
	to := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "tar", "-xzf", filepath.Join(dir, name+".tar.gz"), "-C", to).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	program := filepath.Join(to, name, "oncebus")
	out, err := exec.CommandContext(t.Context(), program, "version").Output()
	if err != nil || !bytes.Contains(out, []byte(c.hash[:12])) {
		t.Errorf("oncebus version: %q, %v, want commit %s", out, err, c.hash)
	}
	if text := content(t, filepath.Join(to, name), "THIRD_PARTY_LICENSES"); !bytes.Contains(text, []byte("github.com/dgraph-io/badger/v4")) {
		t.Error("THIRD_PARTY_LICENSES does not name Badger")
	}
}

// runImage runs the demo in the image as the image's user: by buildah if this machine allows it, else by chroot into
// the image's files.
func runImage(t *testing.T, archive string, c commit) {
	t.Helper()
	if os.Getuid() != 0 {
		kafkatest.Lack(t, "only root can run the image")
	}
	run, how := runByChroot, "chroot"
	if _, err := exec.LookPath("buildah"); err != nil {
		t.Log("buildah is not installed (.ci/run installs it)")
		if os.Getenv("CI") == "true" {
			t.Error("no other program has read the image")
		}
	} else if reason := buildahWorks(t); reason != "" {
		t.Logf("buildah does not run here: %s", reason)
	} else {
		run, how = runByBuildah, "buildah"
	}
	t.Logf("the image runs by %s", how)
	if got := string(run(t, archive, "version")); !strings.Contains(got, c.hash[:12]) {
		t.Errorf("oncebus version in the image: %q", got)
	}
	lines := strings.Split(strings.TrimSpace(string(run(t, archive, "demo"))), "\n")
	var result struct{ Events, Unique, Missing, Extra, Altered int }
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &result); err != nil {
		t.Fatalf("the demo printed %q: %v", lines, err)
	}
	t.Logf("demo in the image: %+v", result)
	if result.Events == 0 || result.Unique == 0 || result.Missing != 0 || result.Extra != 0 || result.Altered != 0 {
		t.Errorf("%+v", result)
	}
}

// buildahIn returns arguments for containers and images below dir.
func buildahIn(dir string, args ...string) []string {
	return append([]string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}, args...)
}

// buildahWorks returns why buildah cannot make an empty container on this machine; "" if it can.
func buildahWorks(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, args := range [][]string{{"from", "--name", "probe", "scratch"}, {"mount", "probe"}, {"umount", "probe"}} {
		if out, err := exec.CommandContext(t.Context(), "buildah", buildahIn(dir, args...)...).CombinedOutput(); err != nil {
			return "buildah " + args[0] + ": " + err.Error() + ": " + string(out)
		}
	}
	return ""
}

// runByBuildah runs a command of oncebus in a container of the image and returns its
// standard output.
func runByBuildah(t *testing.T, archive, command string) []byte {
	t.Helper()
	dir := t.TempDir()
	buildah := func(args ...string) []byte {
		cmd := exec.CommandContext(t.Context(), "buildah", buildahIn(dir, args...)...)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("buildah %v: %v\n%s", args, err, stderr.Bytes())
		}
		return out
	}
	container := strings.TrimSpace(string(buildah("from", "--quiet", "oci-archive:"+archive)))
	out := buildah("run", "--isolation", "chroot", container, "--", "/oncebus", command)
	buildah("rm", container)
	return out
}

// runByChroot extracts the image's files and runs a command of oncebus as the image's user, with these files as its
// root directory.
func runByChroot(t *testing.T, archive, command string) []byte {
	t.Helper()
	root := t.TempDir()
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	extract(t, archive, root)
	cmd := exec.CommandContext(t.Context(), "/oncebus", command)
	cmd.Dir, cmd.Env = "/", imageEnv
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: imageUser, Gid: imageUser}}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("oncebus %s: %v\n%s", command, err, stderr.Bytes())
	}
	return out
}

// extract writes the files of the image for this machine below root, with their modes and
// owners.
func extract(t *testing.T, archive, root string) {
	t.Helper()
	_, blobs, _ := filesOf(t, content(t, filepath.Dir(archive), filepath.Base(archive)))
	var top, all imageIndex
	var manifest imageManifest
	if err := json.Unmarshal(blobs["index.json"], &top); err != nil {
		t.Fatal(err)
	}
	read(t, blobs, top.Manifests[0], &all)
	read(t, blobs, all.Manifests[0], &manifest)
	files, _ := decompress(t, blobs["blobs/sha256/"+strings.TrimPrefix(manifest.Layers[0].Digest, "sha256:")])
	headers, contents, names := filesOf(t, files)
	for _, name := range names {
		path, mode := filepath.Join(root, name), headers[name].FileInfo().Mode()
		var err error
		if mode.IsDir() {
			err = os.MkdirAll(path, 0o755)
		} else {
			err = os.WriteFile(path, contents[name], 0o600)
		}
		if err := errors.Join(err, os.Chown(path, headers[name].Uid, headers[name].Gid), os.Chmod(path, mode&(fs.ModePerm|fs.ModeSticky))); err != nil {
			t.Fatal(err)
		}
	}
}
