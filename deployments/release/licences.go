package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/google/licensecheck"
)

// allowedLicences are the licences under which oncebus may distribute components in a binary together with their
// texts, by SPDX name. All are permissive except MPL-2.0, which requires that the source of its files is available:
// the Go module proxy has the source at the version that the release names.
var allowedLicences = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT", "MPL-2.0"}

// standardLibrary is the name of the component that every Go program contains.
const standardLibrary = "Go standard library"

// embeddedPrefix begins the name of a component of files that a package of oncebus embeds.
const embeddedPrefix = "files embedded by "

// licenceCoverageMin is the part of a licence file, in percent, that must consist of the text of known licences. The
// rest may name copyright holders and the files that a licence covers.
const licenceCoverageMin = 75

var (
	licenceName = regexp.MustCompile(`(?i)^(licen[cs]es?|unlicense|copying|copyright)([-._].*)?$`)
	// noticeName matches texts that come with a licence and grant or demand something in addition.
	noticeName = regexp.MustCompile(`(?i)^(notice|patents)([-._].*)?$`)
)

// component is something that others have made and that a binary contains: a module, the Go standard library, or
// files that oncebus embeds.
type component struct {
	name, version string
	files         []licenceFile // sorted by path
	licences      []string      // SPDX names, sorted
}

// licenceFile is a licence or notice of a component.
type licenceFile struct {
	path string // relative to the component, with slashes
	text []byte
}

// goPackage is what go list prints about a package.
type goPackage struct {
	ImportPath string
	Dir        string
	Standard   bool
	EmbedFiles []string
	Module     *struct {
		Path, Version, Dir string
		Main               bool
		Replace            *struct{ Path, Version string }
	}
}

