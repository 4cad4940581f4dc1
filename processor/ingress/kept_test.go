package ingress

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafkatest"
)

// keeping is a bench whose broker can be away, with a directory for kept events.
type keeping struct {
	*bench
	gone atomic.Bool
}

func keepingBench(t *testing.T, routes string) *keeping {
	t.Helper()
	k := &keeping{}
	k.bench = newBench(t, routes, oneTask, func(b *bench) { b.keepIn, b.keepBytes = t.TempDir(), 1<<20 })
	k.cluster.Intercept(func(kmsg.Request) (kmsg.Response, error, bool) { return nil, errors.New("away"), k.gone.Load() })
	return k
}

// away takes the broker away, until the client has noticed.
func (k *keeping) away(i *instance) {
	k.t.Helper()
	k.gone.Store(true)
	k.wait("the client to notice", func() bool { return i.front.Ready() != nil })
}

// refuse makes the broker refuse batches of the ingress with a text, until the result is called.
func (k *keeping) refuse(marker string, why *kerr.Error) (end func()) {
	var ended atomic.Bool
	k.cluster.Intercept(func(r kmsg.Request) (kmsg.Response, error, bool) {
		req := r.(*kmsg.ProduceRequest)
		topic := &req.Topics[0]
		if ended.Load() || req.TransactionID != nil || !bytes.Contains(topic.Partitions[0].Records, []byte(marker)) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		partition := kmsg.NewProduceResponseTopicPartition()
		partition.Partition, partition.ErrorCode = topic.Partitions[0].Partition, why.Code
		refused := kmsg.NewProduceResponseTopic()
		refused.Topic, refused.TopicID, refused.Partitions = topic.Topic, topic.TopicID, append(refused.Partitions, partition)
		resp.Topics = append(resp.Topics, refused)
		return resp, nil, true
	}, kmsg.Produce)
	return func() { ended.Store(true) }
}

// kept posts an event that is answered unchecked.
func (i *instance) kept(path, body string) {
	i.b.t.Helper()
	got := i.post(path, body).want(i.b.t, "kept "+body, http.StatusAccepted, `{"status":"accepted","type":"/responses/kept-unchecked"}`)
	if got.header(i.b.t, body, "Oncebus-Verdict", ""); len(got.Header.Get("Oncebus-Key")) != 64 {
		i.b.t.Errorf("kept %s: no key: %v", body, got.Header)
	}
}

// delivered waits until no event is kept.
func (i *instance) delivered() {
	i.b.t.Helper()
	i.b.wait("the kept events to be delivered", func() bool { return i.front.KeptEvents() == 0 })
}

// TestKeptUntilKafkaIsBack: with on_kafka_unavailable: keep an event is answered unchecked while no broker
// responds. It is judged with its own time by the next process that has its file, and a copy of it is a
// duplicate. The process stays ready.
func TestKeptUntilKafkaIsBack(t *testing.T) {
	t.Parallel()
	k := keepingBench(t, withHTTP("timeout: 50s", "on_kafka_unavailable: keep"))
	i := k.serve(nil)
	i.warm("/signals", event("before"))
	if kept := i.front.Kept(); kept.Events != 0 || kept.Bytes != 0 {
		t.Errorf("kept although Kafka is there: %+v", kept)
	}
	k.away(i)
	began := time.Now()
	for _, id := range []string{"a", "b", "a", "before"} {
		i.kept("/signals", event(id))
	}
	ended := time.Now()
	i.post("/signals", `not JSON`).problem(t, "no JSON", "invalid", http.StatusBadRequest)
	service := &Service{front: i.front, server: i.Server}
	if err := service.Ready(); err != nil {
		t.Errorf("not ready, so no event would come: %v", err)
	}
	if state := service.State(); state.Kept.Events != 4 || state.Kept.Since.Before(began.Add(-time.Second)) || state.Kept.Since.After(ended) {
		t.Errorf("shown as kept: %+v", state.Kept)
	}
	if n := i.count("oncebus_http_kept_events"); n != 4 {
		t.Errorf("the metric has %v kept events, want 4", n)
	}
	i.stop()
	i.stopFront()
	k.gone.Store(false)
	next := k.serve(nil)
	next.delivered()
	var ids []string
	for _, r := range k.read("signals.unique", 3) {
		ids = append(ids, string(r.Value))
		if string(r.Value) != event("before") && (r.Timestamp.Before(began.Add(-time.Second)) || r.Timestamp.After(ended)) {
			t.Errorf("%s has the time %v, and arrived between %v and %v", r.Value, r.Timestamp, began, ended)
		}
	}
	if strings.Join(ids, "") != event("before")+event("a")+event("b") {
		t.Errorf("emitted: %v, want each once, in their order", ids)
	}
	next.post("/signals", event("a")).problem(t, "a copy later", "duplicate", http.StatusConflict)
	if info, err := os.Stat(filepath.Join(k.keepIn, "ingress", k.config("ingress").AppID, "kept")); err != nil || info.Size() != 0 {
		t.Errorf("the file is not emptied: %v, %v", info, err)
	}
}

