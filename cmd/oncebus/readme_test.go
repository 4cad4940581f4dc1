package main_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/settings"
)

var update = flag.Bool("update", false, "write the table of settings into README.md")

// The lines in README.md between which the table of settings stands.
const (
	tableBegin = "<!-- settings: written by go test ./cmd/oncebus -run TestReadmeSettings -update -->\n"
	tableEnd   = "<!-- end of settings -->\n"
)

// TestReadmeSettings holds the README's table to the tags of the settings.
func TestReadmeSettings(t *testing.T) {
	const readme = "../../README.md"
	data, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(data), tableBegin)
	table, after, ends := strings.Cut(rest, tableEnd)
	if !begins || !ends {
		t.Fatalf("README.md has no place for the table of settings: want the lines\n%s%s", tableBegin, tableEnd)
	}
	want := markdownSettings()
	if *update && table != want {
		if err := os.WriteFile(readme, []byte(before+tableBegin+want+tableEnd+after), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if table != want {
		t.Errorf("the table of settings in README.md is out of date, run this test with -update; want\n%s", want)
	}
}

func markdownSettings() string {
	var b strings.Builder
	b.WriteString("| variable | meaning | default |\n| --- | --- | --- |\n")
	for _, s := range settings.All() {
		name, value := "`"+s.Name+"`", ""
		if s.Secret {
			name += " or `" + s.Name + "_FILE`"
		}
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, s.Meaning, value)
	}
	return b.String()
}