// componentsOf returns everything made by others in the program for a platform, with its licences: Go first, then
// sorted by name. The error names all components without an allowed licence.
func (t *toolchain) componentsOf(ctx context.Context, src string, p platform) ([]component, error) {
	text, err := t.goCommand(ctx, src, p, "list", "-deps", "-json=ImportPath,Dir,Standard,EmbedFiles,Module", "./cmd/oncebus")
	if err != nil {
		return nil, err
	}
	goroot, err := t.goCommand(ctx, src, p, "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	byName := map[string]*component{}
	library := component{name: standardLibrary, version: t.name}
	errs := []error{library.addFiles(goroot, goroot)}
	for decoder := json.NewDecoder(strings.NewReader(text)); ; {
		var pkg goPackage
		if err := decoder.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		if !pkg.Standard {
			errs = append(errs, addPackage(byName, &pkg))
		}
	}
	components := []component{library}
	for _, c := range byName {
		components = append(components, *c)
	}
	slices.SortFunc(components[1:], func(a, b component) int { return cmp.Compare(a.name, b.name) })
	for i := range components {
		errs = append(errs, components[i].classify())
	}
	return components, errors.Join(errs...)
}

// moduleComponent returns a module, of which a release contains files, with its licences.
func (t *toolchain) moduleComponent(ctx context.Context, src, path string) (component, error) {
	text, err := t.goCommand(ctx, src, platform{runtime.GOOS, runtime.GOARCH}, "list", "-m", "-json", path)
	if err != nil {
		return component{}, err
	}
	var module struct{ Version, Dir string }
	if err := json.Unmarshal([]byte(text), &module); err != nil {
		return component{}, fmt.Errorf("read module %s: %w", path, err)
	}
	c := component{name: path, version: module.Version}
	if err := errors.Join(c.addFiles(module.Dir, module.Dir), c.classify()); err != nil {
		return component{}, err
	}
	return c, nil
}

// addPackage adds the licences of a package: the licence files in the package's directory and in the directories
// above it. An embedded file may also have its own licence.
func addPackage(byName map[string]*component, pkg *goPackage) error {
	if pkg.Module.Replace != nil {
		return fmt.Errorf("module %s is replaced by %s: a release has published modules", pkg.Module.Path, pkg.Module.Replace.Path)
	}
	dirs := []string{pkg.Dir}
	for _, file := range pkg.EmbedFiles {
		if dir := filepath.Dir(filepath.Join(pkg.Dir, file)); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	var errs []error
	for _, dir := range dirs {
		c := component{name: pkg.Module.Path, version: pkg.Module.Version}
		if pkg.Module.Main {
			c.name, c.version = embeddedPrefix+pkg.ImportPath, ""
		}
		if known := byName[c.name]; known != nil {
			errs = append(errs, known.addFiles(dir, pkg.Module.Dir))
			continue
		}
		errs = append(errs, c.addFiles(dir, pkg.Module.Dir))
		// A package of oncebus counts as a component only if it embeds files by others that have a licence; most
		// embed none.
		if len(c.files) > 0 || !pkg.Module.Main {
			byName[c.name] = &c
		}
	}
	return errors.Join(errs...)
}

// addFiles adds the licences and notices of dir and of the directories above it, up to top. It skips the LICENSE at
// the top of oncebus, which is not by others.
func (c *component) addFiles(dir, top string) error {
	ours := strings.HasPrefix(c.name, embeddedPrefix)
	for ; len(dir) >= len(top); dir = filepath.Dir(dir) {
		if ours && dir == top {
			return nil
		}
		if err := c.addDir(dir, top); err != nil {
			return fmt.Errorf("licences of %s: %w", c.name, err)
		}
	}
	return nil
}

// addDir adds the licences and notices of one directory.
func (c *component) addDir(dir, top string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		if !e.Type().IsRegular() || filepath.Ext(name) == ".go" || !licenceName.MatchString(name) && !noticeName.MatchString(name) {
			continue
		}
		path, err := filepath.Rel(top, filepath.Join(dir, name))
		if err != nil {
			return err
		}
		path = filepath.ToSlash(path)
		if slices.ContainsFunc(c.files, func(f licenceFile) bool { return f.path == path }) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		c.files = append(c.files, licenceFile{path, text})
	}
	return nil
}

// classify finds out which licences the component has. It returns an error unless all of them are allowed.
func (c *component) classify() error {
	slices.SortFunc(c.files, func(a, b licenceFile) int { return cmp.Compare(a.path, b.path) })
	var errs []error
	for _, f := range c.files {
		if noticeName.MatchString(filepath.Base(f.path)) {
			continue
		}
		found := licensecheck.Scan(f.text)
		if found.Percent < licenceCoverageMin {
			errs = append(errs, fmt.Errorf("%s %s: %s is no text of known licences (%.0f %%): read it, and decide", c.name, c.version, f.path, found.Percent))
		}
		for _, m := range found.Match {
			if m.IsURL || slices.Contains(c.licences, m.ID) {
				continue
			}
			if !slices.Contains(allowedLicences, m.ID) {
				errs = append(errs, fmt.Errorf("%s %s: %s has licence %s, which is not one of %v", c.name, c.version, f.path, m.ID, allowedLicences))
			}
			c.licences = append(c.licences, m.ID)
		}
	}
	slices.Sort(c.licences)
	if len(c.licences) == 0 {
		errs = append(errs, fmt.Errorf("%s %s has no licence: it must not be distributed", c.name, c.version))
	}
	return errors.Join(errs...)
}

// checkModules compares the components with the modules that the linker recorded in the binary.
func checkModules(components []component, linked []*debug.Module) error {
	var errs []error
	for _, m := range linked {
		if !slices.ContainsFunc(components, func(c component) bool { return c.name == m.Path && c.version == m.Version }) {
			errs = append(errs, fmt.Errorf("module %s %s is in the binary, its licence was not read", m.Path, m.Version))
		}
	}
	return errors.Join(errs...)
}

// licencesText returns the content of THIRD_PARTY_LICENSES.
func licencesText(components []component, p platform) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "oncebus for %s contains the following software by others. Their sources are at the\nversions named, for example by 'go mod download MODULE@VERSION'.\n\n", p)
	for _, c := range components {
		fmt.Fprintf(&b, "- %s: %s\n", strings.TrimSpace(c.name+" "+c.version), strings.Join(c.licences, ", "))
	}
	for _, c := range components {
		for _, f := range c.files {
			fmt.Fprintf(&b, "\n%s\n%s, file %s\n%s\n\n", strings.Repeat("=", 80), strings.TrimSpace(c.name+" "+c.version), f.path, strings.Repeat("=", 80))
			b.Write(bytes.TrimRight(bytes.ReplaceAll(f.text, []byte("\r\n"), []byte("\n")), "\n"))
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}
