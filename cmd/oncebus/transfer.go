package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"syscall"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/processor/kafka"
	"oncebus/processor/transfer"
)

// openTransfer reads the settings and connects to Kafka. If that fails, it returns the exit code.
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

// fail prints the error of the command with this name, and returns the exit code.
func fail(p cli.Process, name string, code int, err error) int {
	cli.Printf(p.Stderr, "oncebus %s: %v\n", name, err)
	return code
}

// openPart opens the temporary file in which a command writes the file with this name, and empties it. The name
// of the temporary file is always the same, so that a command reuses the file that a killed command has left.
// The kernel holds a lock on the file for as long as a command writes it.
func openPart(name string) (*os.File, error) {
	name += ".part"
	for {
		file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, kafka.OperatorErrorf("%v", err)
		}
		if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			return nil, errors.Join(kafka.OperatorErrorf("%s is written by another command (%v): wait for it, or name another file", name, err), file.Close())
		}
		mine, err := file.Stat()
		if now, gone := os.Stat(name); err == nil && gone == nil && os.SameFile(mine, now) {
			err = file.Truncate(0)
			return file, err
		}
		// Before this command got the lock, another command renamed the file to its final name, so this command
		// opens a new file.
		if err := errors.Join(err, file.Close()); err != nil {
			return nil, err
		}
	}
}

// putInPlace renames a temporary file to its final name, which replaces the former file atomically: if the
// command is killed, the former file stays. err is the error of writing the temporary file; if it is not nil,
// putInPlace removes the file.
func putInPlace(temporary *os.File, name string, err error) error {
	if err == nil {
		err = temporary.Sync()
	}
	if err == nil {
		err = os.Rename(temporary.Name(), name)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(temporary.Name()))
	}
	return errors.Join(err, temporary.Close()) // last, because it ends the lock
}

// withCommas writes a number with commas between groups of three digits.
func withCommas[N int64 | uint64](n N) string {
	text := fmt.Sprint(n)
	for at := len(text) - 3; at > 0 && text[at-1] != '-'; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// sortedNames returns the keys of a map in sorted order.
func sortedNames[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
