package demo

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"
	"go.yaml.in/yaml/v4"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/cmd/oncebus/page"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(kafkatest.Main(m), goleak.IgnoreAnyFunction("oncebus/processor/kafka.(*Budget).collectNow")) // ends with the garbage collection
}

// commands contains only the demo.
var commands = cli.Commands{Command}

// execute runs 'oncebus demo' with environ as the whole environment.
func execute(ctx context.Context, environ []string, args ...string) clitest.Result {
	return clitest.Run(ctx, commands, environ, "", append([]string{"demo"}, args...)...)
}

// TestDemoRoutesAreThoseDeployed: the demo's routes are the shipped ones, except for
// the differences that routes.yaml and http_routes.yaml describe.
func TestDemoRoutesAreThoseDeployed(t *testing.T) {
	compared := 0
	for _, text := range []string{routesYAML, httpRoutesYAML} {
		for name, got := range routesIn(t, text) {
			if name == "deliveries" { // the demo's own
				continue
			}
			compared++
			shipped, err := os.ReadFile(filepath.Join("..", "..", "..", "deployments", "routes", name+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			if want := routesIn(t, string(shipped))[name]; !reflect.DeepEqual(got, want) {
				t.Errorf("the demo has %v\nshipped is   %v", got, want)
			}
		}
	}
	if compared != 3 {
		t.Errorf("%d routes were compared", compared)
	}
}

// routesIn returns the routes of a file by name, without the parts that the demo
// changes: signatures, the header with its numbers, and the wait for an outcome.
func routesIn(t *testing.T, text string) map[string]any {
	t.Helper()
	var file struct{ Routes []map[string]any }
	if err := yaml.Unmarshal([]byte(text), &file); err != nil {
		t.Fatal(err)
	}
	routes := map[string]any{}
	for _, r := range file.Routes {
		http := r["http"].(map[string]any)
		delete(http, "signature")
		delete(http, "headers")
		delete(http, "answer")
		delete(http, "answer_timeout")
		if outcomes, ok := http["outcomes"].(map[string]any); ok {
			delete(outcomes, "signature")
		}
		routes[r["name"].(string)] = r
	}
	return routes
}

// TestRoutesWithoutHTTP: without --http no route has an http part.
func TestRoutesWithoutHTTP(t *testing.T) {
	routes, err := parseRoutes(false, "")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes.Routes {
		if r.HTTP != nil {
			t.Errorf("route %s has an http part", r.Name)
		}
	}
}

func TestDemoEndToEnd(t *testing.T) {
	var counts [2]result
	for i := range counts {
		got := execute(t.Context(), []string{"ONCEBUS_BROKERS=unused.invalid:1"}, "--seed", "42", "--events", "4000")
		lines := strings.Split(strings.TrimSuffix(got.Stdout, "\n"), "\n")
		if err := json.Unmarshal([]byte(lines[len(lines)-1]), &counts[i]); err != nil || got.Code != cli.ExitStopped {
			t.Fatalf("exit code %d, %v\n%s%s", got.Code, err, got.Stdout, got.Stderr)
		}
		for _, want := range []string{"seed 42", " s  produced ", "records produced"} {
			if !strings.Contains(got.Stderr, want) {
				t.Errorf("%q is not shown:\n%s", want, got.Stderr)
			}
		}
		counts[i].Seconds = 0
	}
	r := counts[0]
	if counts[0] != counts[1] {
		t.Errorf("the same seed gives %+v and %+v", counts[0], counts[1])
	}
	if r.Events != 4000 || r.Unique+r.Duplicates+r.Invalid != 4000 || r.Missing != 0 || r.Extra != 0 || r.Altered != 0 || r.Unique < 1000 || r.Duplicates < 1000 || r.Invalid < 50 {
		t.Errorf("%+v", r)
	}
}

// TestDemoStays: it goes on sending, the page has the figures of /metrics, and when it is stopped
// every record is verified.
func TestDemoStays(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var stdout, stderr clitest.Buffer
	code := make(chan int, 1)
	go func() {
		code <- commands.Run(ctx, []string{"demo", "--events", "1000", "--stay"}, cli.Process{Stdin: strings.NewReader(""), Stdout: &stdout, Stderr: &stderr})
	}()
	var figures page.Snapshot
	await := func(what string, holds func() bool) {
		t.Helper()
		limit, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := kafkatest.Await(limit, what, func(context.Context) error {
			if !holds() {
				return errors.New("not yet")
			}
			return nil
		}); err != nil {
			t.Fatalf("%v\n%s", err, stderr.String())
		}
	}
	var address string
	await("the address of the page", func() bool {
		_, rest, found := strings.Cut(stderr.String(), "live page at ")
		address, _, _ = strings.Cut(rest, "/\n")
		return found
	})
	client := &http.Client{}
	defer client.CloseIdleConnections()
	get := func(path string) string {
		status, body, err := clitest.Get(ctx, client, address+path)
		if err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d, %v", path, status, err)
		}
		return body
	}
	if !strings.Contains(get("/"), `src="page/page.js"`) {
		t.Error("the page is not at /")
	}
	await("further records", func() bool {
		if err := json.Unmarshal([]byte(get("/snapshot")), &figures); err != nil {
			t.Fatal(err)
		}
		return figures.Events.Total > 1300
	})
	if len(figures.Tasks) != partitionCount || figures.Role != page.RoleDemo || !figures.Ready || len(figures.Routes) != 2 {
		t.Errorf("%+v", figures)
	}
	for _, task := range figures.Tasks {
		if task.LagRecords < 0 || !strings.HasPrefix(task.Process, "demo-") {
			t.Errorf("%+v", task)
		}
	}
	if !strings.Contains(get("/metrics"), `oncebus_events_total{process="demo-1",route="signals",verdict="unique"}`) {
		t.Error("/metrics lacks the processes")
	}
	stop()
	var r result
	if c := <-code; c != cli.ExitStopped || json.Unmarshal([]byte(stdout.String()), &r) != nil || !r.verified() || r.Events <= 1300 {
		t.Errorf("exit code %d, %s\n%s", c, stdout.String(), stderr.String())
	}
}

// TestDemoOnAGivenBroker runs the demo as on a real Kafka: with a prefix, and it
// checks that no topic or group remains.
func TestDemoOnAGivenBroker(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 1)
	cluster.CreateTopic("somebody.elses", 1)
	var created atomic.Int64
	cluster.Intercept(func(r kmsg.Request) (kmsg.Response, error, bool) {
		for _, topic := range r.(*kmsg.CreateTopicsRequest).Topics {
			if created.Add(1); !strings.HasPrefix(topic.Topic, "oncebus-demo-") {
				t.Errorf("topic %s was created", topic.Topic)
			}
		}
		return nil, nil, false
	}, kmsg.CreateTopics)
	got := execute(t.Context(), nil, "--events", "1000", "--brokers", strings.Join(cluster.ListenAddrs(), ","))
	if got.Code != cli.ExitStopped || !strings.HasPrefix(got.Stdout, `{"events":1000,`) {
		t.Fatalf("%+v", got)
	}
	admin := cluster.Admin()
	topics, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if left := topics.Names(); !slices.Equal(left, []string{"signals.raw", "somebody.elses"}) || created.Load() < 5 {
		t.Errorf("%d topics were created, %q remain", created.Load(), left)
	}
	groups, err := admin.ListGroups(t.Context())
	if err != nil || len(groups) > 0 {
		t.Errorf("groups left: %v, %v", groups.Groups(), err)
	}
}

// TestRealDemo is the same on Apache Kafka.
func TestRealDemo(t *testing.T) {
	broker := kafkatest.Shared(t)
	got := execute(t.Context(), nil, "--seed", "7", "--brokers", strings.Join(broker.Seeds(), ","))
	if got.Code != cli.ExitStopped || !strings.Contains(got.Stdout, `"missing":0,"extra":0,"altered":0,"seed":7,`) {
		t.Fatalf("%+v", got)
	}
	t.Log(got.Stdout)
	admin := broker.Admin()
	topics, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	groups, err := admin.ListGroups(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(topics.Names(), groups.Groups()) {
		if strings.HasPrefix(name, "oncebus-demo-") {
			t.Errorf("%s is left", name)
		}
	}
}

func TestDemoWithoutABroker(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := execute(ctx, nil, "--brokers", "127.0.0.1:1")
	if got.Code != cli.ExitFailed || got.Stdout != "" || !strings.Contains(got.Stderr, "oncebus demo: create the input topics on 127.0.0.1:1") {
		t.Errorf("%+v", got)
	}
}
