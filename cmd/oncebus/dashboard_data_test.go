//go:build unix

package main_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

// prometheusServer is a real Prometheus that scrapes processes every second.
type prometheusServer struct {
	t   *testing.T
	url string
}

var prometheusListens = regexp.MustCompile(`msg="?Listening on"? .*address=(\S+)`)

// needPrometheus ends a test for want of Prometheus, before it starts anything.
func needPrometheus(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("prometheus"); err != nil {
		kafkatest.Lack(t, "prometheus is not installed: the queries of the dashboard are not tested (.ci/run fetches it)")
	}
}

// startPrometheus runs the server until the test ends.
func startPrometheus(t *testing.T, targets ...string) *prometheusServer {
	t.Helper()
	// The job is that of prometheus.yml, whose name is the app in the dashboard.
	config := clitest.WriteFile(t, "prometheus.yml", fmt.Sprintf("global: {scrape_interval: 1s, scrape_timeout: 1s}\n"+
		"scrape_configs:\n  - job_name: oncebus\n    static_configs: [{targets: [%s]}]\n", strings.Join(targets, ", ")))
	cmd := exec.Command("prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(t.TempDir(), "data"), "--web.listen-address=127.0.0.1:0")
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address, read := make(chan string, 1), make(chan struct{})
	var log strings.Builder
	go func() {
		defer close(read)
		defer close(address)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			log.WriteString(lines.Text() + "\n")
			if m := prometheusListens.FindStringSubmatch(lines.Text()); m != nil {
				address <- m[1]
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // fails if it has ended, and Wait says how
		<-read
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("prometheus: %v\n%s", err, log.String())
		}
	})
	at, ok := <-address
	if !ok {
		t.Fatal("prometheus does not listen")
	}
	return &prometheusServer{t, "http://" + at}
}

// get calls the HTTP API and decodes the data of its response.
func (s *prometheusServer) get(path string, values url.Values, into any) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path+"?"+values.Encode(), http.NoBody)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	var answer struct {
		Status, Error string
		Data          json.RawMessage
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return fmt.Errorf("%s: %w", body, err)
	}
	if answer.Status != "success" {
		return errors.New(answer.Error)
	}
	return json.Unmarshal(answer.Data, into)
}

// values returns the finite values of a query.
func (s *prometheusServer) values(query string) (finite []float64, err error) {
	var data struct {
		Result []struct{ Value [2]any }
	}
	if err := s.get("/api/v1/query", url.Values{"query": {query}}, &data); err != nil {
		return nil, err
	}
	for _, series := range data.Result {
		text, _ := series.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, err
		}
		if !math.IsNaN(value) && !math.IsInf(value, 0) {
			finite = append(finite, value)
		}
	}
	return finite, nil
}

var labelValues = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)

