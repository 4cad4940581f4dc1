package ingress

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// followRoutes are answerRoutes with server-sent events.
var followRoutes = strings.NewReplacer("path: /payments\n", "path: /payments\n      events: {max_connections: 2}\n", "path: /short\n", "path: /short\n      events: {}\n").Replace(answerRoutes)

// follower is a client of server-sent events.
type follower struct {
	t        *testing.T
	response *http.Response
	lines    *bufio.Scanner
	lastID   string
	end      func()
}

// follow connects to a path's events.
func (i *instance) follow(path, lastID string, headers ...string) *follower {
	i.b.t.Helper()
	ctx, cancel := context.WithTimeout(i.b.t.Context(), time.Minute)
	if lastID != "" {
		headers = append([]string{"Last-Event-ID", lastID}, headers...)
	}
	transport := &http.Transport{}
	client := &http.Client{Transport: transport}
	r, err := client.Do(i.request(http.MethodGet, path, http.NoBody, headers...).WithContext(ctx)) //nolint:bodyclose // end closes it
	if err != nil {
		i.b.t.Fatal(err)
	}
	f := &follower{t: i.b.t, response: r, lines: bufio.NewScanner(r.Body), lastID: lastID}
	f.lines.Buffer(nil, 1<<20)
	f.end = func() {
		cancel()
		_ = r.Body.Close()
		transport.CloseIdleConnections()
	}
	i.b.t.Cleanup(f.end)
	return f
}

// next reads events until one has data, and returns its name and data.
func (f *follower) next() (name string, data pushed) {
	f.t.Helper()
	name, data, ok := f.read()
	if !ok {
		f.t.Fatalf("the stream ended: %v", f.lines.Err())
	}
	return name, data
}

// read is next. ok is false at the end of the stream.
func (f *follower) read() (name string, data pushed, ok bool) {
	f.t.Helper()
	var text string
	for f.lines.Scan() {
		field, value, _ := strings.Cut(f.lines.Text(), ": ")
		switch field {
		case "id":
			f.lastID = value
		case "event":
			name = value
		case "data":
			text = value
		case "":
			if text == "" {
				continue
			}
			if err := json.Unmarshal([]byte(text), &data); err != nil {
				f.t.Fatalf("%v: %s", err, text)
			}
			return name, data, true
		}
	}
	return "", pushed{}, false
}

// greeted reads the greeting of a stream.
func (f *follower) greeted() *follower {
	f.t.Helper()
	if f.response.StatusCode != http.StatusOK || f.response.Header.Get("Content-Type") != eventStream {
		f.t.Fatalf("status %d, %v", f.response.StatusCode, f.response.Header)
	}
	for f.lines.Scan() && f.lines.Text() != "" {
		if id, ok := strings.CutPrefix(f.lines.Text(), "id: "); ok {
			f.lastID = id
		}
	}
	return f
}

// complete pays by HTTP, as the n-th payment of the topic, and waits for nothing.
func (i *instance) complete(key string, n int, result string, headers ...string) {
	i.b.t.Helper()
	i.post("/payments", fmt.Sprintf(`{"amount":%d,"requestId":%q}`, n, key), paying(key, "Prefer", "respond-async")...).want(i.b.t, key, 202)
	i.postOutcome("/payments", i.b.tokens("payments.unique", n)[n-1], "completed", result, headers...).want(i.b.t, key, 202)
}

func followBench(t *testing.T) (*bench, *instance) {
	t.Helper()
	b := newBench(t, followRoutes, oneTask)
	i := b.serve(withAnswerSecrets)
	return b, i
}

// TestFollowerGetsItsOutcomes: those of its path, and after a restart of all processes those
// since its last id, at another process.
func TestFollowerGetsItsOutcomes(t *testing.T) {
	t.Parallel()
	b, i := followBench(t)
	f := i.follow("/payments/events", "", bearer...).greeted()
	i.complete("k1", 1, `{"paid":1}`, "Content-Type", "application/json", "Oncebus-Result-Status", "201")
	name, got := f.next()
	want := pushed{Route: "payments", Key: got.Key, Verdict: "unique", ClaimStatus: "completed", Attempt: 1, Source: got.Source, Request: "k1", Status: 201, ContentType: "application/json", Body: `{"paid":1}`}
	if fmt.Sprint(got) != fmt.Sprint(want) || name != "outcome" || len(got.Key) != 64 || !strings.HasPrefix(got.Source, "app-repartition/0/") {
		t.Errorf("%s %+v, want %+v", name, got, want)
	}
	i.complete("k2", 2, "\xff", "Content-Type", "application/octet-stream")
	if _, got := f.next(); got.Request != "k2" || string(got.BodyBase64) != "\xff" || got.Body != "" {
		t.Errorf("%+v", got)
	}
	f.end()
	i.complete("k3", 3, `3`)
	b.read("payments.replies", 3)
	i.stop()
	b.stop()
	b.judge()
	other := b.serveAs("other", withAnswerSecrets)
	g := other.follow("/payments/events", f.lastID, bearer...)
	other.complete("k4", 4, `4`)
	for _, want := range []string{"k3", "k4"} {
		if name, got := g.next(); name != "outcome" || got.Request != want {
			t.Errorf("%s %+v, want %s", name, got, want)
		}
	}
}

