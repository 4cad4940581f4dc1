package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/front"
)

// statsOptions are the flags of 'oncebus stats'.
type statsOptions struct {
	routesFile string
	json       bool
	days       int
}

// statsCommand is 'oncebus stats'.
func statsCommand() cli.Command {
	var o statsOptions
	return cli.Command{
		Name: "stats", Synopsis: "[OPTIONS]", About: "show how many keys the app retains, from its topics",
		Long: "Shows how many keys the app retains, by namespace and status, the age of the oldest, and how\n" +
			"many events were duplicates. Active keys are within their window. Expired keys are retained for\n" +
			"late events and then evicted. The settings are those of 'oncebus run'. It reads only the app's\n" +
			"topics, so it works on any machine, even if the service does not run. The numbers are as of the\n" +
			"last transaction of each task. JSON has the numbers of each task, too.\n\n" +
			"Then it shows the duplicates of each route: by UTC day of broker time, by delay after the first\n" +
			"event in event time, and by sender if the route has sender. A sender's number may be too high,\n" +
			"by at most the error next to it. For a route with tenants it shows those with most events, the\n" +
			"ones over their quota first. Last it has a line for each shadow, a key rule on trial.",
		Example: "oncebus stats --days 30",
		Flags: func(fs *pflag.FlagSet) {
			cli.RoutesFlag(fs, &o.routesFile)
			cli.OutputFlag(fs, &o.json)
			fs.IntVar(&o.days, "days", 7, "show the duplicates of so many days with duplicates, the newest ones, 1 to 35")
		},
		Run: o.run,
	}
}

func (o *statsOptions) run(ctx context.Context, _ []string, p cli.Process) int {
	if o.days < 1 || o.days > daysMax {
		cli.Printf(p.Stderr, "oncebus stats: --days %d: want 1 to %d, the days that are kept\n", o.days, daysMax)
		return cli.ExitWrong
	}
	s, routes, err := settings.Load(p.Environ, o.routesFile)
	if err != nil {
		cli.Printf(p.Stderr, "oncebus stats: %v\n", err)
		return cli.ExitWrong
	}
	tasks, shadows, err := readStats(ctx, s.Processor, routes, p, cli.NewLogger(p.Stderr, slog.LevelError, s.LogFormat))
	if err == nil {
		err = writeStats(p.Stdout, shownStats{Namespaces: sumKeys(tasks), Duplicates: sumDuplicates(tasks, o.days), Tenants: sumTenants(tasks, time.Now()), Shadows: shadows, Tasks: tasks}, o.json)
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus stats: %v\n", err)
		return codeOf(err)
	}
	return cli.ExitStopped
}

func readStats(ctx context.Context, cfg processor.Config, routes *rules.Routes, p cli.Process, log *slog.Logger) ([]front.TaskKeys, []app.ShadowState, error) {
	inspector, err := front.NewInspector(ctx, cfg.Config, routes, log)
	if err != nil {
		return nil, nil, err
	}
	defer inspector.Close()
	progress := cli.NewProgress(p, "tasks")
	inspector.OnProgress(progress.Set)
	tasks, err := inspector.Stats(ctx)
	progress.End()
	if err != nil {
		return nil, nil, err
	}
	shadows, err := inspector.Shadows(ctx)
	return tasks, shadows, err
}

// shownStats is the output of stats as JSON. Its JSON names are an interface.
type shownStats struct {
	Namespaces []namespaceKeys   `json:"namespaces"`
	Duplicates []routeDuplicates `json:"duplicates"`
	Tenants    []routeTenants    `json:"tenants"`
	Shadows    []app.ShadowState `json:"shadows"` // shadows: key rules that are tried out
	Tasks      []front.TaskKeys  `json:"tasks"`
}

// retainedKeys counts the keys that are retained. A retained key is either active or expired.
type retainedKeys struct {
	Total   uint64 `json:"total"`
	Active  uint64 `json:"active"`
	Expired uint64 `json:"expired"`
}

func (h *retainedKeys) add(k *app.KeyCount) {
	h.Total += k.Total
	h.Active += k.Active
	h.Expired += k.Expired
}

// namespaceKeys has the keys of a namespace, summed over all tasks.
type namespaceKeys struct {
	Namespace string   `json:"namespace"`
	Routes    []string `json:"routes"` // routes that share the namespace
	retainedKeys
	ByStatus   map[string]*retainedKeys `json:"by_status"`
	Waiting    uint64                   `json:"waiting"` // how many requests wait for an outcome
	OldestMS   int64                    `json:"oldest_ms"`
	Judged     uint64                   `json:"judged"`
	Duplicates uint64                   `json:"duplicates"`
	// HitRate is the fraction of judged events that were duplicates, 0 to 1.
	HitRate float64 `json:"hit_rate"`
}

func sumKeys(tasks []front.TaskKeys) []namespaceKeys {
	var all []namespaceKeys
	for _, t := range tasks {
		for _, k := range t.Keys {
			i := slices.IndexFunc(all, func(n namespaceKeys) bool { return n.Namespace == k.Namespace })
			if i < 0 {
				i = len(all)
				all = append(all, namespaceKeys{Namespace: k.Namespace, Routes: k.Routes, ByStatus: map[string]*retainedKeys{}})
			}
			n := &all[i]
			if n.ByStatus[k.Status] == nil {
				n.ByStatus[k.Status] = &retainedKeys{}
			}
			n.add(&k)
			n.ByStatus[k.Status].add(&k)
			n.OldestMS = max(n.OldestMS, k.OldestMS)
			n.Waiting += k.Waiting
			n.Judged += k.Judged
			n.Duplicates += k.Duplicates
		}
	}
	for i := range all {
		if all[i].Judged > 0 {
			all[i].HitRate = float64(all[i].Duplicates) / float64(all[i].Judged)
		}
	}
	slices.SortFunc(all, func(a, b namespaceKeys) int { return cmp.Compare(a.Namespace, b.Namespace) })
	return all
}

func writeStats(to io.Writer, s shownStats, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(to).Encode(s)
	}
	tw := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	cli.Printf(tw, "namespace\troutes\tstatus\ttotal\tactive\texpired\toldest\twaiting\tjudged\tduplicates\thit rate\n")
	for _, n := range s.Namespaces {
		cli.Printf(tw, "%s\t%s\tall\t%d\t%d\t%d\t%v\t%d\t%d\t%d\t%s\n", n.Namespace, strings.Join(n.Routes, ","), n.Total, n.Active, n.Expired, (time.Duration(n.OldestMS) * time.Millisecond).Round(time.Second), n.Waiting, n.Judged, n.Duplicates,
			strconv.FormatFloat(100*n.HitRate, 'f', 2, 64)+" %")
		for _, status := range slices.Sorted(maps.Keys(n.ByStatus)) {
			h := n.ByStatus[status]
			cli.Printf(tw, "%s\t\t%s\t%d\t%d\t%d\t\t\t\t\t\n", n.Namespace, status, h.Total, h.Active, h.Expired)
		}
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write standard output: %w", err)
	}
	if err := writeDuplicates(to, s.Duplicates); err != nil {
		return err
	}
	if err := writeTenants(to, s.Tenants); err != nil || len(s.Shadows) == 0 {
		return err
	}
	cli.Printf(to, "\n")
	return writeShadows(to, s.Shadows, false)
}
