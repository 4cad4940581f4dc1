//go:build unix

package main_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"oncebus/processor/wire"
)

// instances are several instances of `oncebus ingress` of one app.
type instances []*sender

func (w *world) startInstances(n int) instances {
	w.t.Helper()
	var all instances
	for i := range n {
		all = append(all, w.startIngress(fmt.Sprint("sender", i)))
	}
	return all
}

// patient lets requests wait until a killed processor has restarted, even on a busy machine.
var patient = strings.NewReplacer("path: /signals\n", "path: /signals\n      timeout: 45s\n")

// TestSystemIngressThousandCopies: 1,000 equal requests at the same time to three instances, and two processors: one is accepted, 999
// are duplicates, one event is emitted.
func TestSystemIngressThousandCopies(t *testing.T) {
	onEveryBroker(t, "signals.yaml", patient, func(t *testing.T, s *system) {
		s.settings = []string{"COMMIT_INTERVAL=20ms"}
		s.begin("signals.raw")
		other := s.start("b", s.settings...)
		other.awaitReady()
		all := s.startInstances(3)
		const requests = 1000
		answers := make([]answer, requests)
		var barrier, sent sync.WaitGroup
		barrier.Add(requests)
		for n := range requests {
			sent.Go(func() {
				barrier.Done()
				barrier.Wait()
				answers[n] = <-all[n%len(all)].later(signalsURL, unsigned, `{"traceId":"one"}`)
			})
		}
		sent.Wait()
		unique := 0
		for _, a := range answers {
			if a.status == http.StatusAccepted {
				unique++
			} else {
				a.problem("one of 1,000", http.StatusConflict, "duplicate")
			}
		}
		if unique != 1 {
			t.Errorf("%d of %d requests are accepted, want 1", unique, requests)
		}
		s.awaitProcessed()
		s.count("signals.unique", 1)
		for _, d := range all {
			d.stop()
		}
		other.stop()
		s.service.stop()
	})
}

// submission is one client's event until it is accepted.
type submission struct {
	id      string
	answers []int // statuses
	cut     int   // connections that were cut
}

// insist sends an event until it is accepted or a duplicate, after every failure to
// the next instance. Only connections to the killed instance may fail.
func (s *submission) insist(ctx context.Context, all instances, first int, mortal *sender) error {
	for at := first; ; at++ {
		d := all[at%len(all)]
		a, err := d.try(ctx, signalsURL, unsigned, time.Now(), fmt.Sprintf(`{"traceId":%q}`, s.id))
		if err != nil {
			if d != mortal {
				return fmt.Errorf("event %s, process %s: %w", s.id, d.Name, err)
			}
			s.cut++
			continue
		}
		s.answers = append(s.answers, a.status)
		switch a.status {
		case http.StatusAccepted, http.StatusConflict:
			return nil
		case http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		default:
			return fmt.Errorf("event %s, process %s: got %v", s.id, d.Name, a)
		}
	}
}

// submitAll sends events with one client each; wait returns when all are accepted.
func (w *world) submitAll(name string, n int, all instances, mortal *sender) (sent []*submission, wait func()) {
	errs := make([]error, n)
	var clients sync.WaitGroup
	ctx, cancel := context.WithTimeout(w.t.Context(), realDeadline)
	for i := range n {
		one := &submission{id: fmt.Sprintf("%s-%d", name, i)}
		sent = append(sent, one)
		clients.Go(func() { errs[i] = one.insist(ctx, all, i, mortal) })
	}
	return sent, func() {
		w.t.Helper()
		clients.Wait()
		cancel()
		if err := errors.Join(errs...); err != nil {
			w.t.Fatal(err)
		}
	}
}

// awaitRequests waits until the repartition topic has that many events; a router's records
// of how far it has read do not count.
func (w *world) awaitRequests(want int) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d events in the repartition topic", want), func(ctx context.Context) error {
		records, err := w.read(ctx, w.app+"-repartition", nil)
		if err != nil {
			return err
		}
		events := 0
		for _, r := range records {
			var env wire.Envelope
			if err := wire.ReadEnvelope(r, &env); err != nil {
				return err
			}
			if !env.IsProgress {
				events++
			}
		}
		if events < want {
			return fmt.Errorf("%d of %d", events, want)
		}
		return nil
	})
}

