package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/processor/kafkatest"
)

// runningDemo is 'oncebus demo --http' under way.
type runningDemo struct {
	t              *testing.T
	url            string
	stop           context.CancelFunc
	code           chan int
	stdout, stderr syncBuffer
}

var demoURL = regexp.MustCompile(`taking requests at (http://\S+), broker [^\n]*\n[^\n]*\n\n  SECRET=(\w+)\n`)

// startDemoHTTP starts a demo at any port and waits until it takes requests.
func startDemoHTTP(t *testing.T, args ...string) *runningDemo {
	t.Helper()
	d := &runningDemo{t: t, code: make(chan int, 1)}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(t.Context())
	t.Cleanup(d.stop)
	go func() {
		d.code <- commands().Run(ctx, append([]string{"demo", "--http=127.0.0.1:0"}, args...), cli.Process{Stdout: &d.stdout, Stderr: &d.stderr})
	}()
	d.url = d.await(demoURL)
	return d
}

// await waits until the demo has printed something and returns its first part.
func (d *runningDemo) await(what *regexp.Regexp) string {
	d.t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for {
		if m := what.FindStringSubmatch(d.stderr.String()); m != nil {
			return m[1]
		}
		select {
		case <-tick.C:
		case code := <-d.code:
			d.t.Fatalf("ended with exit code %d:\n%s", code, d.stderr.String())
		case <-deadline:
			d.t.Fatalf("no %v in\n%s", what, d.stderr.String())
		}
	}
}

// end stops the demo as Ctrl-C does and returns what it says.
func (d *runningDemo) end() (result httpResult) {
	d.t.Helper()
	d.stop()
	select {
	case code := <-d.code:
		if err := json.Unmarshal([]byte(d.stdout.String()), &result); err != nil || code != cli.ExitStopped {
			d.t.Fatalf("exit code %d, %v\n%s\n%s", code, err, d.stdout.String(), d.stderr.String())
		}
	case <-time.After(60 * time.Second):
		d.t.Fatalf("not stopped:\n%s", d.stderr.String())
	}
	result.Seconds = 0
	return result
}

// post sends one request on a connection of its own.
func (d *runningDemo) post(path, body string, headers ...string) (status int, answer string, header http.Header) {
	d.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 30 * time.Second}
	request, err := http.NewRequestWithContext(d.t.Context(), http.MethodPost, d.url+path, strings.NewReader(body))
	if err != nil {
		d.t.Error(err)
		return 0, "", nil
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(request)
	if err != nil {
		d.t.Error(err)
		return 0, "", nil
	}
	defer response.Body.Close()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		d.t.Error(err)
	}
	return response.StatusCode, string(b), response.Header
}

// TestDemoByHTTP runs it on a given broker: under a prefix of its own, and
// leaving nothing behind.
func TestDemoByHTTP(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "signals.raw"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	demoByHTTP(t, cluster.ListenAddrs())
	if left := topicNamesOn(t, cluster.ListenAddrs()); !slices.Equal(left, []string{"signals.raw"}) {
		t.Errorf("topics left: %q", left)
	}
}

// TestRealDemoByHTTP is the same on Apache Kafka.
func TestRealDemoByHTTP(t *testing.T) {
	broker := kafkatest.Shared(t)
	demoByHTTP(t, broker.Seeds())
	for _, name := range topicNamesOn(t, broker.Seeds()) {
		if strings.HasPrefix(name, "oncebus-demo-") {
			t.Errorf("%s is left", name)
		}
	}
}

func topicNamesOn(t *testing.T, brokers []string) []string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	topics, err := kadm.NewClient(client).ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return topics.Names()
}

// demoByHTTP sends each request many times at once.
func demoByHTTP(t *testing.T, brokers []string) {
	t.Helper()
	d := startDemoHTTP(t, "--brokers", strings.Join(brokers, ","))
	const copies = 20
	requests := []struct {
		path, body string
		want       map[int]int // by status
	}{
		{"/signals", `{"traceId":"t1"}`, map[int]int{202: 1, 409: copies - 1}},
		{"/webhooks", `{"eventId":"e1","resourceId":"p9","eventType":"paid"}`, map[int]int{202: 1, 200: copies - 1}},
		{"/operations", `{"accountId":"a1","requestId":"r1","operation":"WITHDRAW"}`, map[int]int{202: 1, 409: copies - 1}},
		{"/operations", `{"accountId":"a1","operation":"BUY"}`, map[int]int{202: copies}}, // no request id: each of them runs
		{"/signals", `not JSON`, map[int]int{400: copies}},
		{"/deliveries", `{}`, map[int]int{401: copies}},
		{"/nowhere", `{}`, map[int]int{404: copies}},
	}
	for _, request := range requests {
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[int]int{}
		for range copies {
			wg.Go(func() {
				// A number that somebody else gives is not the demo's.
				status, _, _ := d.post(request.path, request.body, "Demo-Record", "0")
				mu.Lock()
				defer mu.Unlock()
				got[status]++
			})
		}
		wg.Wait()
		if fmt.Sprint(got) != fmt.Sprint(request.want) {
			t.Errorf("%s %s: %v, want %v", request.path, request.body, got, request.want)
		}
	}
	want := httpResult{Events: 4 * copies, Unique: 3 + copies, Duplicates: 3 * (copies - 1), Refused: 2 * copies}
	if got := d.end(); got != want {
		t.Errorf("%+v, want %+v\n%s", got, want, d.stderr.String())
	}
}

