package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"
)

func packagesOf(t *testing.T, list string) []goPackage {
	t.Helper()
	var packages []goPackage
	if err := json.Unmarshal([]byte(list), &packages); err != nil {
		t.Fatal(err)
	}
	return packages
}

// write writes files below dir and creates the directories that they need.
func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// inRepository runs git in dir.
func inRepository(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false"}, args...)...)
	cmd.Dir, cmd.Env = dir, append(environ(), "GIT_COMMITTER_DATE=2026-11-25T12:00:00+02:00")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("git %v: %v\n%s", args, err, out)
	}
}

// TestVersionIsTheTag: the version of a release is the tag of its commit. The tag must be a semantic version.
func TestVersionIsTheTag(t *testing.T) {
	dir := t.TempDir()
	if _, err := headOf(t.Context(), dir); err == nil || !strings.Contains(err.Error(), "a release is built from a commit of a git repository") {
		t.Errorf("without a repository: %v", err)
	}
	inRepository(t, dir, "init", "-q")
	write(t, dir, map[string]string{"a": "1"})
	inRepository(t, dir, "add", "a")
	inRepository(t, dir, "commit", "-q", "-m", "one")
	head := func() (commit, error) { return headOf(t.Context(), dir) }
	c, err := head()
	if err != nil || c.version() != "devel+"+c.hash[:12] || imageTag(c) != "devel-"+c.hash[:12] {
		t.Errorf("without a tag: %+v %v", c, err)
	}
	if want := time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC); !c.time.Equal(want) || c.time.Location() != time.UTC {
		t.Errorf("time %v, want %v", c.time, want)
	}
	for _, tag := range []string{"v1", "vnext", "v01.2.3", "nightly"} {
		inRepository(t, dir, "tag", tag)
	}
	if c, err = head(); err != nil || c.tag != "" {
		t.Errorf("tags that are no semantic version: %+v %v", c, err)
	}
	inRepository(t, dir, "tag", "-a", "-m", "release", "v0.1.0-rc.1")
	if c, err = head(); err != nil || c.version() != "0.1.0-rc.1" || imageTag(c) != "0.1.0-rc.1" {
		t.Errorf("with a tag: %+v %v", c, err)
	}
	inRepository(t, dir, "tag", "v0.1.0")
	if _, err = head(); err == nil || !strings.Contains(err.Error(), "has two versions, v0.1.0 and v0.1.0-rc.1") {
		t.Errorf("with two tags: %v", err)
	}
}

// TestCommitIsBuiltAndNotTheWorkTree: a changed and an additional file of the work tree are counted, and are missing
// in the checkout.
func TestCommitIsBuiltAndNotTheWorkTree(t *testing.T) {
	dir, to := t.TempDir(), filepath.Join(t.TempDir(), "src")
	inRepository(t, dir, "init", "-q")
	write(t, dir, map[string]string{"a": "1\n"})
	inRepository(t, dir, "add", "a")
	inRepository(t, dir, "commit", "-q", "-m", "one")
	inRepository(t, dir, "tag", "v0.1.0")
	write(t, dir, map[string]string{"a": "1\n1\n"})
	inRepository(t, dir, "commit", "-q", "-a", "-m", "two")
	inRepository(t, dir, "tag", "-a", "-m", "release", "v0.1.1")
	if n, err := changedFiles(t.Context(), dir); n != 0 || err != nil {
		t.Errorf("%d changed files, %v", n, err)
	}
	write(t, dir, map[string]string{"a": "2\n", "b": "3\n", "below/a": "4\n"})
	if n, err := changedFiles(t.Context(), dir); n != 3 || err != nil {
		t.Errorf("%d changed files, want 3: %v", n, err)
	}
	c, err := headOf(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	// The command may run in a directory below the top, as with go run.
	if err := checkOut(t.Context(), filepath.Join(dir, "below"), to, c); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(to, "a"))
	if _, missing := os.Stat(filepath.Join(to, "b")); err != nil || string(text) != "1\n1\n" || !os.IsNotExist(missing) {
		t.Errorf("the checkout has %q, %v, and b: %v", text, err, missing)
	}
	if again, err := headOf(t.Context(), to); err != nil || again != c || c.tag != "v0.1.1" {
		t.Errorf("the checkout is %+v, not %+v: %v", again, c, err)
	}
	if tags, err := git(t.Context(), to, "tag"); err != nil || tags != "v0.1.1" {
		t.Errorf("the checkout has tags %q, %v", tags, err)
	}
}

func TestChangelogHasTheVersion(t *testing.T) {
	const text = "# Changelog\n\n## Unreleased\n\n## 0.2.0\n\n## 0.1.0 - 2026-11-25\n\n### Added\n"
	for tag, want := range map[string]bool{"v0.1.0": true, "": true, "v0.2.0": false, "v0.1.0-rc.1": false, "v0.1": false} {
		if err := checkChangelog(text, commit{hash: "f7600c3f3b2c5e6d", tag: tag}); (err == nil) != want {
			t.Errorf("tag %q: %v", tag, err)
		}
	}
}

func TestPlatforms(t *testing.T) {
	got, err := parsePlatforms("linux/arm64  linux/amd64 linux/arm64")
	if err != nil || !slices.Equal(got, []platform{{"linux", "arm64"}, {"linux", "amd64"}}) {
		t.Errorf("%v %v", got, err)
	}
	if got, err := parsePlatforms(" "); err != nil || !slices.Equal(got, platforms) {
		t.Errorf("%v %v", got, err)
	}
	if _, err := parsePlatforms("plan9/386"); err == nil || !strings.Contains(err.Error(), `no release is built for platform "plan9/386"`) {
		t.Error(err)
	}
}