// variables returns what Grafana replaces in the queries of the dashboard if all values of each variable are chosen.
func (s *prometheusServer) variables(d *dashboard) (*strings.Replacer, error) {
	// Several scrapes, and a run of this test, are within the range.
	replace := []string{"$__rate_interval", "30s"}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		query := labelValues.FindStringSubmatch(v.Definition)
		if query == nil {
			return nil, fmt.Errorf("variable %s: %q is no label_values(...)", v.Name, v.Definition)
		}
		var all []string
		match := strings.NewReplacer(replace...).Replace(query[1])
		if err := s.get("/api/v1/label/"+query[2]+"/values", url.Values{"match[]": {match}}, &all); err != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, err)
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("variable %s has no value for %s", v.Name, match)
		}
		for i := range all {
			all[i] = strings.ReplaceAll(regexp.QuoteMeta(all[i]), `\`, `\\`)
		}
		replace = append(replace, "$"+v.Name, "("+strings.Join(all, "|")+")")
	}
	return strings.NewReplacer(replace...), nil
}

const dashboardRoutes = `routes:
  - name: signals
    topics: [signals.raw]
    key: [{field: id}]
    window: 1h
    output: signals.unique
    duplicates: {to: signals.duplicates}
    sender: {field: id}
    dead_letter: dead
    http: {path: /signals, signature: {scheme: bearer, secret: SENDER}}
  - name: operations
    topics: [operations.raw]
    mode: claim
    key: [{field: id}]
    window: 1h
    output: operations.run
    outcomes: operations.outcomes
    replies: operations.replies
    lease: 1m
    dead_letter: dead
`

// dashboardTraffic sends rounds of events of every kind that a healthy app has.
type dashboardTraffic struct {
	t        *testing.T
	client   *kgo.Client
	ingress  *served
	executed int // the claims with an outcome
	round    int
}

// send sends one round and waits for its responses: a unique event, a duplicate and one without a key by HTTP and by Kafka,
// a claim and its outcome.
func (d *dashboardTraffic) send() {
	d.t.Helper()
	d.round++
	for _, want := range []int{202, 409} {
		if status := <-d.ingress.post(fmt.Sprintf(`{"id":"http-%d"}`, d.round)); status != want {
			d.t.Fatalf("status %d, want %d", status, want)
		}
	}
	var records []*kgo.Record
	for _, value := range []string{fmt.Sprintf(`{"id":"%d"}`, d.round), fmt.Sprintf(`{"id":"%d"}`, d.round), `{}`} {
		records = append(records, &kgo.Record{Topic: "signals.raw", Value: []byte(value)}, &kgo.Record{Topic: "operations.raw", Value: []byte(value)})
	}
	for n := range 100 { // one decision in 64 is timed
		records = append(records, &kgo.Record{Topic: "signals.raw", Value: fmt.Appendf(nil, `{"id":"%d-%d"}`, d.round, n)})
	}
	d.produce(records...)
	for d.executed < d.round {
		fetches := d.client.PollFetches(d.t.Context())
		if err := fetches.Err(); err != nil {
			d.t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			d.executed++
			d.produce(&kgo.Record{Topic: "operations.outcomes", Headers: []kgo.RecordHeader{
				withHeader("oncebus-claim-token", []byte(headerOf(r, "oncebus-claim-token"))), withHeader("oncebus-outcome", []byte("completed"))}})
		})
	}
}

func (d *dashboardTraffic) produce(records ...*kgo.Record) {
	d.t.Helper()
	if err := d.client.ProduceSync(d.t.Context(), records...).FirstErr(); err != nil {
		d.t.Fatal(err)
	}
}

// onlyInAFault are metrics without a series in a healthy app, whose panels then show 0.
var onlyInAFault = []string{
	"oncebus_refused_partitions", "oncebus_unknown_route_tasks", "oncebus_restore_stalled", "oncebus_refused_records_total",
	"oncebus_oversize_batches_total", "oncebus_kafka_connect_errors_total", "oncebus_kafka_write_errors_total",
	"oncebus_kafka_read_errors_total", "oncebus_kafka_throttled_seconds_total",
}

var (
	orZero     = regexp.MustCompile(` or vector\([^)]*\)`)
	comparison = regexp.MustCompile(` (==|!=|>|<|>=|<=) [0-9.]+`)
)

// TestRealDashboardHasData: a real Prometheus scrapes a process that judges and one that accepts events by HTTP. Every query of every
// panel has data. A query that says 0 for want of a fault also has data without that 0, so its labels match.
func TestRealDashboardHasData(t *testing.T) {
	t.Parallel()
	needPrometheus(t)
	cluster := embedded.Start(t)
	routes := clitest.WriteFile(t, "routes.yaml", dashboardRoutes)
	environ := ingressEnviron(t, cluster, "ONCEBUS_ROUTES="+routes)
	judge := serveCommand(t, "run", environ...)
	defer judge.stop()
	judge.ready()
	acceptor := serveCommand(t, "ingress", append(environ, "ONCEBUS_INGRESS_ADDR=127.0.0.1:0", "ONCEBUS_INSTANCE_ID=acceptor")...)
	defer acceptor.stop()
	acceptor.ready()
	server := startPrometheus(t, judge.adminAddr(), acceptor.adminAddr())

	d, known := readDashboard(t), metricsByName(t)
	traffic := &dashboardTraffic{t: t, ingress: acceptor,
		client: cluster.Client(kgo.ConsumeTopics("operations.run"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))}
	embedded.Wait(t, "a scrape of both processes", func() bool {
		up, err := server.values("up == 1")
		return err == nil && len(up) == 2
	})
	var missing []string
	deadline := time.Now().Add(dashboardDataMax)
	for {
		traffic.send()
		replacer, err := server.variables(&d)
		if err == nil {
			missing = server.missing(&d, replacer, known)
		} else {
			missing = []string{err.Error()}
		}
		if len(missing) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no data after %v and %d rounds of traffic:\n%s", dashboardDataMax, traffic.round, strings.Join(missing, "\n"))
		}
	}
	acceptor.stop()
	acceptor.ended()
	judge.stop()
	judge.ended()
}

// dashboardDataMax is how long a query may be without data; some scrapes are enough.
const dashboardDataMax = time.Minute

// missing returns the queries of the dashboard that have no data.
func (s *prometheusServer) missing(d *dashboard, variables *strings.Replacer, known map[string]metric) (missing []string) {
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			queries := []string{target.Expr}
			names, _ := metricsOfQuery(target.Expr, known)
			if !slices.ContainsFunc(names, func(name string) bool { return slices.Contains(onlyInAFault, name) }) {
				queries = append(queries, comparison.ReplaceAllString(orZero.ReplaceAllString(target.Expr, ""), ""))
			}
			for _, query := range queries {
				if values, err := s.values(variables.Replace(query)); err != nil || len(values) == 0 {
					missing = append(missing, fmt.Sprintf("panel %q: %s: %v", p.Title, query, err))
				}
			}
		}
	}
	return missing
}
