package main

import (
	"context"
	"encoding/json"
	"io"
	"regexp"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/portable"
	"oncebus/processor/wire"
	"oncebus/state"
)

// versionCommand is 'oncebus version', and 'oncebus --version'.
func versionCommand() cli.Command {
	var asJSON bool
	return cli.Command{
		Name: "version", About: "print version, commit, libraries and encodings",
		Long: "Prints the version, the commit and the Go version of the build, the versions of everything that\n" +
			"it stores, and the modules inside. A build without a tag has the version devel and its commit.\n" +
			"Two processes of one app must read what the other writes: compare the encodings before an upgrade.",
		Example: "oncebus version",
		Flags:   func(fs *pflag.FlagSet) { cli.OutputFlag(fs, &asJSON) },
		Run: func(_ context.Context, _ []string, p cli.Process) int {
			_ = writeVersion(p.Stdout, newShownVersion(buildInfo()), asJSON) // Commands.Run reports a failed write to standard output
			return cli.ExitStopped
		},
	}
}

// shownVersion is the output of version as JSON. Its JSON names are an interface.
type shownVersion struct {
	Version string `json:"version"`
	// Commit, CommitTime (RFC 3339) and Modified are empty if the binary was built outside of git.
	Commit     string `json:"commit,omitempty"`
	CommitTime string `json:"commit_time,omitempty"`
	// Modified reports that files differed from the commit when the binary was built.
	Modified  bool             `json:"modified"`
	Go        string           `json:"go"`
	OS        string           `json:"os"`
	Arch      string           `json:"arch"`
	Encodings []dedup.Encoding `json:"encodings"`
	Libraries []library        `json:"libraries"`
}

// library is a module that the binary contains.
type library struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

func newShownVersion(info *debug.BuildInfo) shownVersion {
	v := shownVersion{
		Version: versionOf(info), Commit: setting(info, "vcs.revision"), CommitTime: setting(info, "vcs.time"),
		Modified: setting(info, "vcs.modified") == "true", Go: info.GoVersion, OS: runtime.GOOS, Arch: runtime.GOARCH,
		Encodings: encodings(), Libraries: []library{},
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		v.Libraries = append(v.Libraries, library{m.Path, m.Version})
	}
	return v
}

// encodings lists the versions of everything that oncebus stores: first in topics, then on disk.
func encodings() []dedup.Encoding {
	return slices.Concat(app.Encodings(), dedup.Encodings(), wire.Encodings(), state.Encodings(), portable.Encodings())
}

func writeVersion(w io.Writer, v shownVersion, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(v)
	}
	cli.Printf(w, "oncebus %s\n", v.Version)
	rows := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if v.Commit != "" {
		modified := ""
		if v.Modified {
			modified = ", modified"
		}
		cli.Printf(rows, "commit\t%s, %s%s\n", v.Commit, v.CommitTime, modified)
	}
	cli.Printf(rows, "go\t%s %s/%s\n", v.Go, v.OS, v.Arch)
	if err := rows.Flush(); err != nil {
		return err
	}
	cli.Printf(rows, "\nencoding\twrites\treads\tin\n")
	for _, e := range v.Encodings {
		cli.Printf(rows, "%s\t%s\t%s\t%s\n", e.Name, versions(e.Writes), versions(e.Reads), e.Place)
	}
	if err := rows.Flush(); err != nil {
		return err
	}
	cli.Printf(rows, "\nlibrary\tversion\n")
	for _, l := range v.Libraries {
		cli.Printf(rows, "%s\t%s\n", l.Name, l.Version)
	}
	return rows.Flush()
}

// versions writes version numbers as text.
func versions(numbers []int) string {
	var texts []string
	for _, n := range numbers {
		texts = append(texts, strconv.Itoa(n))
	}
	return strings.Join(texts, ", ")
}

// buildInfo returns what Go has recorded in the binary about its build.
func buildInfo() *debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return info
	}
	return &debug.BuildInfo{GoVersion: runtime.Version()}
}

// version returns the version of this binary: see versionOf.
func version() string { return versionOf(buildInfo()) }

// commit returns the commit that the binary was built from; "" if the build does not say.
func commit() string { return setting(buildInfo(), "vcs.revision") }

// pseudoVersion matches the version that Go makes up for a commit without a tag.
var pseudoVersion = regexp.MustCompile(`[.-]\d{14}-[0-9a-f]{12}(\+dirty)?$`)

// versionOf returns the tag from which the binary was built, such as v0.1.0. Without a tag it returns
// devel+COMMIT with 12 digits of the commit, and .modified after it if files differed from the commit; without
// a commit it returns devel. Go takes all of this from the repository, so no linker flag can contradict the
// commit.
func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" && !pseudoVersion.MatchString(v) {
		return v
	}
	commit := setting(info, "vcs.revision")
	if commit == "" {
		return "devel"
	}
	version := "devel+" + commit[:min(12, len(commit))]
	if setting(info, "vcs.modified") == "true" {
		version += ".modified"
	}
	return version
}

// setting returns a setting of the build; "" if the build has no setting with this name.
func setting(info *debug.BuildInfo, key string) string {
	i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == key })
	if i < 0 {
		return ""
	}
	return info.Settings[i].Value
}
