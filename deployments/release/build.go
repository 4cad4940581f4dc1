package main

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// binaryBytesMax is the largest size of a binary. A binary grows beyond it only by a new dependency, about which
// somebody must decide. For comparison: the libraries of formats and schemas made 5 of 41 MB.
const binaryBytesMax = 45_000_000

// platforms are the platforms of a release. Windows is missing, because Badger does not write its files through to
// the disk on Windows.
var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}}

// platform is an operating system and a processor, as Go names them.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "/" + p.arch }

// parsePlatforms parses a list such as "linux/amd64 darwin/arm64". "" means all platforms, and host means the
// platform of this machine.
func parsePlatforms(text string) ([]platform, error) {
	var chosen []platform
	for name := range strings.FieldsSeq(text) {
		if name == "host" {
			name = runtime.GOOS + "/" + runtime.GOARCH
		}
		i := slices.IndexFunc(platforms, func(p platform) bool { return p.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("no release is built for platform %q, but for %v", name, platforms)
		}
		if !slices.Contains(chosen, platforms[i]) {
			chosen = append(chosen, platforms[i])
		}
	}
	if len(chosen) == 0 {
		return platforms, nil
	}
	return chosen, nil
}

// toolchain is a go command together with an environment in which its output depends on the source alone.
type toolchain struct {
	command string   // the program to run, such as go
	name    string   // the version that go.mod names, such as go1.26.8
	env     []string // the environment, without GOOS and GOARCH
}

// keptVariables are the variables that say where the go command finds modules and keeps what it has built. They
// cannot change a byte of a binary, because go.sum has the hash of each module.
var keptVariables = []string{
	"GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GONOPROXY", "GOSUMDB", "GONOSUMDB", "GOPRIVATE", "GOINSECURE", "GOVCS", "GOAUTH",
}

// newToolchain returns the toolchain that the go.mod of the module in dir names. It finds the toolchain by running a
// go command.
func newToolchain(ctx context.Context, dir, command string) (*toolchain, error) {
	text, err := output(ctx, dir, environ(), command, "mod", "edit", "-json")
	if err != nil {
		return nil, err
	}
	var mod struct{ Toolchain string }
	if err := json.Unmarshal([]byte(text), &mod); err != nil {
		return nil, fmt.Errorf("read go.mod: %w", err)
	}
	if mod.Toolchain == "" {
		return nil, errors.New("go.mod has no toolchain line: two builds may then differ")
	}
	text, err = output(ctx, dir, environ(), command, append([]string{"env", "-json"}, keptVariables...)...)
	if err != nil {
		return nil, err
	}
	kept := map[string]string{}
	if err := json.Unmarshal([]byte(text), &kept); err != nil {
		return nil, fmt.Errorf("read the settings of Go: %w", err)
	}
	// Remove GOAMD64, GODEBUG, GOFLAGS, GOEXPERIMENT and the like, because they change the binary, and so does cgo.
	env := slices.DeleteFunc(environ(), func(v string) bool { return strings.HasPrefix(v, "GO") || strings.HasPrefix(v, "CGO_") })
	for _, name := range keptVariables {
		env = append(env, name+"="+kept[name])
	}
	// GOENV=off ignores the file that go env -w writes.
	env = append(env, "GOENV=off", "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0", "GOAMD64=v1", "GOARM64=v8.0", "GOTOOLCHAIN="+mod.Toolchain)
	return &toolchain{command: command, name: mod.Toolchain, env: env}, nil
}

// goCommand runs the go command in dir for a platform and returns its output.
func (t *toolchain) goCommand(ctx context.Context, dir string, p platform, args ...string) (string, error) {
	return output(ctx, dir, append(slices.Clip(t.env), "GOOS="+p.os, "GOARCH="+p.arch), t.command, args...)
}

// binary is the program for one platform.
type binary struct {
	platform
	path string
	data []byte
	info *buildinfo.BuildInfo
}

// build compiles the program in the checkout src for a platform into dir. It then compares the build information in
// the binary with the commit.
func (t *toolchain) build(ctx context.Context, src, dir string, p platform, c commit) (*binary, error) {
	b := &binary{platform: p, path: filepath.Join(dir, "oncebus-"+p.os+"-"+p.arch)}
	if _, err := t.goCommand(ctx, src, p, "build", "-trimpath", "-buildvcs=true", "-ldflags=-s -buildid=", "-gcflags=all=-dwarf=false",
		"-o", b.path, "./cmd/oncebus"); err != nil {
		return nil, err
	}
	var err error
	if b.data, err = os.ReadFile(b.path); err != nil {
		return nil, fmt.Errorf("build for %s: %w", p, err)
	}
	if len(b.data) > binaryBytesMax {
		return nil, fmt.Errorf("the binary for %s has %d bytes, more than the limit of %d", p, len(b.data), binaryBytesMax)
	}
	if b.info, err = buildinfo.ReadFile(b.path); err != nil {
		return nil, fmt.Errorf("build for %s: %w", p, err)
	}
	if err := checkInfo(b.info, t.name, c); err != nil {
		return nil, fmt.Errorf("build for %s: %w", p, err)
	}
	return b, nil
}

// checkInfo compares the build information of a binary with the commit and the toolchain.
func checkInfo(info *buildinfo.BuildInfo, toolchainName string, c commit) error {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	if c.tag != "" && info.Main.Version != c.tag {
		return fmt.Errorf("the binary has version %s, the tag is %s", info.Main.Version, c.tag)
	}
	for _, want := range [][3]string{
		{"Go", info.GoVersion, toolchainName},
		{"commit", settings["vcs.revision"], c.hash},
		{"time", settings["vcs.time"], c.time.Format(time.RFC3339)},
		{"modified", settings["vcs.modified"], "false"},
		{"cgo", settings["CGO_ENABLED"], "0"},
	} {
		if want[1] != want[2] {
			return fmt.Errorf("%s of the binary is %q, not %q", want[0], want[1], want[2])
		}
	}
	return nil
}