// onceEach checks that a topic contains every event once, and no other record.
func (s *system) onceEach(topic, field string, ids []string) {
	s.t.Helper()
	times := map[string]int{}
	for _, r := range s.output(topic) {
		_, rest, _ := strings.Cut(string(r.Value), fmt.Sprintf(`{%q:"`, field))
		id, _, _ := strings.Cut(rest, `"`)
		times[id]++
	}
	for _, id := range ids {
		if times[id] != 1 {
			s.t.Errorf("event %s is in %s %d times", id, topic, times[id])
		}
		delete(times, id)
	}
	if len(times) > 0 {
		s.t.Errorf("%s contains events that no client sent: %v", topic, times)
	}
}

// TestSystemIngressKilled: an instance is killed while requests wait, and in a second round together with a processor. The clients
// retry at other instances: every event is in the output once, and only connections to the killed instance failed.
func TestSystemIngressKilled(t *testing.T) {
	onEveryBroker(t, "signals.yaml", patient, func(t *testing.T, s *system) {
		s.settings = []string{"COMMIT_INTERVAL=20ms", "WORKERS=1"}
		s.begin("signals.raw")
		judges := []*service{s.service, s.start("b", s.settings...)}
		judges[1].awaitReady()
		awaitSharing(t, realPartitions, judges...) // the instances are not stopped before its end
		all := s.startInstances(3)
		taken := 0
		var ids []string
		for round, withJudge := range []bool{false, true} {
			for _, j := range judges {
				j.signal(syscall.SIGSTOP)
			}
			const clients = 60
			victim := all[round]
			sent, wait := s.submitAll(fmt.Sprint("round", round), clients, all, victim)
			taken += clients
			s.awaitRequests(taken) // in Kafka, without a verdict
			victim.kill()
			taken += clients / len(all) // sent again
			s.awaitRequests(taken)
			if withJudge {
				judges[0].kill()
			}
			for _, j := range judges {
				j.signal(syscall.SIGCONT)
			}
			if withJudge {
				judges[0] = s.start("a", s.settings...)
				judges[0].awaitReady()
			}
			wait()
			cut := 0
			for n, one := range sent {
				ids = append(ids, one.id)
				want := http.StatusAccepted
				if n%len(all) == round {
					want = http.StatusConflict // Kafka has the first one, although its client got no response
					cut += one.cut
				}
				if len(one.answers) != 1 || one.answers[0] != want {
					t.Errorf("event %s, cut off %d times, got %v, want %d", one.id, one.cut, one.answers, want)
				}
			}
			if cut != clients/len(all) {
				t.Errorf("%d connections were cut, want all %d of process %s", cut, clients/len(all), victim.Name)
			}
			s.drained(s.inputs, nil)
			s.onceEach("signals.unique", "traceId", ids)
			all[round] = s.startIngress(victim.Name)
		}
		ids = append(ids, s.killInTraffic(all)...)
		s.drained(s.inputs, nil)
		s.onceEach("signals.unique", "traceId", ids)
		for _, d := range all[:len(all)-1] { // the instance that killInTraffic killed
			d.stop()
		}
		for _, j := range judges {
			j.stop()
		}
	})
}

// killInTraffic kills the last instance while it has requests in every stage: being read, being produced, and waiting.
func (s *system) killInTraffic(all instances) (ids []string) {
	s.t.Helper()
	victim := all[len(all)-1]
	var waits []func()
	const waves = 10
	for wave := range waves {
		sent, wait := s.submitAll(fmt.Sprint("wave", wave), 60, all, victim)
		waits = append(waits, wait)
		for _, one := range sent {
			ids = append(ids, one.id)
		}
		if wave == waves/2 {
			victim.kill()
		}
	}
	for _, wait := range waits {
		wait()
	}
	return ids
}

// signal sends a signal, unless the process has ended.
func (s *service) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}
