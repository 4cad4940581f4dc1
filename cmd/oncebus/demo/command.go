package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/spf13/pflag"

	"oncebus/cmd/oncebus/cli"
)

// options are the flags of 'oncebus demo'.
type options struct {
	seed    uint64
	events  int
	brokers []string
	verbose bool
	stay    bool   // continue to send until ctx is done
	http    string // address at which to accept requests; "" to generate records instead
	secret  string // random secret of the signatures; only with http
	given   func(flag string) bool
}

// summary is the result of a demo.
type summary interface {
	verified() bool // no record is missing, extra or altered
}

// result is the last line on standard output. Events counts the produced records and Duplicates comes from the
// metrics. The other numbers come from reading the topics.
type result struct {
	Events     int     `json:"events"`
	Unique     int     `json:"unique"`
	Duplicates int     `json:"duplicates"`
	Invalid    int     `json:"invalid"`
	Missing    int     `json:"missing"`
	Extra      int     `json:"extra"`
	Altered    int     `json:"altered"`
	Seed       uint64  `json:"seed"`
	Seconds    float64 `json:"seconds"`
}

func (r result) verified() bool {
	return r.Missing == 0 && r.Extra == 0 && r.Altered == 0 && r.Duplicates == r.Events-r.Unique-r.Invalid
}

// Command is 'oncebus demo'.
func Command() cli.Command {
	var o options
	return cli.Command{
		Name: "demo", Synopsis: "[OPTIONS]", About: "send sample traffic through an embedded broker and verify the result",
		Long: "Sends generated trade signals and webhooks, with duplicates among them, through oncebus\n" +
			"on an embedded broker, reads the output and compares it with the records it produced.\n" +
			"The last line on standard output is the result as JSON. The exit code is 0 only if no\n" +
			"record is missing, extra or altered. With --http you send the requests: it prints curl\n" +
			"commands to try, and verifies the result when you stop it with Ctrl-C. It prints the\n" +
			"address of a live page; with --stay it goes on sending until Ctrl-C, so that you can look.",
		Example: "oncebus demo --events 5000 --seed 7",
		Flags:   o.define,
		Run:     o.run,
	}
}

func (o *options) define(fs *pflag.FlagSet) {
	fs.Uint64Var(&o.seed, "seed", 0, "generate the events from this `number`; 0 chooses one and prints it")
	fs.IntVar(&o.events, "events", eventsDefault, "how many `records` to produce, including duplicates")
	fs.StringSliceVar(&o.brokers, "brokers", nil, "use the Kafka at these comma separated `addresses` instead of the embedded broker,\n"+
		"with ONCEBUS_TLS_*, ONCEBUS_SASL_* and ONCEBUS_REPLICATION_FACTOR;\nthe demo removes its topics and groups at the end")
	fs.BoolVar(&o.verbose, "verbose", false, "write the log of oncebus to standard error")
	fs.BoolVar(&o.stay, "stay", false, "then send "+strconv.Itoa(stayRate)+" records a second until Ctrl-C, and verify all of them")
	fs.Var((*httpFlag)(&o.http), "http", "accept requests by HTTP instead of generating records: --http at "+httpAddrDefault+", or --http=`host:port`")
	fs.Lookup("http").NoOptDefVal = httpAddrDefault
	o.given = fs.Changed
}

// run runs the demo. It returns ExitStopped only if the result is verified.
func (o *options) run(ctx context.Context, _ []string, p cli.Process) int {
	if o.events < eventsMin || o.events > eventsMax {
		return cli.UsageError(p, "demo", fmt.Sprintf("--events %d is out of range, want %d to %d", o.events, eventsMin, eventsMax))
	}
	for _, name := range []string{"seed", "events", "stay"} {
		if o.http != "" && o.given(name) {
			return cli.UsageError(p, "demo", fmt.Sprintf("--%s applies to generated records, but --http generates none", name))
		}
	}
	for o.seed == 0 {
		o.seed = uint64(rand.Uint32())
	}
	result, err := demonstrate(ctx, *o, p)
	if err != nil {
		cli.Printf(p.Stderr, "oncebus demo: %v\n", err)
		return cli.ExitFailed
	}
	line, err := json.Marshal(result)
	if err != nil {
		cli.Printf(p.Stderr, "oncebus demo: %v\n", err)
		return cli.ExitFailed
	}
	cli.Printf(p.Stdout, "%s\n", line)
	if !result.verified() {
		return cli.ExitFailed
	}
	return cli.ExitStopped
}
