package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/transfer"
)

// exportOptions are the flags of 'oncebus export'.
type exportOptions struct {
	routesFile string
	json       bool
	force      bool
	leaving    bool
	without    bool
}

// exportCommand is 'oncebus export'.
func exportCommand() cli.Command {
	var o exportOptions
	return cli.Command{
		Name: "export", Synopsis: "[OPTIONS] FILE", About: "write all live keys of the app to a file", ArgsMax: 1,
		Long: "Writes the keys that decide on events to FILE, some 20 bytes each: exact as of the newest\n" +
			"transaction of each task. It reads only the app's topics, and the app goes on. The file has\n" +
			"digests, times and results of claims, no events; keep it as private as the topics. 'oncebus\n" +
			"verify' checks it, 'oncebus seed' gives its keys to another app. With --leaving the app must be\n" +
			"held by 'oncebus hold --leaving', and 'oncebus arrive' continues it in another cluster. The\n" +
			"settings are those of 'oncebus run'.",
		Example: "oncebus export keys.obx1\n" +
			"oncebus export --leaving app.obx1",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			fs.BoolVar(&o.force, "force", false, "replace a FILE that exists")
			fs.BoolVar(&o.leaving, "leaving", false, "the app leaves the cluster: write all that it needs in another one")
			fs.BoolVar(&o.without, "without-open-claims", false, "with --leaving: leave behind claims without an outcome: their duplicates run again")
			cli.OutputFlag(fs, &o.json)
		},
		Run: o.run,
	}
}

func (o *exportOptions) run(ctx context.Context, args []string, p cli.Process) int {
	if len(args) != 1 || args[0] == "-" { // an export that begins again truncates its file, which is impossible for a pipe
		return cli.UsageError(p, "export", "want the FILE to write; it cannot be standard output")
	}
	if _, err := os.Lstat(args[0]); err == nil && !o.force {
		return fail(p, "export", cli.ExitWrong, fmt.Errorf("%s exists: name another file, or replace it by --force", args[0]))
	}
	c, code, err := openTransfer(ctx, p, o.routesFile)
	if err != nil {
		return fail(p, "export", code, err)
	}
	defer c.Close()
	exported, err := o.export(ctx, c, args[0], p)
	if err != nil {
		return fail(p, "export", codeOf(err), err)
	}
	if err := o.write(p, args[0], exported); err != nil {
		return fail(p, "export", cli.ExitFailed, err)
	}
	return cli.ExitStopped
}

// export writes a temporary file beside the named file, and renames it at the end. A killed export therefore leaves no
// incomplete file with that name.
func (o *exportOptions) export(ctx context.Context, c *transfer.Client, name string, p cli.Process) (*transfer.Exported, error) {
	file, err := openPart(name)
	if err != nil {
		return nil, err
	}
	progress := cli.NewProgress(p, "offsets")
	var exported *transfer.Exported
	if o.leaving {
		exported, err = c.ExportLeaving(ctx, file, o.without, progress.Set)
	} else {
		exported, err = c.Export(ctx, file, progress.Set)
	}
	progress.End()
	if err := putInPlace(file, name, err); err != nil {
		return nil, err
	}
	return exported, nil
}

func (o *exportOptions) write(p cli.Process, name string, e *transfer.Exported) error {
	if o.json {
		return json.NewEncoder(p.Stdout).Encode(struct {
			*transfer.Exported

			File string `json:"file"`
		}{e, name})
	}
	per := 0.0
	if e.Rows > 0 {
		per = float64(e.Bytes) / float64(e.Rows)
	}
	cli.Printf(p.Stdout, "%s: %s keys of %s, %s bytes, %.1f a key\n", name, withCommas(e.Rows), plural(e.Tasks, "task"), withCommas(e.Bytes), per)
	for _, namespace := range sortedNames(e.Namespaces) {
		cli.Printf(p.Stdout, "  %s: %s keys\n", namespace, withCommas(e.Namespaces[namespace]))
	}
	if e.Open > 0 {
		cli.Printf(p.Stdout, "  %s claims have no outcome yet: another app cannot take them over\n", withCommas(e.Open))
	}
	switch {
	case o.leaving:
		cli.Printf(p.Stdout, "  %s records of the inputs are left for the other cluster\nnext, in the other cluster: oncebus arrive %s\n", withCommas(e.Behind), name)
	case e.Behind > 0:
		cli.Printf(p.Stdout, "  %s records of the inputs and the repartition topic were not processed yet: their keys are not in the file\n", withCommas(e.Behind))
	}
	return nil
}
