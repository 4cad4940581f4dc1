package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/portable"
	"oncebus/processor/transfer"
)

// verifyOptions are the flags of 'oncebus verify'.
type verifyOptions struct {
	routesFile string
	json       bool
	fileOnly   bool
}

// verifyCommand is 'oncebus verify'.
func verifyCommand() cli.Command {
	var o verifyOptions
	return cli.Command{
		Name: "verify", Synopsis: "[OPTIONS] FILE", About: "check a file of keys, and compare it with the app", ArgsMax: 1,
		Long: "Reads a FILE of 'oncebus export' to its end: every block, checksum and count. Then it compares\n" +
			"the keys with those of the app: there with the same first event, missing, different,\n" +
			"newer, expired since, or without a route here. Of an app that came with the file it compares the stream times, too. It changes\n" +
			"nothing. The settings are those of 'oncebus run'. Exit code 1: the file is damaged, keys are\n" +
			"missing or different, or stream times lower.",
		Example: "oncebus verify keys.obx1\n" +
			"oncebus verify --file-only keys.obx1",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.BoolVar(&o.fileOnly, "file-only", false, "only check the file, without a broker")
			cli.OutputFlag(fs, &o.json)
		},
		Run: o.run,
	}
}

// verified is the output of verify. Its JSON names are an interface.
type verified struct {
	*transfer.Checked

	Compared *transfer.Compared `json:"compared,omitempty"`
	// Came reports that the app was moved to this cluster with this file. Behind has the tasks whose stream
	// times are lower here than in the file.
	Came   bool     `json:"came,omitempty"`
	Behind []string `json:"behind,omitempty"`
}

func (o *verifyOptions) run(ctx context.Context, args []string, p cli.Process) int {
	if len(args) != 1 {
		return cli.UsageError(p, "verify", "want the FILE to check")
	}
	file, err := os.Open(args[0])
	if err != nil {
		return fail(p, "verify", cli.ExitWrong, err)
	}
	rows := cli.NewProgress(p, "keys")
	checked, err := transfer.Check(ctx, file, func(n int64) { rows.Set(n, n) })
	rows.End()
	if err := errors.Join(err, file.Close()); err != nil {
		return fail(p, "verify", cli.ExitFailed, err)
	}
	result := verified{Checked: checked}
	if !o.fileOnly {
		c, code, err := openTransfer(ctx, p, o.routesFile)
		if err != nil {
			return fail(p, "verify", code, err)
		}
		defer c.Close()
		progress := cli.NewProgress(p, "offsets")
		result.Compared, err = c.Compare(ctx, func() (io.ReadCloser, error) { return os.Open(args[0]) }, checked.Trailer.Rows, progress.Set)
		progress.End()
		if err == nil {
			err = result.readArrival(ctx, c)
		}
		if err != nil {
			return fail(p, "verify", codeOf(err), err)
		}
	}
	if err := o.write(p, args[0], &result); err != nil {
		return fail(p, "verify", cli.ExitFailed, err)
	}
	if result.Compared != nil && result.Compared.Missing+result.Compared.Different > 0 || len(result.Behind) > 0 {
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// readArrival finds the tasks whose stream times are lower than those in the file, if oncebus arrive created the
// app in this cluster from this file.
func (v *verified) readArrival(ctx context.Context, c *transfer.Client) error {
	came, behind, err := c.CameWith(ctx, &v.Header)
	if v.Came = came; len(behind) > 0 {
		v.Behind = names(behind)
	}
	return err
}

func (o *verifyOptions) write(p cli.Process, name string, v *verified) error {
	if o.json {
		return json.NewEncoder(p.Stdout).Encode(v)
	}
	h, t := &v.Header, &v.Trailer
	cli.Printf(p.Stdout, "%s: whole, %s keys in %s, of app %s on cluster %s at %s\n", name, withCommas(t.Rows), plural(int(t.Blocks), "block"), h.App, h.Cluster, h.At)
	for i := range h.Namespaces {
		n := &h.Namespaces[i]
		cli.Printf(p.Stdout, "  %s: %s keys, %s%s\n", n.Name, withCommas(t.ByNamespace[i]), n.Mode, shownWindow(n))
	}
	c := v.Compared
	if c == nil {
		return nil
	}
	cli.Printf(p.Stdout, "the app has %s of them; %s missing, %s different, %s expired since\n", withCommas(c.There), withCommas(c.Missing), withCommas(c.Different), withCommas(c.Expired))
	if c.Newer > 0 {
		cli.Printf(p.Stdout, "%s newer: their keys came again after their window, or their claims went on\n", withCommas(c.Newer))
	}
	if c.NoRoute > 0 {
		cli.Printf(p.Stdout, "%s without a route here, of %s: no event asks for them, and a seed leaves them out\n", withCommas(c.NoRoute), strings.Join(c.NoRouteIn, ", "))
	}
	for _, e := range c.Examples {
		cli.Printf(p.Stdout, "  %s: key %s of %s, %s, first seen %s", e.What, e.Digest, e.Namespace, e.Status, time.UnixMilli(e.First).UTC().Format(time.RFC3339Nano))
		if e.AppStatus != "" {
			cli.Printf(p.Stdout, "; the app has %s, %s", e.AppStatus, time.UnixMilli(e.AppFirst).UTC().Format(time.RFC3339Nano))
		}
		cli.Printf(p.Stdout, "\n")
	}
	switch {
	case len(v.Behind) > 0:
		cli.Printf(p.Stdout, "stream times are lower than in the other cluster: %s; run oncebus seed %s\n", strings.Join(v.Behind, ", "), name)
	case v.Came:
		cli.Printf(p.Stdout, "all %s have the stream times of the other cluster\n", plural(len(h.Tasks), "task"))
	}
	return nil
}

func shownWindow(n *portable.Namespace) string {
	if n.WindowMS < 0 {
		return ", without a route"
	}
	return ", window " + (time.Duration(n.WindowMS) * time.Millisecond).String() + ", grace " + (time.Duration(n.GraceMS) * time.Millisecond).String()
}
