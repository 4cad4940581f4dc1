//go:build unix

package main_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// The tests in ingress_*_test.go are black box like those in real_*_test.go. Their HTTP clients sign requests themselves.

// webhookKey is the key of Standard Webhooks signatures; webhookSecret is its text form.
const webhookKey = "a key of 24 bytes or more"

// shippedSecrets are the secrets of the shipped files, by name.
var shippedSecrets = map[string]string{
	"SIGNALS": "token-of-signals", "WEBHOOKS": webhookSecret(), "ECONOMY_WEBHOOKS": webhookSecret(),
	"OPERATIONS": "secret-of-operations", "OPERATIONS_EXECUTOR": "secret-of-their-executor",
	"ORDERS": "secret-of-orders", "ORDERS_EXECUTOR": "secret-of-their-exchange",
	"ECONOMY": "secret-of-economy", "ECONOMY_EXECUTOR": "secret-of-its-executor",
}

func webhookSecret() string { return "whsec_" + base64.StdEncoding.EncodeToString([]byte(webhookKey)) }

// ingressSettings are the settings of an ingress.
func ingressSettings(settings ...string) []string {
	all := []string{"INGRESS_ADDR=127.0.0.1:0", "COMMIT_INTERVAL=20ms"}
	for _, name := range slices.Sorted(maps.Keys(shippedSecrets)) {
		all = append(all, "INGRESS_SECRET_"+name+"="+shippedSecrets[name])
	}
	return append(all, settings...)
}

// signer signs a body with a time.
type signer func(h http.Header, body string, at time.Time)

func unsigned(http.Header, string, time.Time) {}

func withBearer(token string) signer {
	return func(h http.Header, _ string, _ time.Time) { h.Set("Authorization", "Bearer "+token) }
}

// signalsURL is the path of the shipped signals.yaml with its token, as TradingView sends it: without a header of its own.
var signalsURL = "/signals?token=" + shippedSecrets["SIGNALS"]

// withHMAC signs timestamp, dot and body, as the shipped files require, with one of their secrets.
func withHMAC(name string) signer {
	return func(h http.Header, body string, at time.Time) {
		timestamp := strconv.FormatInt(at.Unix(), 10)
		h.Set("X-Timestamp", timestamp)
		h.Set("X-Signature", hex.EncodeToString(sum(shippedSecrets[name], timestamp+"."+body)))
	}
}

// asWebhook signs as Standard Webhooks require. Every delivery has the same id, so that no verdict depends on it.
func asWebhook(h http.Header, body string, at time.Time) {
	timestamp := strconv.FormatInt(at.Unix(), 10)
	h.Set("Webhook-Id", "msg_1")
	h.Set("Webhook-Timestamp", timestamp)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(sum(webhookKey, "msg_1."+timestamp+"."+body)))
}