// TestBinaryIsOfTheCommit: a binary with another commit, toolchain or version is not released.
func TestBinaryIsOfTheCommit(t *testing.T) {
	c := commit{hash: "f7600c3f3b2c", time: time.Unix(1764000000, 0).UTC(), tag: "v0.1.0"}
	info := func(change func(*debug.BuildInfo)) *debug.BuildInfo {
		i := &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "v0.1.0"}, Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: c.hash}, {Key: "vcs.time", Value: "2025-11-24T16:00:00Z"}, {Key: "vcs.modified", Value: "false"}, {Key: "CGO_ENABLED", Value: "0"},
		}}
		change(i)
		return i
	}
	for _, tt := range []struct {
		want   string
		change func(*debug.BuildInfo)
	}{
		{"", func(*debug.BuildInfo) {}},
		{"the binary has version v0.1.1, the tag is v0.1.0", func(i *debug.BuildInfo) { i.Main.Version = "v0.1.1" }},
		{`Go of the binary is "go1.27.0", not "go1.26.8"`, func(i *debug.BuildInfo) { i.GoVersion = "go1.27.0" }},
		{`commit of the binary is "0", not "f7600c3f3b2c"`, func(i *debug.BuildInfo) { i.Settings[0].Value = "0" }},
		{`modified of the binary is "true", not "false"`, func(i *debug.BuildInfo) { i.Settings[2].Value = "true" }},
		{`cgo of the binary is "1", not "0"`, func(i *debug.BuildInfo) { i.Settings[3].Value = "1" }},
		{`commit of the binary is "", not "f7600c3f3b2c"`, func(i *debug.BuildInfo) { i.Settings = nil }},
	} {
		err := checkInfo(info(tt.change), "go1.26.8", c)
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || err.Error() != tt.want) {
			t.Errorf("%v, want %q", err, tt.want)
		}
	}
}

// TestToolchainIgnoresSettingsOfTheUser: variables that change the bytes of a binary have
// no effect.
func TestToolchainIgnoresSettingsOfTheUser(t *testing.T) {
	for _, name := range []string{"GOFLAGS", "GOAMD64", "GODEBUG", "GOEXPERIMENT", "CGO_CFLAGS", "GOFIPS140"} {
		t.Setenv(name, "v3")
	}
	t.Setenv("GOFLAGS", "-buildvcs=false")
	t.Setenv("GOEXPERIMENT", "")
	t.Setenv("GOFIPS140", "off")
	t.Setenv("GODEBUG", "")
	dir := t.TempDir()
	write(t, dir, map[string]string{"go.mod": "module m\n\ngo 1.26.0\n"})
	if _, err := newToolchain(t.Context(), dir, "go"); err == nil || !strings.Contains(err.Error(), "go.mod has no toolchain line") {
		t.Error(err)
	}
	write(t, dir, map[string]string{"go.mod": "module m\n\ngo 1.26.0\n\ntoolchain go1.26.999\n"})
	got, err := newToolchain(t.Context(), dir, "go")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []string{"GOAMD64=v3", "GOFLAGS=-buildvcs=false", "CGO_CFLAGS=v3", "GOFIPS140=off"} {
		if slices.Contains(got.env, v) {
			t.Errorf("the compiler gets %s", v)
		}
	}
	for _, v := range []string{"GOAMD64=v1", "GOFLAGS=", "CGO_ENABLED=0", "GOENV=off", "GOTOOLCHAIN=go1.26.999"} {
		if !slices.Contains(got.env, v) {
			t.Errorf("the compiler does not get %s", v)
		}
	}
}

func TestBillOfMaterialsIsCompleted(t *testing.T) {
	const text = `{"metadata":{"component":{"name":"oncebus"},"tools":[{"name":"t","hashes":[{"alg":"MD5"}]}]},"components":[{"name":"std","version":"go1"},{"name":"a","version":"v1.0.0"}]}`
	components := []component{{name: standardLibrary, version: "go1", licences: []string{"BSD-3-Clause"}}, {name: "a", version: "v1.0.0", licences: []string{"ISC", "MIT"}}, {name: embeddedPrefix + "m/page", licences: []string{"MIT"}}}
	c := commit{time: time.Unix(1764000000, 0).UTC()}
	got, err := completeSBOM([]byte(text), components, c)
	if err != nil {
		t.Fatal(err)
	}
	var flat strings.Builder
	for field := range strings.FieldsSeq(string(got)) {
		flat.WriteString(field)
	}
	const want = `{"components":[{"licenses":[{"license":{"id":"BSD-3-Clause"}}],"name":"std","version":"go1"},` +
		`{"licenses":[{"license":{"id":"ISC"}},{"license":{"id":"MIT"}}],"name":"a","version":"v1.0.0"},{"bom-ref":"filesembeddedbym/page","licenses":[{"license":{"id":"MIT"}}],"name":"filesembeddedbym/page","type":"library"}],` +
		`"metadata":{"component":{"licenses":[{"license":{"id":"Apache-2.0"}}],"name":"oncebus"},"timestamp":"2025-11-24T16:00:00Z","tools":[{"name":"t"}]}}`
	if flat.String() != want {
		t.Errorf("got\n%s, want\n%s", flat.String(), want)
	}
	if _, err := completeSBOM([]byte(text), components[:1], c); err == nil || !strings.Contains(err.Error(), "names a v1.0.0, whose licence was not read") {
		t.Errorf("a component without a licence: %v", err)
	}
	more := append(slices.Clip(components), component{name: "b", version: "v1.0.0"})
	if _, err := completeSBOM([]byte(text), more, c); err == nil || !strings.Contains(err.Error(), "has 3 components, the binary has 4") {
		t.Errorf("a component that is missing: %v", err)
	}
}
