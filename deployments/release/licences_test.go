package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

const moduleRoot = "../.."

// localToolchain is the Go that runs the test. It may differ from the Go of a release.
func localToolchain() *toolchain {
	return &toolchain{command: "go", name: runtime.Version(), env: append(environ(), "GOFLAGS=", "CGO_ENABLED=0")}
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLicencesOfEverythingInside: each module in the program for each platform has licences that are known and
// allowed, and their texts are in THIRD_PARTY_LICENSES.
func TestLicencesOfEverythingInside(t *testing.T) {
	root := absolute(t, moduleRoot)
	for _, p := range platforms {
		components, err := localToolchain().componentsOf(t.Context(), root, p)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		text := string(licencesText(components, p))
		for _, want := range []string{standardLibrary, "github.com/dgraph-io/badger/v4", "github.com/twmb/franz-go", "golang.org/x/sys"} {
			if !slices.ContainsFunc(components, func(c component) bool { return c.name == want }) {
				t.Errorf("%s: %s is in the program, and not in the list", p, want)
			}
		}
		for _, c := range components {
			for _, f := range c.files {
				if !strings.Contains(text, strings.TrimSpace(strings.ReplaceAll(string(f.text), "\r\n", "\n"))) {
					t.Errorf("%s: the text of %s of %s is missing", p, f.path, c.name)
				}
			}
		}
		// Some directories of this module have their own licences, below the licence at its top.
		i := slices.IndexFunc(components, func(c component) bool { return c.name == "github.com/klauspost/compress" })
		if i < 0 || !slices.ContainsFunc(components[i].files, func(f licenceFile) bool { return f.path == "zstd/internal/xxhash/LICENSE.txt" }) {
			t.Errorf("%s: the licence of a part of github.com/klauspost/compress is missing", p)
		}
	}
	roots, err := localToolchain().moduleComponent(t.Context(), root, authoritiesModule)
	if err != nil || !slices.Equal(roots.licences, []string{"BSD-3-Clause"}) {
		t.Errorf("authorities: %v %v", roots.licences, err)
	}
}

func TestModuleWithoutAnAllowedLicenceIsRefused(t *testing.T) {
	mit, err := os.ReadFile("testdata/MIT")
	if err != nil {
		t.Fatal(err)
	}
	evil := strings.Replace(string(mit), "THE SOFTWARE IS PROVIDED", "The Software shall be used for Good, not Evil.\n\nTHE SOFTWARE IS PROVIDED", 1)
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  string // "": allowed
	}{
		{"allowed", map[string]string{"LICENSE": string(mit)}, ""},
		{"spelled otherwise", map[string]string{"Licence-MIT.txt": string(mit)}, ""},
		{"none", map[string]string{"README.md": string(mit), "license.go": "package none"}, "example.com/m v1.2.3 has no licence"},
		{"only a notice", map[string]string{"NOTICE": "by the authors"}, "has no licence"},
		{"not allowed", map[string]string{"LICENSE": evil}, "LICENSE has licence JSON, which is not one of"},
		{"unknown", map[string]string{"LICENSE": "All rights reserved. Ask us first, in writing, before you do anything with this."}, "LICENSE is no text of known licences (0 %)"},
		{"one of two", map[string]string{"LICENSE": string(mit), "COPYING": "You may look at it, and at nothing else."}, "COPYING is no text of known licences"},
		{"additional terms", map[string]string{"LICENSE": string(mit) + strings.Repeat("The owner of the software may revoke these rights at any time. ", 20)}, "LICENSE is no text of known licences"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, tt.files)
			c := component{name: "example.com/m", version: "v1.2.3"}
			if err := c.addFiles(dir, dir); err != nil {
				t.Fatal(err)
			}
			switch err := c.classify(); {
			case tt.want == "" && (err != nil || !slices.Equal(c.licences, []string{"MIT"})):
				t.Errorf("licences %v, %v", c.licences, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}

// TestEmbeddedFilesHaveLicences: files by others that oncebus embeds are a component. The licence of oncebus itself
// belongs to no component.
func TestEmbeddedFilesHaveLicences(t *testing.T) {
	mit, err := os.ReadFile("testdata/MIT")
	if err != nil {
		t.Fatal(err)
	}
	top := t.TempDir()
	write(t, top, map[string]string{
		"LICENSE": "ours", "page/page.go": "package page", "page/static/ours.html": "<p>", "page/static/chart/chart.js": "{}",
		"page/static/chart/LICENSE": string(mit), "plain/plain.go": "package plain",
	})
	list := fmt.Sprintf(`[{"ImportPath":"m/page","Dir":%q,"EmbedFiles":["static/ours.html","static/chart/chart.js"],"Module":{"Path":"m","Main":true,"Dir":%q}},`+
		`{"ImportPath":"m/plain","Dir":%q,"Module":{"Path":"m","Main":true,"Dir":%q}}]`, filepath.Join(top, "page"), top, filepath.Join(top, "plain"), top)
	byName := map[string]*component{}
	for _, pkg := range packagesOf(t, list) {
		if err := addPackage(byName, &pkg); err != nil {
			t.Fatal(err)
		}
	}
	c := byName["files embedded by m/page"]
	if len(byName) != 1 || c == nil || len(c.files) != 1 || c.files[0].path != "page/static/chart/LICENSE" {
		t.Fatalf("components %+v", byName)
	}
}

func TestReplacedModuleIsRefused(t *testing.T) {
	list := `[{"ImportPath":"m/p","Dir":"/none","Module":{"Path":"m","Version":"v1.0.0","Dir":"/none","Replace":{"Path":"../m"}}}]`
	err := addPackage(map[string]*component{}, &packagesOf(t, list)[0])
	if err == nil || !strings.Contains(err.Error(), "module m is replaced by ../m") {
		t.Error(err)
	}
}

func TestModulesOfTheBinaryAreAllListed(t *testing.T) {
	components := []component{{name: "a", version: "v1.0.0"}}
	if err := checkModules(components, []*debug.Module{{Path: "a", Version: "v1.0.0"}}); err != nil {
		t.Error(err)
	}
	if err := checkModules(components, []*debug.Module{{Path: "a", Version: "v1.0.1"}}); err == nil {
		t.Error("another version of a module passed")
	}
}
