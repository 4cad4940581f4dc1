package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run parses the flags and builds a release. The exit code is 0 if there is a release, 1 if there is none, and 2 if
// the flags are wrong.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("release", flag.ContinueOnError)
	fs.SetOutput(stderr)
	out := fs.String("out", "bin/release", "the `directory` of the release; what is in it is replaced")
	list := fs.String("platforms", "", fmt.Sprintf("a `list` of platforms, or host; default: %v", platforms))
	rebuild := fs.Bool("rebuild", false, "compile everything again, without the build cache: shows that the bytes do not come from there")
	command := fs.String("go", "go", "the go `command`")
	if err := fs.Parse(args); err != nil {
		return 2
	}
	chosen, err := parsePlatforms(*list)
	if err != nil {
		fmt.Fprintf(stderr, "release: %v\n", err)
		return 2
	}
	r := &release{dir: ".", out: *out, platforms: chosen, rebuild: *rebuild, command: *command, log: stdout, start: time.Now()}
	if err := r.make(ctx); err != nil {
		fmt.Fprintf(stderr, "release: %v\n", err)
		return 1
	}
	return 0
}

// release is one run of the command.
type release struct {
	dir       string // a directory in the repository
	out       string
	platforms []platform
	rebuild   bool      // build without the build cache
	command   string    // the go command to start with
	log       io.Writer // receives what the run does, as text for people
	start     time.Time

	done, steps int
	commit      commit
	toolchain   *toolchain
	texts       []entry // files of oncebus that go into each archive; the first is LICENSE
	files       []entry // the files of the release, sorted by name
}

