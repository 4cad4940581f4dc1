//go:build unix

package bench

import (
	"flag"
	"strings"
	"testing"
)

// TestArgument: the flags of a report's command line, parsed again, have the same values.
func TestArgument(t *testing.T) {
	set := func() (*flag.FlagSet, *int) {
		flags := flag.NewFlagSet("", flag.ContinueOnError)
		flags.Bool("history", false, "")
		flags.Bool("look", true, "")
		flags.String("only", "", "")
		seed := flags.Int("seed", 1, "")
		return flags, seed
	}
	flags, _ := set()
	if err := flags.Parse([]string{"-history", "-look=false", "-only", "a b", "-seed", "7"}); err != nil {
		t.Fatal(err)
	}
	var words []string
	flags.Visit(func(f *flag.Flag) { words = append(words, argument(f)) })
	if line := strings.Join(words, " "); line != "-history -look=false -only 'a b' -seed 7" {
		t.Errorf("the command line has %s", line)
	}
	again, seed := set()
	if err := again.Parse([]string{words[0], words[1], "-seed", "7"}); err != nil || *seed != 7 {
		t.Errorf("the seed after boolean flags is %d (%v), want 7", *seed, err)
	}
}
