package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor/transfer"
)

// openTransfer reads the settings and connects.
func openTransfer(ctx context.Context, p cli.Process, routesFile string) (*transfer.Client, int, error) {
	s, routes, err := settings.Load(p.Environ, routesFile)
	if err != nil {
		return nil, cli.ExitWrong, err
	}
	c, err := transfer.New(ctx, s.Processor.Config, routes, cli.NewLogger(p.Stderr, slog.LevelWarn, s.LogFormat))
	if err != nil {
		return nil, codeOf(err), err
	}
	return c, 0, nil
}

// fail prints the error of a command, and returns the exit code.
func fail(p cli.Process, name string, code int, err error) int {
	cli.Printf(p.Stderr, "oncebus %s: %v\n", name, err)
	return code
}

// putInPlace gives a temporary file the name of another one, which it replaces at once: a command
// that is killed leaves the former file. After err, the error of writing it, it removes it.
func putInPlace(temporary *os.File, name string, err error) error {
	if err == nil {
		err = temporary.Sync()
	}
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary.Name()))
	}
	return nil
}

// withCommas returns a number with a comma before each three digits.
func withCommas[N int64 | uint64](n N) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// sortedNames returns the names of a map, sorted.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