func sum(key, text string) []byte {
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// sender sends requests to one process.
type sender struct {
	*service
	url    string
	client *http.Client
}

// open returns a client of a process when the process accepts requests.
func (w *world) open(s *service) *sender {
	w.t.Helper()
	transport := &http.Transport{MaxIdleConnsPerHost: 1024}
	w.t.Cleanup(transport.CloseIdleConnections)
	d := &sender{s, "http://" + s.await("ingress listening")["addr"].(string), &http.Client{Transport: transport}}
	d.awaitReady()
	return d
}

// startIngress starts `oncebus ingress`.
func (w *world) startIngress(instance string, settings ...string) *sender {
	w.t.Helper()
	return w.open(w.startAs("ingress", instance, ingressSettings(settings...)...))
}

// stop stops the process. It first closes idle connections, for which a draining
// server would wait several seconds.
func (d *sender) stop() {
	d.t.Helper()
	d.client.CloseIdleConnections()
	d.service.stop()
}

// answer is a response.
type answer struct {
	t      *testing.T
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %v %s", a.status, a.header, a.body) }

func (d *sender) do(req *http.Request) (answer, error) {
	resp, err := d.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{d.t, resp.StatusCode, resp.Header, string(body)}, err
}

// try sends one request, signed at a time, and returns response and error. headers are name, value, name, value.
func (d *sender) try(ctx context.Context, path string, sign signer, at time.Time, body string, headers ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, d.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	for n := 0; n < len(headers); n += 2 {
		req.Header.Set(headers[n], headers[n+1])
	}
	sign(req.Header, body, at)
	return d.do(req)
}

// later sends a request and returns its response later. A request without a response fails the test.
func (d *sender) later(path string, sign signer, body string, headers ...string) <-chan answer {
	promise := make(chan answer, 1)
	go func() {
		ctx, cancel := context.WithTimeout(d.t.Context(), realDeadline)
		defer cancel()
		a, err := d.try(ctx, path, sign, time.Now(), body, headers...)
		if err != nil {
			d.t.Errorf("process %s: POST %s %s: %v", d.Name, path, body, err)
			a.t = d.t
		}
		promise <- a
	}()
	return promise
}

func (d *sender) post(path string, sign signer, body string, headers ...string) answer {
	d.t.Helper()
	return <-d.later(path, sign, body, headers...)
}

// outcome sends the outcome of an event, like an executor without a Kafka client.
func (d *sender) outcome(path, secret string, event *kgo.Record, outcome, value string, headers ...string) {
	d.t.Helper()
	headers = append([]string{"Oncebus-Claim-Token", headerOf(event, "oncebus-claim-token"), "Oncebus-Outcome", outcome}, headers...)
	if a := d.post(path+"/outcomes", withBearer(shippedSecrets[secret]), value, headers...); a.status != http.StatusAccepted {
		d.t.Fatalf("outcome %s got %v", outcome, a)
	}
}

const accepted = `{"status":"accepted"}`

// dispatched is the body of the response to a request of a claim route that did not wait for its outcome, as async asks.
const dispatched = `{"status":"accepted","claim_status":"in_progress"}` + "\n"

var async = []string{"Prefer", "respond-async"}

// is checks status and body of a response, and that its content type is JSON unless it has another.
func (a answer) is(what string, status int, body string) {
	a.t.Helper()
	a.isOf(what, status, "application/json", body)
}

func (a answer) isOf(what string, status int, contentType, body string) {
	a.t.Helper()
	if a.status != status || a.body != body || a.header.Get("Content-Type") != contentType {
		a.t.Errorf("%s got %v, want %d %s %q", what, a, status, contentType, body)
	}
}

// replays checks whether a response is a stored outcome.
func (a answer) replays(what string, want bool) {
	a.t.Helper()
	if got := a.header.Get("Idempotent-Replayed") == "true"; got != want {
		a.t.Errorf("%s got %v: marked as replayed is %t, want %t", what, a, got, want)
	}
}

// problem is the body of an error (RFC 9457), with the members of oncebus.
type problem struct {
	Type, Title, Detail, Verdict, Key, First string
	Status                                   int
	FirstRequest                             string    `json:"first_request"`
	FirstTime                                time.Time `json:"first_time"`
}

// problem checks that a response is an error with this verdict, and returns it.
func (a answer) problem(what string, status int, verdict string) problem {
	a.t.Helper()
	var p problem
	err := json.Unmarshal([]byte(a.body), &p)
	if err != nil || a.status != status || a.header.Get("Content-Type") != "application/problem+json" ||
		p.Status != status || p.Type == "" || p.Title == "" || p.Verdict != verdict {
		a.t.Errorf("%s got %v (%v), want a problem %d with verdict %q", what, a, err, status, verdict)
	}
	if (status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable || verdict == "in_progress") && a.header.Get("Retry-After") == "" {
		a.t.Errorf("%s got %v without Retry-After", what, a)
	}
	return p
}

// nowhere checks that the app's topics contain no record with a text.
func (s *system) nowhere(text string) {
	s.t.Helper()
	topics, err := s.admin.ListTopics(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, topic := range topics.Names() {
		if !strings.HasPrefix(topic, s.app) {
			continue
		}
		records, err := s.read(s.t.Context(), topic, nil)
		if err != nil {
			s.t.Fatal(err)
		}
		for _, r := range records {
			if strings.Contains(string(r.Value), text) {
				s.t.Errorf("%s contains %s", at(r), r.Value)
			}
		}
	}
}

// inRun has the routes files whose requests `oncebus run` accepts in the tests on
// Kafka, so that both commands are tested with a real broker.
var inRun = map[string]bool{"signals.yaml": true, "orders.yaml": true}

// byHTTP runs a scenario on Kafka in parallel with other tests: `oncebus run` accepts the requests, or a separate `oncebus ingress`.
// On the embedded broker, see onKafka, it is always `oncebus run`.
func byHTTP(t *testing.T, file string, change *strings.Replacer, inputs []string, scenario func(t *testing.T, s *system, d *sender)) {
	t.Helper()
	t.Parallel()
	onKafka(t, func(t *testing.T, broker *kafkatest.Broker) {
		s := newSystem(newWorldAt(t, shippedRoutes(t, file, change), broker.Seeds(), broker.Admin(), broker.External()))
		if inRun[file] {
			s.asOneProcess(t, inputs, scenario)
			return
		}
		s.settings = []string{"COMMIT_INTERVAL=20ms"}
		s.begin(inputs...)
		d := s.startIngress("sender")
		scenario(t, s, d)
		d.stop()
		s.service.stop()
	}, func(t *testing.T) { onEmbedded(t, file, change).asOneProcess(t, inputs, scenario) })
}

// inOneProcess runs a scenario on an embedded broker, in parallel with other tests.
func inOneProcess(t *testing.T, file string, change *strings.Replacer, inputs []string, scenario func(t *testing.T, s *system, d *sender)) {
	t.Helper()
	t.Parallel()
	onEmbedded(t, file, change).asOneProcess(t, inputs, scenario)
}

// asOneProcess runs a scenario on one process, which accepts the requests itself.
func (s *system) asOneProcess(t *testing.T, inputs []string, scenario func(t *testing.T, s *system, d *sender)) {
	t.Helper()
	s.settings = ingressSettings()
	s.begin(inputs...)
	scenario(t, s, s.open(s.service))
	s.service.stop()
}
