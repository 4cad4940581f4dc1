package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
)

// runningDemo is a running 'oncebus demo --http'.
type runningDemo struct {
	t      *testing.T
	url    string
	stop   context.CancelFunc
	code   chan int
	stdout clitest.Buffer
	stderr *embedded.Log
}

var demoURL = regexp.MustCompile(`accepting requests at (http://\S+), broker [^\n]*\n[^\n]*\n\n  SECRET=(\w+)\n`)

// startDemoHTTP starts a demo at a free port and waits until it accepts requests.
func startDemoHTTP(t *testing.T, args ...string) *runningDemo {
	t.Helper()
	d := &runningDemo{t: t, code: make(chan int, 1), stderr: embedded.NewLog(t)}
	var ctx context.Context
	ctx, d.stop = context.WithCancel(t.Context())
	t.Cleanup(d.stop)
	go func() {
		d.code <- commands.Run(ctx, append([]string{"demo", "--http=127.0.0.1:0"}, args...), cli.Process{Stdout: &d.stdout, Stderr: d.stderr})
	}()
	d.url = d.await(demoURL)
	return d
}

// await waits until the demo has printed text that matches, and returns the first
// group.
func (d *runningDemo) await(what *regexp.Regexp) (group string) {
	d.t.Helper()
	embedded.Wait(d.t, what.String(), func() bool {
		m := what.FindStringSubmatch(d.stderr.String())
		if m != nil {
			group = m[1]
			return true
		}
		select {
		case code := <-d.code:
			d.t.Fatalf("ended with exit code %d", code)
		default:
		}
		return false
	})
	return group
}

// end stops the demo like Ctrl-C and returns its result.
func (d *runningDemo) end() (result httpResult) {
	d.t.Helper()
	d.stop()
	select {
	case code := <-d.code:
		if err := json.Unmarshal([]byte(d.stdout.String()), &result); err != nil || code != cli.ExitStopped {
			d.t.Fatalf("exit code %d, %v\n%s", code, err, d.stdout.String())
		}
	case <-time.After(60 * time.Second):
		d.t.Fatal("not stopped")
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

// TestDemoByHTTP runs the demo on a given broker: with a prefix, and without topics
// left over.
func TestDemoByHTTP(t *testing.T) {
	cluster := embedded.Start(t)
	cluster.CreateTopic("signals.raw", 1)
	demoByHTTP(t, cluster.ListenAddrs())
	if left := topicNames(t, cluster.Admin()); !slices.Equal(left, []string{"signals.raw"}) {
		t.Errorf("topics left: %q", left)
	}
}

// TestRealDemoByHTTP is the same on Apache Kafka.
func TestRealDemoByHTTP(t *testing.T) {
	broker := kafkatest.Shared(t)
	demoByHTTP(t, broker.Seeds())
	for _, name := range topicNames(t, broker.Admin()) {
		if strings.HasPrefix(name, "oncebus-demo-") {
			t.Errorf("%s is left", name)
		}
	}
}

func topicNames(t *testing.T, admin *kadm.Client) []string {
	t.Helper()
	topics, err := admin.ListTopics(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return topics.Names()
}

// demoByHTTP sends each request many times at once.
func demoByHTTP(t *testing.T, brokers []string) {
	t.Helper()
	d := startDemoHTTP(t, "--brokers", strings.Join(brokers, ","))
	const times = 20
	requests := []struct {
		path, body string
		want       map[int]int // by status
	}{
		{"/signals", `{"traceId":"t1"}`, map[int]int{202: 1, 409: times - 1}},
		{"/webhooks", `{"eventId":"e1","resourceId":"p9","eventType":"paid"}`, map[int]int{200: times}},
		{"/operations", `{"accountId":"a1","requestId":"r1","operation":"WITHDRAW"}`, map[int]int{202: 1, 409: times - 1}},
		{"/operations", `{"accountId":"a1","operation":"BUY"}`, map[int]int{202: times}}, // no request id: each of them runs
		{"/signals", `{"traceId":`, map[int]int{400: times}},
		{"/deliveries", `{}`, map[int]int{401: times}},
		{"/nowhere", `{}`, map[int]int{404: times}},
	}
	for _, request := range requests {
		var wg sync.WaitGroup
		var mu sync.Mutex
		got := map[int]int{}
		for range times {
			wg.Go(func() {
				// The demo must replace a number of the client.
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
	want := httpResult{Events: 4 * times, Unique: 3 + times, Duplicates: 3 * (times - 1), Refused: 2 * times}
	if got := d.end(); got != want {
		t.Errorf("%+v, want %+v\n%s", got, want, d.stderr.String())
	}
}

func TestDemoHTTPAddressInUse(t *testing.T) {
	listener := clitest.Listen(t)
	defer listener.Close()
	got := execute(t.Context(), nil, "--http="+listener.Addr().String())
	if got.Code != cli.ExitFailed || got.Stdout != "" || !strings.Contains(got.Stderr, "oncebus demo: choose another address, such as --http=127.0.0.1:0: ") {
		t.Errorf("%+v", got)
	}
}

func TestDemoHTTPStoppedBeforeItIsReady(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := execute(ctx, nil, "--http=127.0.0.1:0")
	if got.Code != cli.ExitFailed || got.Stdout != "" {
		t.Errorf("%+v", got)
	}
}