func TestDemoHTTPAddressInUse(t *testing.T) {
	listener := listenLocal(t)
	defer listener.Close()
	got := execute(t.Context(), nil, "", "demo", "--http="+listener.Addr().String())
	if got.code != cli.ExitFailed || got.stdout != "" || !strings.Contains(got.stderr, "oncebus demo: choose another address, as in --http=127.0.0.1:0: ") {
		t.Errorf("%+v", got)
	}
}

func TestDemoHTTPStoppedBeforeItIsReady(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := execute(ctx, nil, "", "demo", "--http=127.0.0.1:0")
	if got.code != cli.ExitFailed || got.stdout != "" {
		t.Errorf("%+v", got)
	}
}

// TestHTTPLedgerConvicts gives the ledger answers and outputs that disagree.
func TestHTTPLedgerConvicts(t *testing.T) {
	routes, err := demoRoutesOf(true, "")
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		status       int
		verdict, key string
	}
	record := func(number, key, verdict, value string) *kgo.Record {
		r := &kgo.Record{Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "oncebus-key", Value: []byte(key)}, {Key: "oncebus-verdict", Value: []byte(verdict)}}}
		if number != "" {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerRecord, Value: []byte(number)})
		}
		return r
	}
	first, copied := answer{202, "unique", "k"}, answer{409, "duplicate", "k"}
	for _, tt := range []struct {
		name    string
		answers []answer // to requests with their numbers as bodies
		outputs []*kgo.Record
		want    httpResult
	}{
		{"as told", []answer{first, copied}, []*kgo.Record{record("0", "k", "unique", "0")}, httpResult{Events: 2, Unique: 1, Duplicates: 1}},
		{"refused", []answer{{400, "missing_key", ""}, {401, "", ""}}, nil, httpResult{Refused: 2}},
		{"no answer, on the bus", []answer{{}, {504, "", "k"}, copied}, []*kgo.Record{record("1", "k", "unique", "1")},
			httpResult{Events: 1, Duplicates: 1, Unanswered: 2}},
		{"an accepted one is missing", []answer{first}, nil, httpResult{Events: 1, Missing: 1}},
		{"the first of a copy is missing", []answer{copied}, nil, httpResult{Events: 1, Duplicates: 1, Missing: 1}},
		{"a copy came out", []answer{first, copied}, []*kgo.Record{record("0", "k", "unique", "0"), record("1", "k", "unique", "1")},
			httpResult{Events: 2, Unique: 1, Duplicates: 1, Extra: 1}},
		{"a copy came out under another key", []answer{first, copied}, []*kgo.Record{record("0", "k", "unique", "0"), record("1", "j", "unique", "1")},
			httpResult{Events: 2, Unique: 1, Duplicates: 1, Extra: 1}},
		{"a refused one came out", []answer{{400, "", ""}}, []*kgo.Record{record("0", "k", "unique", "0")}, httpResult{Refused: 1, Extra: 1}},
		{"one twice", []answer{{202, "missing_key", ""}}, []*kgo.Record{record("0", "", "missing_key", "0"), record("0", "", "missing_key", "0")},
			httpResult{Events: 1, Unique: 1, Extra: 1}},
		{"a stranger", nil, []*kgo.Record{record("", "k", "unique", ""), record("0", "j", "unique", "")}, httpResult{Extra: 2}},
		{"other bytes", []answer{first}, []*kgo.Record{record("0", "k", "unique", "x")}, httpResult{Events: 1, Unique: 1, Altered: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newHTTPLedger(io.Discard, routes)
			for number, a := range tt.answers {
				h := l.around(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if b, err := io.ReadAll(r.Body); err != nil || string(b) != r.Header.Get("Demo-Record") {
						t.Errorf("request %q has the number %s, %v", b, r.Header.Get("Demo-Record"), err)
					}
					w.Header().Set("Oncebus-Key", a.key)
					w.Header().Set("Oncebus-Verdict", a.verdict)
					if a.status != 0 {
						w.WriteHeader(a.status)
					}
				}))
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", "/signals", strings.NewReader(strconv.Itoa(number))))
			}
			for _, r := range tt.outputs {
				l.output("signals", r)
			}
			got := l.close()
			if got != tt.want {
				t.Errorf("%+v, want %+v; %q", got, tt.want, l.faults)
			}
			if fine := tt.want.Missing+tt.want.Extra+tt.want.Altered == 0; got.proved() != fine || (len(l.faults) == 0) != fine {
				t.Errorf("proved: %v, faults %q", got.proved(), l.faults)
			}
		})
	}
}
