package demo

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/ingress"
)

// httpAddrDefault is where the demo takes requests unless it is told otherwise:
// beside the default of ONCEBUS_ADMIN_ADDR, and on this machine only.
const httpAddrDefault = "127.0.0.1:8081"

//go:embed http_routes.yaml
var httpRoutesYAML string

// httpInputs are the inputs of the further routes. The claims' outcomes are
// one too.
var httpInputs = []string{signalsRaw, webhooksRaw, "operations.raw", outcomesTopic, "deliveries.raw"}

// allTopics are the topics in both routes files.
var allTopics = append([]string{
	"signals.unique", "webhooks.unique", operationsTopic, "operations.replies", "deliveries.unique", rules.DefaultDeadLetter,
}, httpInputs...)

// httpFlag is --http or --http=ADDR; "" without it.
type httpFlag string

func (f *httpFlag) String() string   { return string(*f) }
func (f *httpFlag) IsBoolFlag() bool { return true } // may stand without a value

func (f *httpFlag) Set(text string) error {
	switch text {
	case "true":
		text = httpAddrDefault
	case "false":
		text = ""
	default:
		_, port, err := net.SplitHostPort(text)
		if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
			return fmt.Errorf("%q is not host:port", text)
		}
	}
	*f = httpFlag(text)
	return nil
}

// generating returns the name of a flag that was given and is about generated
// records only, or "".
func generating(fs *flag.FlagSet) (name string) {
	fs.Visit(func(f *flag.Flag) {
		if f.Name == "seed" || f.Name == "events" {
			name = f.Name
		}
	})
	return name
}

// httpSettings are the demo's settings as an ingress.
func (d *demo) httpSettings() []string {
	if d.http == "" {
		return nil
	}
	d.secret = rand.Text()
	return []string{"ONCEBUS_INGRESS_ADDR=" + d.http, "ONCEBUS_INGRESS_SECRET_DELIVERIES=" + d.secret, "ONCEBUS_INGRESS_DRAIN=5s"}
}

// httpResult is the last line on standard output. Events are the requests with
// a verdict; what came out is counted by reading the topics back.
type httpResult struct {
	Events     int     `json:"events"`
	Unique     int     `json:"unique"`
	Duplicates int     `json:"duplicates"`
	Refused    int     `json:"refused"`    // answered without a way to the bus
	Unanswered int     `json:"unanswered"` // whatever became of them, it was not told
	Missing    int     `json:"missing"`
	Extra      int     `json:"extra"`
	Altered    int     `json:"altered"`
	Seconds    float64 `json:"seconds"`
}

func (r httpResult) proved() bool {
	return r.Missing == 0 && r.Extra == 0 && r.Altered == 0 && r.Events == r.Unique+r.Duplicates
}

// takeRequests takes requests until ctx is done, and counts what came of them.
func (d *demo) takeRequests(ctx context.Context) (summary, error) {
	started := time.Now()
	ledger := newHTTPLedger(d.out, d.routes)
	requests, err := d.openIngress(ctx, ledger)
	if err != nil {
		return nil, err
	}
	defer requests.Close() //nolint:errcheck // only open still if nothing was served
	var inputs []string
	for _, topic := range httpInputs {
		inputs = append(inputs, d.broker.prefix+topic)
	}
	if err := d.broker.create(ctx, d.admin, d.config.ReplicationFactor, inputs...); err != nil {
		return nil, err
	}
	// What is in hand when ctx is done still gets its verdict, so the processes
	// end after the ingress.
	finishing := context.WithoutCancel(ctx)
	if err := d.withProcesses(finishing, func(running context.Context, procs []*processor.Processor) error {
		return d.keepOpen(ctx, running, requests, ledger, procs)
	}); err != nil {
		return nil, err
	}
	if err := d.readOutputs(finishing, ledger.output, ledger.deadLetter); err != nil {
		return nil, err
	}
	result := ledger.close()
	result.Seconds = math.Round(time.Since(started).Seconds()*10) / 10
	ledger.report(result)
	return result, nil
}

// openIngress returns an ingress like that of 'oncebus ingress', every request of
// which goes through the ledger.
func (d *demo) openIngress(ctx context.Context, ledger *httpLedger) (*ingress.Service, error) {
	config := d.config
	config.InstanceID += "-http"
	config.StateDir = filepath.Join(config.StateDir, config.InstanceID)
	requests, err := ingress.NewService(d.ingress, config.Config, d.routes, d.registry, d.log)
	if err != nil {
		return nil, err
	}
	requests.Around(ledger.around)
	if err := requests.Listen(ctx); err != nil {
		return nil, fmt.Errorf("choose another address, as in --http=127.0.0.1:0: %w", err)
	}
	return requests, nil
}

// errUnready says that ctx was done too early for a result.
var errUnready = errors.New("stopped before it was ready")

// keepOpen takes requests, and works on operations, until ctx is done; or until
// running is, because a process failed.
func (d *demo) keepOpen(ctx, running context.Context, requests *ingress.Service, ledger *httpLedger, procs []*processor.Processor) error {
	serving, end := context.WithCancelCause(ctx)
	defer end(nil)
	stop := context.AfterFunc(running, func() { end(context.Cause(running)) })
	defer stop()
	if err := d.awaitProcesses(serving, procs); ctx.Err() != nil {
		return errUnready
	} else if err != nil {
		return err
	}
	var executor sync.WaitGroup
	var failed error
	executor.Go(func() {
		failed = d.awaitReady(serving, requests.Ready)
		if failed == nil {
			d.guide(requests.Addr().String())
			failed = d.executeOperations(serving)
		} else if ctx.Err() != nil {
			failed = errUnready
		}
		end(failed)
	})
	err := requests.Run(serving)
	end(err)
	executor.Wait()
	if err := cmp.Or(err, failed); err != nil {
		return err
	}
	// Nobody waited for the verdict on events without a key.
	_, err = d.await(running, ledger.acceptedMissingKey(), func() (int, error) {
		counts, err := gatherVerdicts(d.registry)
		return counts[dedup.MissingKey.String()], err
	})
	return err
}

// guide prints what to try.
func (d *demo) guide(addr string) {
	cli.Printf(d.out, "oncebus demo: taking requests at http://%s, broker %s, %d processes of %d workers.\n"+
		"To try in another terminal; Ctrl-C here reads the output back and proves the result.\n\n  SECRET=%s\n",
		addr, strings.Join(d.broker.addrs, ","), processCount, workerCount, d.secret)
	for _, step := range examples(addr) {
		cli.Printf(d.out, "\n  # %s\n", step.about)
		for _, command := range step.commands {
			cli.Printf(d.out, "  %s\n", command)
		}
	}
	cli.Printf(d.out, "\n")
}