// TestKeptLongerThanTheWindow: an event that waited for longer than window and grace is judged all the
// same, though stream time has gone on; and its copy is found.
func TestKeptLongerThanTheWindow(t *testing.T) {
	t.Parallel()
	k := keepingBench(t, strings.Replace(withHTTP("timeout: 50s", "on_kafka_unavailable: keep"), "window: 1h", "window: 1s\n    grace: 2s", 1))
	i := k.serve(nil)
	i.warm("/signals", event("now"))
	k.away(i)
	clock := i.now
	i.now = func() time.Time { return clock().Add(-time.Hour) } // no request is in flight
	i.kept("/signals", event("a"))
	i.kept("/signals", event("a"))
	i.now = clock
	k.gone.Store(false)
	i.delivered()
	if all := k.read("signals.unique", 2); len(all) != 2 || string(all[1].Value) != event("a") {
		t.Errorf("%d events are emitted, want the two", len(all))
	}
	i.warm("/signals", event("end"))
	if dead, err := kafkatest.ReadCommitted(t.Context(), k.client, nil, "dead"); err != nil || len(dead) != 0 {
		t.Errorf("%d dead letters, %v", len(dead), err)
	}
}

// TestKeptIsBounded: when the file is full, or cannot be written, an event gets 503 as without the setting,
// and the process is not ready.
func TestKeptIsBounded(t *testing.T) {
	t.Parallel()
	k := keepingBench(t, withHTTP("timeout: 50s", "on_kafka_unavailable: keep"))
	k.keepBytes = 1000
	i := k.serve(nil)
	i.warm("/signals", event("before"))
	k.away(i)
	i.kept("/signals", event("a"))
	i.post("/signals", padded(`{"id":"large"}`, 1000)).header(t, "full", "Retry-After", "1").problem(t, "full", "kafka-unavailable", http.StatusServiceUnavailable)
	i.kept("/signals", event("b")) // there is room for it
	k.gone.Store(false)
	i.delivered()
	i.post("/signals", padded(`{"id":"large"}`, 1000)).want(t, "Kafka is back", http.StatusAccepted, `{"status":"accepted"}`)
}

// TestKeptWhenTheAcknowledgementIsLost: a broker that answers no produce request may have the event. It is
// kept too, and at most it is a duplicate; but not one without a key, or an invalid one, which would come out twice.
func TestKeptWhenTheAcknowledgementIsLost(t *testing.T) {
	t.Parallel()
	routes := strings.Replace(withHTTP("timeout: 1s", "on_kafka_unavailable: keep", "responses: {invalid: {status: 202}}"), "    output:", "    on_missing_key: forward\n    output:", 1)
	k := keepingBench(t, routes)
	i := k.serve(nil)
	i.warm("/signals", event("before"))
	var lost atomic.Bool
	lost.Store(true)
	k.cluster.Intercept(func(r kmsg.Request) (kmsg.Response, error, bool) {
		return nil, errors.New("lost"), lost.Load() && r.(*kmsg.ProduceRequest).TransactionID == nil
	}, kmsg.Produce)
	i.kept("/signals", event("a"))
	i.kept("/signals", event("a")) // at once: the first one is kept
	i.post("/signals", `{"n":1}`).problem(t, "without a key", "kafka-unavailable", http.StatusServiceUnavailable)
	i.post("/signals", `not JSON`).problem(t, "invalid", "kafka-unavailable", http.StatusServiceUnavailable)
	if n := i.front.KeptEvents(); n != 2 {
		t.Errorf("%d events are kept before an acknowledgement, want both", n)
	}
	lost.Store(false)
	i.delivered()
	i.warm("/signals", event("end"))
	n := 0
	for _, r := range k.read("signals.unique", 4) {
		if string(r.Value) == event("a") {
			n++
		}
	}
	if n != 1 {
		t.Errorf("the event was emitted %d times", n)
	}
}

