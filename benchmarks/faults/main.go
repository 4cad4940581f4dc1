//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// settings are the flags of a run.
type settings struct {
	duration  time.Duration
	epoch     time.Duration // the longest duration of an epoch
	seed      uint64
	nodes     int
	kafka     string   // the release with which the brokers start
	previous  string   // the commit of the earlier program in the scenario previous
	filter    []string // rows or names of faults; empty means all
	interval  time.Duration
	minFaults int
	minPoint  int // required number of kills at each fault point
	apps      int // number of apps side by side
	rate      int // raw records a second
	results   string
	work      string
	scenario  string // run only this scenario
	round     string // roundRows or roundFaults: the run ends when the round is complete
	list      bool
	lenient   bool   // report missed time limits without failing
	recheck   string // file with the history of an earlier run
}

func main() {
	if role := os.Getenv(envRole); role != "" {
		runRole(role)
		return
	}
	s, err := parseFlags(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(2)
	}
	if s.list {
		printFaults()
		return
	}
	if s.recheck != "" {
		err = recheck(s.recheck)
		if err != nil {
			fmt.Fprintln(os.Stderr, "faults:", err)
			os.Exit(1)
		}
		return
	}
	fmt.Printf("seed %d\n", s.seed)
	if s.apps > 1 {
		shrink()
	}
	ctx, halt, stop := untilSignals()
	err = run(ctx, halt, s)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		os.Exit(1)
	}
}

// untilSignals returns two contexts. halt ends with the first SIGINT or SIGTERM: the run then checks the epochs
// that have begun, and reports. ctx ends with the second signal.
func untilSignals() (ctx, halt context.Context, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	halt, first := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		for _, end := range []func(){first, cancel} {
			select {
			case <-signals:
				end()
			case <-ctx.Done():
			}
		}
	}()
	return ctx, halt, func() {
		signal.Stop(signals)
		cancel()
	}
}

// parseFlags reads the flags and derives the settings that depend on several flags.
func parseFlags(args []string) (settings, error) {
	var s settings
	var filter string
	fs := flag.NewFlagSet("faults", flag.ExitOnError)
	fs.DurationVar(&s.duration, "duration", 30*time.Minute, "how long the run may take, checks included")
	fs.DurationVar(&s.epoch, "epoch", 5*time.Minute, "longest time between two full checks; bounds the memory of the harness")
	fs.Uint64Var(&s.seed, "seed", 0, "seed of traffic and faults; 0 draws one")
	fs.IntVar(&s.nodes, "nodes", 1, "Kafka nodes: 1, or 3 for the faults of replication")
	fs.StringVar(&filter, "faults", "", "only these rows or faults, comma separated (p1,b1-kill); -list names them")
	fs.DurationVar(&s.interval, "interval", 6*time.Second, "mean time from one fault to the next")
	fs.IntVar(&s.minFaults, "min-faults", -1, "fail with fewer faults; -1 asks for one every 15 s of the duration")
	fs.IntVar(&s.minPoint, "min-point", 0, "end as soon as -min-faults have struck and each fault point has killed so many processes; fail if -duration is over before")
	fs.IntVar(&s.apps, "apps", 1, "so many small apps side by side on one Kafka, each with its own faults and checks; more than 1 leaves out the faults that would hit all")
	fs.IntVar(&s.rate, "rate", 2200, "raw records a second while traffic flows, of all apps")
	fs.StringVar(&s.results, "results", "", "directory for the report; none is written if empty")
	fs.StringVar(&s.work, "work", "", "directory for data and logs (default: a temporary one)")
	fs.StringVar(&s.scenario, "scenario", "", "run this scenario alone: "+strings.Join(scenarioNames(), ", "))
	fs.StringVar(&s.previous, "previous", program.PreviousCommit, "commit of the earlier program in the scenario previous")
	fs.StringVar(&s.round, "round", "", "end as soon as one fault of every row ("+roundRows+") or every fault ("+roundFaults+") has struck, with one round of each scenario; fail if -duration is over before")
	fs.BoolVar(&s.lenient, "lenient", false, "report times that were promised and missed, and wait ten times as long before a run that does not recover has failed: for machines that share their cores")
	fs.BoolVar(&s.list, "list", false, "list all faults and end")
	fs.StringVar(&s.recheck, "check", "", "check the history that an earlier run kept (history-*.jsonl.gz), and end")
	if err := fs.Parse(args); err != nil {
		return s, err
	}
	for _, name := range strings.FieldsFunc(filter, func(r rune) bool { return r == ',' || r == ' ' }) {
		if len(selectFaults(allFaults, []string{name}, 3, kafkatest.Version())) == 0 {
			return s, fmt.Errorf("-faults: Kafka %s has no row or fault %q; -list names them", kafkatest.Version(), name)
		}
		s.filter = append(s.filter, name)
	}
	switch {
	case s.nodes != 1 && s.nodes != 3:
		return s, fmt.Errorf("-nodes: %d, want 1 or 3", s.nodes)
	case s.duration < time.Minute:
		return s, fmt.Errorf("-duration: %v is too short, want at least a minute", s.duration)
	case s.epoch < time.Minute:
		return s, fmt.Errorf("-epoch: %v is too short, want at least a minute", s.epoch)
	case s.apps < 1 || s.apps > appsMax || s.rate < s.apps:
		return s, fmt.Errorf("-apps %d, -rate %d: want 1 to %d apps and a record a second for each", s.apps, s.rate, appsMax)
	case s.apps > 1 && (s.scenario != "" || s.round != ""):
		return s, errors.New("-apps: scenarios and rounds need one app")
	case s.minPoint < 0:
		return s, fmt.Errorf("-min-point: %d, want at least 0", s.minPoint)
	case s.interval <= 0 || s.rate <= 0:
		return s, fmt.Errorf("-interval %v, -rate %d: want more than 0", s.interval, s.rate)
	case s.round != "" && s.round != roundRows && s.round != roundFaults:
		return s, fmt.Errorf("-round: %q, want %s or %s", s.round, roundRows, roundFaults)
	case s.scenario != "" && scenarioByName(s.scenario) == nil:
		return s, fmt.Errorf("-scenario: there is no %q; there are %s", s.scenario, strings.Join(scenarioNames(), ", "))
	}
	s.setDefaults()
	return s, nil
}

// setDefaults sets the settings that the flags leave open.
func (s *settings) setDefaults() {
	s.kafka = kafkatest.Version()
	if sc := scenarioByName(s.scenario); sc != nil && sc.apart {
		s.nodes, s.kafka = max(s.nodes, sc.nodes), cmp.Or(sc.kafka, s.kafka)
	}
	if s.seed == 0 {
		s.seed = rand.Uint64()
	}
	if s.minFaults < 0 && s.round != "" {
		s.minFaults = 0 // the complete round is required instead
	} else if s.minFaults < 0 {
		s.minFaults = int(s.duration / (15 * time.Second))
	}
}