// step logs which step of the run begins.
func (r *release) step(format string, args ...any) {
	r.done++
	fmt.Fprintf(r.log, "[%d/%d] %3.0f s  %s\n", r.done, r.steps, time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}

// make builds the release of the commit that is checked out.
func (r *release) make(ctx context.Context) (err error) {
	r.steps = 4 + 2*len(r.platforms)
	work, err := os.MkdirTemp("", "oncebus-release-")
	if err != nil {
		return fmt.Errorf("make a directory to build in: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	src := filepath.Join(work, "src")
	if err := r.checkOut(ctx, src); err != nil {
		return err
	}
	r.step("build %s", sbomTool)
	tool, err := r.toolchain.installSBOMTool(ctx, work)
	if err != nil {
		return err
	}
	if r.rebuild {
		r.toolchain.env = append(r.toolchain.env, "GOCACHE="+filepath.Join(work, "cache"))
	}
	if err := r.readTexts(src); err != nil {
		return err
	}
	var images []imageContent
	for _, p := range r.platforms {
		r.step("build for %s: about a minute without the build cache", p)
		b, err := r.toolchain.build(ctx, src, work, p, r.commit)
		if err != nil {
			return err
		}
		r.step("licences, bill of materials and archive for %s: the binary has %s", p, mebibytes(len(b.data)))
		components, err := r.addPlatform(ctx, src, tool, b)
		if err != nil {
			return err
		}
		if p.os == "linux" {
			roots, err := r.toolchain.moduleComponent(ctx, src, authoritiesModule)
			if err != nil {
				return err
			}
			images = append(images, imageContent{b, r.texts[0].data, licencesText(append(components, roots), p)})
		}
	}
	r.step("image for %d of the platforms", len(images))
	if len(images) > 0 {
		image, err := imageOf(images, r.commit)
		if err != nil {
			return err
		}
		r.files = append(r.files, entry{name: "oncebus_" + r.commit.version() + "_image.oci.tar", data: image})
	}
	return r.publish()
}

// checkOut finds out which commit is checked out and clones it into src.
func (r *release) checkOut(ctx context.Context, src string) (err error) {
	if r.commit, err = headOf(ctx, r.dir); err != nil {
		return err
	}
	r.step("check out commit %s: release %s", r.commit.hash[:12], r.commit.version())
	if changed, err := changedFiles(ctx, r.dir); err != nil {
		return err
	} else if changed > 0 {
		fmt.Fprintf(r.log, "      %d files of the work tree differ from the commit: the release has those of the commit\n", changed)
	}
	if err := checkOut(ctx, r.dir, src, r.commit); err != nil {
		return err
	}
	if r.toolchain, err = newToolchain(ctx, src, r.command); err != nil {
		return err
	}
	// The archives are compressed by this program, so the program must itself be built with the toolchain of the
	// release.
	if runtime.Version() != r.toolchain.name {
		return fmt.Errorf("this program was built by %s, go.mod names %s: run GOTOOLCHAIN=%s go run ./deployments/release, as make release does",
			runtime.Version(), r.toolchain.name, r.toolchain.name)
	}
	return nil
}

// readTexts reads the texts that go into each archive, and checks that the changelog contains the version.
func (r *release) readTexts(src string) error {
	for _, name := range []string{"LICENSE", "CHANGELOG.md", "README.md"} {
		text, err := os.ReadFile(filepath.Join(src, name))
		if err != nil {
			return fmt.Errorf("texts of a release: %w", err)
		}
		r.texts = append(r.texts, entry{name: name, data: text})
	}
	return checkChangelog(string(r.texts[1].data), r.commit)
}

// checkChangelog returns an error if the commit has a version tag for which the changelog has no dated section.
func checkChangelog(text string, c commit) error {
	heading := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(c.version()) + ` - \d{4}-\d{2}-\d{2}$`)
	if c.tag != "" && !heading.MatchString(text) {
		return fmt.Errorf("CHANGELOG.md has no section '## %s - YYYY-MM-DD': write it, and tag that commit", c.version())
	}
	return nil
}

// addPlatform adds the archive and the bill of materials of a binary, and returns the components by others that the
// binary contains.
func (r *release) addPlatform(ctx context.Context, src, tool string, b *binary) ([]component, error) {
	components, err := r.toolchain.componentsOf(ctx, src, b.platform)
	if err == nil {
		err = checkModules(components, b.info.Deps)
	}
	if err != nil {
		return nil, fmt.Errorf("licences of what is in the binary for %s:\n%w", b.platform, err)
	}
	sbom, err := r.toolchain.sbomOf(ctx, tool, b, components, r.commit)
	if err != nil {
		return nil, err
	}
	name := strings.Join([]string{"oncebus", r.commit.version(), b.os, b.arch}, "_")
	archive, err := archiveOf(b, name, r.commit.time, append(slices.Clip(r.texts), entry{name: "THIRD_PARTY_LICENSES", data: licencesText(components, b.platform)}))
	if err != nil {
		return nil, err
	}
	r.files = append(r.files, archive, entry{name: name + ".cdx.json", data: sbom})
	return components, nil
}

// archiveOf returns the archive for a platform, with the program and the texts.
func archiveOf(b *binary, name string, mtime time.Time, texts []entry) (entry, error) {
	entries := []entry{{name: name + "/oncebus", mode: 0o755, data: b.data}}
	for _, text := range texts {
		entries = append(entries, entry{name: name + "/" + text.name, mode: 0o644, data: text.data})
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	data, err := tarOf(entries, mtime)
	if err == nil {
		data, err = gzipOf(data)
	}
	return entry{name: name + ".tar.gz", data: data}, err
}

// publish writes the files and their check sums into a new directory, which then replaces the directory of the
// previous release.
func (r *release) publish() error {
	slices.SortFunc(r.files, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	sums := sumsOf(r.files)
	r.step("write %d files and SHA256SUMS to %s", len(r.files), r.out)
	if err := os.MkdirAll(filepath.Dir(r.out), 0o755); err != nil {
		return fmt.Errorf("write the release: %w", err)
	}
	fresh, err := os.MkdirTemp(filepath.Dir(r.out), filepath.Base(r.out)+".new-")
	if err != nil {
		return fmt.Errorf("write the release: %w", err)
	}
	for _, f := range append(slices.Clip(r.files), entry{name: "SHA256SUMS", data: sums}) {
		if err := os.WriteFile(filepath.Join(fresh, f.name), f.data, 0o644); err != nil {
			return errors.Join(fmt.Errorf("write the release: %w", err), os.RemoveAll(fresh))
		}
	}
	if err := errors.Join(os.Chmod(fresh, 0o755), os.RemoveAll(r.out)); err != nil {
		return errors.Join(fmt.Errorf("replace the earlier release: %w", err), os.RemoveAll(fresh))
	}
	if err := os.Rename(fresh, r.out); err != nil {
		return fmt.Errorf("write the release: %w", err)
	}
	fmt.Fprintf(r.log, "\n%s\n", sums)
	fmt.Fprintf(r.log, "release: %s, %d files with %s, after %.0f s\n", r.commit.version(), len(r.files), mebibytes(r.bytes()), time.Since(r.start).Seconds())
	return nil
}

// bytes sums the sizes of the files.
func (r *release) bytes() int {
	sum := 0
	for _, f := range r.files {
		sum += len(f.data)
	}
	return sum
}
