//go:build unix

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafkatest"
)

// senders send the requests of a run, by topic and by HTTP. A sender that uses HTTP repeats its request until a
// response says what happened to the event.
type senders struct {
	system *system
	client *kgo.Client
	http   *http.Client
	done   sync.WaitGroup

	mu        sync.Mutex
	byTopic   map[string]string // request ids, by the position of the event
	responses map[string]int    // number of responses by status code and verdict
	answered  int               // number of HTTP requests with a response
	sent      []request
	wrong     []string
}

const (
	// patience is how long a sender waits for the response to an HTTP request.
	patience = httpTimeout + 5*time.Second
	// again is how long a sender waits before it repeats a request.
	again = 500 * time.Millisecond
)

func newSenders(y *system) (*senders, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(y.kafka.Seeds()...))
	return &senders{
		system: y, client: client, http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
		byTopic: map[string]string{}, responses: map[string]int{},
	}, err
}

func (s *senders) close() { s.client.Close() }

// send sends the requests when they are due. It returns when all are sent and the HTTP requests have responses.
func (s *senders) send(ctx context.Context, all []request) {
	began := time.Now()
	for _, q := range all {
		if kafkatest.Pause(ctx, q.due-time.Since(began)) != nil {
			break
		}
		s.mu.Lock()
		s.sent = append(s.sent, q)
		s.mu.Unlock()
		s.done.Add(1)
		if q.byHTTP {
			go s.deliver(ctx, q)
		} else {
			s.produce(ctx, q)
		}
	}
	s.done.Wait()
}

func (s *senders) produce(ctx context.Context, q request) {
	r := &kgo.Record{Topic: "ops.raw", Key: []byte(q.id), Value: q.value()}
	s.client.Produce(ctx, r, func(r *kgo.Record, err error) {
		defer s.done.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		if err != nil {
			s.wrong = append(s.wrong, fmt.Sprintf("request %s was not produced: %v", q.id, err))
			return
		}
		s.byTopic[fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset)] = q.id
	})
}

// deliver sends a request by HTTP again and again until it has a response that does not ask for a repetition.
func (s *senders) deliver(ctx context.Context, q request) {
	defer s.done.Done()
	for {
		status, header, body, err := s.post(ctx, &q)
		retry := err != nil || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
		if !retry {
			s.note(&q, status, header, body)
			return
		}
		if kafkatest.Pause(ctx, again) != nil {
			return
		}
	}
}

func (s *senders) note(q *request, status int, header http.Header, body []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	verdict, claim := header.Get("Oncebus-Verdict"), header.Get("Oncebus-Claim-Status")
	s.answered++
	s.responses[fmt.Sprintf("%d %s %s", status, verdict, claim)]++
	switch {
	case verdict == "":
		s.wrong = append(s.wrong, fmt.Sprintf("request %s got %d without a verdict: %s", q.id, status, body))
	case claim == "completed" && string(body) != q.result():
		s.wrong = append(s.wrong, fmt.Sprintf("request %s got the result %s, want %s", q.id, body, q.result()))
	}
}

// post uses its own deadline instead of the run's context, so that the end of a run does not cut off a response.
func (s *senders) post(ctx context.Context, q *request) (status int, header http.Header, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.system.url, bytes.NewReader(q.value()))
	if err != nil {
		return 0, nil, nil, err
	}
	response, err := s.http.Do(r)
	if err != nil {
		return 0, nil, nil, err
	}
	defer response.Body.Close() //nolint:errcheck // it was only read
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, response.Header, body, err
}