// TestFollowerGetsNoOneElsesOutcomes: not those of another path, nor those of events from Kafka.
func TestFollowerGetsNoOneElsesOutcomes(t *testing.T) {
	t.Parallel()
	b, i := followBench(t)
	other := []string{"Authorization", "Bearer token-of-sender-b"}
	f := i.follow("/payments/events", "", bearer...).greeted()
	i.get("/payments/events").problem(t, "without a token", "signature", 401)
	i.get("/payments/events", other...).problem(t, "with that of another path", "signature", 401)
	i.get("/transfers/events", bearer...).problem(t, "without events", "not-found", 404)
	i.send(http.MethodPost, "/payments/events", "{}", bearer...).problem(t, "POST", "method", 405)
	i.get("/payments/events", append([]string{"Last-Event-ID", "AQ"}, bearer...)...).problem(t, "no id", "last-event-id", 400)

	b.produce("payments.raw", []byte(`{"amount":1,"requestId":"kafka"}`), "idempotency-key", "from-kafka")
	i.postOutcome("/payments", b.tokens("payments.unique", 1)[0], "completed", "1").want(t, "from Kafka", 202)
	i.post("/short", `{}`, append([]string{"Idempotency-Key", "s", "Prefer", "respond-async"}, other...)...).want(t, "another path", 202)
	b.read("payments.replies", 1)
	i.complete("k2", 2, `2`)
	if _, got := f.next(); got.Request != "k2" {
		t.Errorf("the follower gets %+v", got)
	}
}

// TestFollowersAreBounded: by the route's limit, and a stop of the server ends them at once.
func TestFollowersAreBounded(t *testing.T) {
	t.Parallel()
	b, i := followBench(t)
	first := i.follow("/payments/events", "", bearer...).greeted()
	i.follow("/payments/events", "", bearer...).greeted()
	i.get("/payments/events", bearer...).header(t, "third", "Retry-After", "1").problem(t, "third", "busy", 503)
	if n := i.count("oncebus_http_followers"); n != 2 {
		t.Errorf("%v followers", n)
	}
	first.end()
	var again *follower
	b.wait("a place to be free", func() bool {
		again = i.follow("/payments/events", first.lastID, bearer...)
		return again.response.StatusCode == http.StatusOK
	})
	i.stop() // it would wait for 20 s of ONCEBUS_INGRESS_DRAIN
	for again.lines.Scan() {
	}
	if err := again.lines.Err(); err != nil {
		t.Errorf("the stream ends with %v", err)
	}
	if n := i.count("oncebus_http_followers"); n != 0 {
		t.Errorf("%v followers after the stop", n)
	}
}

// TestSlowFollowerIsDisconnected: one that does not read, and it goes on from its id.
func TestSlowFollowerIsDisconnected(t *testing.T) {
	t.Parallel()
	routes := strings.NewReplacer("timeout: 50s", "timeout: 1s", "answer_timeout: 49s", "answer_timeout: 1s").Replace(followRoutes) + "      answer_timeout: 1s\n"
	b := newBench(t, routes, oneTask)
	i := b.serve(func(c *Config) {
		withAnswerSecrets(c)
		c.ReadTimeout, c.WriteTimeout = time.Second, 2*time.Second
	})
	f := i.follow("/payments/events", "", bearer...).greeted()
	const outcomes = 400
	result := strings.Repeat("x", 60_000)
	for n := range outcomes {
		b.client.Produce(t.Context(), &kgo.Record{Topic: "payments.replies", Value: []byte(result), Headers: []kgo.RecordHeader{
			{Key: "oncebus-route", Value: []byte("payments")}, {Key: "oncebus-verdict", Value: []byte("unique")}, {Key: "oncebus-claim-status", Value: []byte("completed")},
			{Key: "oncebus-source", Value: fmt.Append(nil, "app-repartition/0/", n)}, {Key: "oncebus-attempt", Value: []byte("1")}, {Key: "oncebus-request-id", Value: fmt.Append(nil, n)},
		}}, nil)
	}
	if err := b.client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.wait("the follower to be disconnected", func() bool { return i.count("oncebus_http_followers") == 0 })
	b.wait("the line of its end", func() bool {
		return slices.ContainsFunc(b.requests(), func(line map[string]any) bool {
			return line["path"] == "/payments/events" && strings.Contains(fmt.Sprint(line["reason"]), "timeout")
		})
	})
	got := map[string]bool{}
	g := i.follow("/payments/events", f.lastID, bearer...)
	for len(got) < outcomes {
		_, data, ok := g.read()
		if !ok { // on a slow machine it is slow, too
			g = i.follow("/payments/events", g.lastID, bearer...)
			continue
		}
		got[data.Request] = true
	}
}

// TestFollowerLearnsOfAGap: the topic was recreated since its last id.
func TestFollowerLearnsOfAGap(t *testing.T) {
	t.Parallel()
	_, i := followBench(t)
	f := i.follow("/payments/events", "", bearer...).greeted()
	i.complete("k1", 1, `1`)
	f.next()
	raw, err := base64.RawURLEncoding.DecodeString(f.lastID)
	if err != nil {
		t.Fatal(err)
	}
	raw[1]++
	f.end()
	g := i.follow("/payments/events", base64.RawURLEncoding.EncodeToString(raw), bearer...)
	if name, _ := g.next(); name != "gap" {
		t.Errorf("the first event is %s", name)
	}
	if name, data := g.next(); name != "outcome" || data.Request != "k1" {
		t.Errorf("%s %+v", name, data)
	}
}