// TestKeptEventThatKafkaRefuses: it holds no other one back, and is quarantined. No other one is produced twice.
func TestKeptEventThatKafkaRefuses(t *testing.T) {
	t.Parallel()
	k := keepingBench(t, withHTTP("timeout: 50s", "on_kafka_unavailable: keep"))
	i := k.serve(nil)
	i.warm("/signals", event("before"))
	k.away(i)
	for _, id := range []string{"a", "poison", "b"} {
		i.kept("/signals", event(id))
	}
	k.refuse("poison", kerr.InvalidRecord)
	k.gone.Store(false)
	i.delivered()
	var ids []string
	for _, r := range k.read("signals.unique", 3) {
		ids = append(ids, string(r.Value))
	}
	if strings.Join(ids, "") != event("before")+event("a")+event("b") {
		t.Errorf("emitted: %v", ids)
	}
	if kept := i.front.Kept(); len(kept.Aside) != 1 || filepath.Base(kept.Aside[0]) != "kept.refused" || kept.Bytes != 0 {
		t.Errorf("shown as kept: %+v", kept)
	}
}

// TestKeptEventOfADeniedTopic: it stays kept, and the events of other topics do not wait for it.
func TestKeptEventOfADeniedTopic(t *testing.T) {
	t.Parallel()
	routes := strings.Replace(withHTTP("timeout: 50s", "on_kafka_unavailable: keep"), "    output:", "    on_missing_key: forward\n    output:", 1)
	k := keepingBench(t, routes)
	i := k.serve(nil)
	i.warm("/signals", event("before"))
	k.away(i)
	i.post("/signals", `{"n":1}`) // goes to the input topic
	i.kept("/signals", event("a"))
	end := k.refuse(`{"n":1}`, kerr.TopicAuthorizationFailed)
	k.gone.Store(false)
	if all := k.read("signals.unique", 2); string(all[1].Value) != event("a") {
		t.Errorf("emitted: %s", all[1].Value)
	}
	k.wait("one event to be left", func() bool { return i.front.KeptEvents() == 1 })
	end()
	i.delivered()
	if all := k.read("signals.unique", 3); string(all[2].Value) != `{"n":1}` {
		t.Errorf("emitted: %s", all[2].Value)
	}
	if kept := i.front.Kept(); len(kept.Aside) != 0 || kept.Bytes != 0 {
		t.Errorf("shown as kept: %+v", kept)
	}
}

// TestStopDuringDelivery: a stop waits for the acknowledgement of a kept event that was sent, so that the next
// process does not send it again.
func TestStopDuringDelivery(t *testing.T) {
	t.Parallel()
	k := keepingBench(t, withHTTP("timeout: 50s", "on_kafka_unavailable: keep"))
	i := k.serve(nil)
	i.warm("/signals", event("before"))
	k.away(i)
	i.kept("/signals", event("a"))
	stopped := make(chan struct{})
	var once sync.Once
	k.cluster.Intercept(func(r kmsg.Request) (kmsg.Response, error, bool) {
		if r.(*kmsg.ProduceRequest).TransactionID == nil {
			once.Do(func() {
				go func() {
					defer close(stopped)
					i.stopFront()
				}()
				<-time.After(100 * time.Millisecond) // the stop has begun
			})
		}
		return nil, nil, false
	}, kmsg.Produce)
	k.gone.Store(false)
	<-stopped
	if n := i.front.KeptEvents(); n != 0 {
		t.Errorf("%d events are kept after the stop", n)
	}
}

// TestKeptEventOfARouteThatIsGone: it goes to its input topic, where no record is lost, and its file is
// delivered although no route keeps events any more.
func TestKeptEventOfARouteThatIsGone(t *testing.T) {
	t.Parallel()
	k := keepingBench(t, withHTTP("timeout: 50s", "on_kafka_unavailable: keep")+strings.NewReplacer("routes:\n", "", "signals", "other").Replace(bareRoutes))
	i := k.serve(nil)
	i.warm("/signals", event("before"))
	k.away(i)
	i.kept("/signals", event("a"))
	i.stop()
	i.stopFront()
	k.gone.Store(false)
	k.routes = parseRoutes(t, strings.ReplaceAll(bareRoutes, "signals", "other"))
	k.serve(nil).delivered()
	if all := k.read("signals.raw", 1); string(all[0].Value) != event("a") {
		t.Errorf("the input has %s", all[0].Value)
	}
}
