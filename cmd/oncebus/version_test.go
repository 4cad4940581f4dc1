package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// buildOf returns what Go writes into a binary of a version and commit.
func buildOf(version, commit string, modified bool) *debug.BuildInfo {
	info := &debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Path: "oncebus", Version: version}}
	if commit != "" {
		info.Settings = []debug.BuildSetting{{Key: "vcs.revision", Value: commit}, {Key: "vcs.time", Value: "2026-11-25T10:00:00Z"}, {Key: "vcs.modified", Value: "false"}}
	}
	if modified {
		info.Settings[2].Value = "true"
	}
	return info
}

func TestVersionIsTheTagOrTheCommit(t *testing.T) {
	const commit = "f7600c3f3b2c5e6d7f8091a2b3c4d5e6f7081920"
	for _, tt := range []struct {
		info *debug.BuildInfo
		want string
	}{
		{buildOf("v0.1.0", commit, false), "v0.1.0"},
		{buildOf("v1.0.0-rc.1", commit, false), "v1.0.0-rc.1"},
		{buildOf("v0.1.0+dirty", commit, true), "v0.1.0+dirty"},
		{buildOf("v0.0.0-20261125182110-6f990509f47a", commit, false), "devel+f7600c3f3b2c"},
		{buildOf("v0.1.1-0.20261125182110-6f990509f47a", commit, false), "devel+f7600c3f3b2c"},
		{buildOf("v1.0.0-rc.1.0.20261125182110-6f990509f47a+dirty", commit, true), "devel+f7600c3f3b2c.modified"},
		{buildOf("(devel)", commit, false), "devel+f7600c3f3b2c"},
		{buildOf("(devel)", "", false), "devel"},
		{buildOf("", "", false), "devel"},
	} {
		if got := versionOf(tt.info); got != tt.want {
			t.Errorf("module version %q: %q, want %q", tt.info.Main.Version, got, tt.want)
		}
	}
}

func TestVersionShowsTheBuild(t *testing.T) {
	info := buildOf("v0.1.0", "f7600c3f3b2c", true)
	info.Deps = []*debug.Module{
		{Path: "github.com/twmb/franz-go", Version: "v1.22.2"},
		{Path: "example.com/old", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.0.1"}},
	}
	var text, data bytes.Buffer
	if err := writeVersion(&text, newShownVersion(info), false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"oncebus v0.1.0\n", "commit  f7600c3f3b2c, 2026-11-25T10:00:00Z, modified\n", "go      go1.26.8 " + runtime.GOOS + "/" + runtime.GOARCH + "\n",
		"github.com/twmb/franz-go  v1.22.2\n", "example.com/fork          v1.0.1\n",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if err := writeVersion(&data, newShownVersion(info), true); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Version, Commit, Go, OS, Arch string
		CommitTime                    string `json:"commit_time"`
		Modified                      bool
		Encodings                     []dedup.Encoding
		Libraries                     []struct{ Name, Version string }
	}
	if err := json.Unmarshal(data.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Version != "v0.1.0" || got.Commit != "f7600c3f3b2c" || got.CommitTime != "2026-11-25T10:00:00Z" || !got.Modified || got.Go != "go1.26.8" ||
		got.OS != runtime.GOOS || got.Arch != runtime.GOARCH || len(got.Libraries) != 2 || got.Libraries[1].Name != "example.com/fork" {
		t.Errorf("%+v", got)
	}
}

// TestEncodingsAreListed: the version shows each encoding once, with numbers, and a build
// reads what it writes.
func TestEncodingsAreListed(t *testing.T) {
	seen := map[string]dedup.Encoding{}
	for _, e := range encodings() {
		if _, twice := seen[e.Name]; twice || e.Name == "" || e.Place == "" || len(e.Writes) == 0 {
			t.Errorf("%+v", e)
		}
		seen[e.Name] = e
		for _, written := range e.Writes {
			found := false
			for _, read := range e.Reads {
				found = found || read == written
			}
			if !found {
				t.Errorf("%s: version %d is written and not read", e.Name, written)
			}
		}
	}
	if seen["changelog"].Writes[0] != dedup.ChangelogVersion || seen["envelope"].Writes[0] != wire.EnvelopeVersion {
		t.Errorf("%+v", seen)
	}
}

// TestChangelogHasTheEncodings: a change of what topics contain is announced, because
// processes of two versions then cannot work in one app.
func TestChangelogHasTheEncodings(t *testing.T) {
	text, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range slices.Concat(app.Encodings(), dedup.Encodings()[:1], wire.Encodings()) {
		name := strings.ToUpper(e.Name[:1]) + e.Name[1:]
		// Sections are from newest to oldest: the first line of an encoding counts.
		line := regexp.MustCompile(`(?m)^- ` + name + ` (\d+): `).FindSubmatch(text)
		if want := fmt.Sprint(slices.Max(e.Writes)); len(line) < 2 || string(line[1]) != want {
			t.Errorf("CHANGELOG.md: no line '- %s %s: WHAT CHANGED' below a heading 'Encodings' that is newer than %q", name, want, line)
		}
	}
}
