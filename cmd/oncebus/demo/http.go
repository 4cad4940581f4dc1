package demo

import (
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
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

// httpAddrDefault is the default address at which the demo accepts requests: reachable from this machine only,
// at the port after the default port of ONCEBUS_ADMIN_ADDR.
const httpAddrDefault = "127.0.0.1:8081"

//go:embed http_routes.yaml
var httpRoutesYAML string

// httpInputs are the input topics of a demo with --http. The topic of the outcomes is among them.
var httpInputs = []string{signalsRaw, webhooksRaw, "operations.raw", outcomesTopic, "deliveries.raw"}

// allTopics are the topics of both routes files, before whose names the demo puts its prefix.
var allTopics = append([]string{
	"signals.unique", "webhooks.unique", operationsTopic, "operations.replies", "deliveries.unique", rules.DefaultDeadLetter,
}, httpInputs...)

// httpFlag is the address of --http or --http=ADDR, or "".
type httpFlag string

// String implements pflag.Value.
func (f *httpFlag) String() string { return string(*f) }

// Type implements pflag.Value.
func (f *httpFlag) Type() string { return "host:port" }

// Set implements pflag.Value.
func (f *httpFlag) Set(text string) error {
	_, port, err := net.SplitHostPort(text)
	if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || portErr != nil {
		return fmt.Errorf("%q is not host:port", text)
	}
	*f = httpFlag(text)
	return nil
}

// httpSettings returns the settings of the demo's ingress.
func (d *demo) httpSettings() []string {
	if d.http == "" {
		return nil
	}
	d.secret = rand.Text()
	return []string{"ONCEBUS_INGRESS_ADDR=" + d.http, "ONCEBUS_INGRESS_SECRET_DELIVERIES=" + d.secret, "ONCEBUS_INGRESS_SECRET_EXECUTOR=" + d.secret, "ONCEBUS_INGRESS_DRAIN=5s"}
}

// httpResult is the last line on standard output. Events counts the requests with a verdict. Unique, Missing,
// Extra and Altered come from reading the topics.
type httpResult struct {
	Events     int     `json:"events"`
	Unique     int     `json:"unique"`
	Duplicates int     `json:"duplicates"`
	Refused    int     `json:"refused"`    // rejected with a 4xx status
	Unanswered int     `json:"unanswered"` // without a response, or with a response that has no verdict
	Missing    int     `json:"missing"`
	Extra      int     `json:"extra"`
	Altered    int     `json:"altered"`
	Seconds    float64 `json:"seconds"`
}

func (r httpResult) verified() bool {
	return r.Missing == 0 && r.Extra == 0 && r.Altered == 0 && r.Events == r.Unique+r.Duplicates
}

// takeRequests accepts requests until ctx is done, and then verifies the output.
func (d *demo) takeRequests(ctx context.Context) (summary, error) {
	started := time.Now()
	ledger := newHTTPLedger(d.out, d.routes)
	requests, err := d.openIngress(ctx, ledger)
	if err != nil {
		return nil, err
	}
	defer requests.Close() //nolint:errcheck // Run has closed it, unless it did not start
	var inputs []string
	for _, topic := range httpInputs {
		inputs = append(inputs, d.broker.prefix+topic)
	}
	if err := d.broker.create(ctx, d.admin, d.config.ReplicationFactor, inputs...); err != nil {
		return nil, err
	}
	// A request that is in flight when ctx is done must still get its verdict, so the processes stop after the
	// ingress.
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

// openIngress returns an ingress like that of 'oncebus ingress' that passes every request through the ledger.
func (d *demo) openIngress(ctx context.Context, ledger *httpLedger) (*ingress.Service, error) {
	config := d.config
	config.InstanceID += "-http"
	config.StateDir = filepath.Join(config.StateDir, config.InstanceID)
	requests, err := ingress.NewService(d.ingress, config.Config, d.routes, d.registererOf(config.InstanceID), d.log)
	if err != nil {
		return nil, err
	}
	requests.Around(ledger.around)
	if err := requests.Listen(ctx); err != nil {
		return nil, fmt.Errorf("choose another address, such as --http=127.0.0.1:0: %w", err)
	}
	return requests, nil
}

// errUnready means that the user stopped the demo too early for a result.
var errUnready = errors.New("stopped before it was ready")

// keepOpen serves requests and executes operations until ctx is done. It also returns when running is done,
// that is, when a process has failed.
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
	// The ingress does not wait for the verdict on an event with a missing key, so keepOpen waits here until
	// these events are judged.
	_, err = d.await(running, ledger.acceptedMissingKey(), func() (int, error) {
		counts, err := gatherVerdicts(d.registry)
		return counts[dedup.MissingKey.String()], err
	})
	return err
}

// guide prints commands that the user can try.
func (d *demo) guide(addr string) {
	cli.Printf(d.out, "oncebus demo: accepting requests at http://%s, broker %s, %d processes of %d workers.\n"+
		"Try these in another terminal. Ctrl-C here ends the demo, reads the output and verifies the result.\n\n  SECRET=%s\n",
		addr, strings.Join(d.broker.addrs, ","), processCount, workerCount, d.secret)
	for _, step := range examples(addr) {
		cli.Printf(d.out, "\n  # %s\n", step.about)
		for _, command := range step.commands {
			cli.Printf(d.out, "  %s\n", command)
		}
	}
	cli.Printf(d.out, "\n")
}
