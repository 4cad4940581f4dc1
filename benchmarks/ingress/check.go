//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/benchmarks/internal/bench"
)

// tally counts the records of each event in a topic, by the event's number.
type tally struct {
	records map[int]int
	foreign int // records that are no event of the run
}

// readTally reads a topic as read_committed consumers do, from its start to its
// current end.
func readTally(ctx context.Context, seeds []string, topic string) (tally, error) {
	t := tally{records: map[int]int{}}
	err := bench.ReadTopic(ctx, seeds, topic, func(r *kgo.Record) { t.add(r.Value) })
	return t, err
}

func (t *tally) add(value []byte) {
	n := eventOf(value)
	if n < 0 {
		t.foreign++
		return
	}
	t.records[n]++
}

// from returns the tally of the events from a number on.
func (t tally) from(first int) tally {
	rest := tally{records: map[int]int{}, foreign: t.foreign}
	for n, records := range t.records {
		if n >= first {
			rest.records[n] = records
		}
	}
	return rest
}

// promise says how responses and records must be related.
type promise string

const (
	// promiseVerdict: one request for each event gets 202, and the event is in the output; the other requests
	// for the event get the verdict duplicate.
	promiseVerdict promise = "verdict"
	// promiseOnce: every response is 202, and each event is in the output exactly once.
	promiseOnce promise = "once"
	// promiseEach: every response is 202, and each request has its own record.
	promiseEach promise = "each"
)

// verdicts counts the verdicts of one event.
type verdicts struct{ accepted, duplicate, other int }

// countVerdicts returns the verdicts on each event, and the number of requests without a response.
func countVerdicts(list []response, event func(n int) int) (events map[int]verdicts, silent int) {
	events = map[int]verdicts{}
	for n, a := range list {
		e := events[event(n)]
		switch a.status {
		case 0:
			silent++
		case http.StatusAccepted:
			e.accepted++
		case http.StatusConflict:
			e.duplicate++
		default:
			e.other++
		}
		events[event(n)] = e
	}
	return events, silent
}

// check returns an error unless responses and records agree with p. If a request was rejected or got no
// verdict, its event may or may not be in the output. A request without a response is an error.
func check(p promise, list []response, event func(n int) int, t tally) error {
	events, silent := countVerdicts(list, event)
	var twice, unaccepted, lost, repeated, strange int
	for n, e := range events {
		records := t.records[n]
		most := 1
		if p == promiseEach {
			most = e.accepted + e.other
		}
		switch {
		case p == promiseVerdict && e.accepted > 1:
			twice++
		case p == promiseVerdict && e.accepted == 0 && e.other == 0:
			unaccepted++
		case p != promiseVerdict && e.duplicate > 0:
			strange++
		}
		if records < min(e.accepted, most) {
			lost++
		}
		if records > most {
			repeated++
		}
	}
	foreign := t.foreign
	for n := range t.records {
		if _, ok := events[n]; !ok {
			foreign++
		}
	}
	var errs []error
	for _, wrong := range []struct {
		n    int
		what string
	}{
		{silent, "requests have no response"},
		{twice, "events were accepted twice"},
		{unaccepted, "events got the verdict duplicate each time"},
		{strange, "events got the verdict duplicate from a server without verdicts"},
		{lost, "events are in the topic less often than they were accepted"},
		{repeated, "events are in the topic more often than allowed"},
		{foreign, "records are of events that were never sent"},
	} {
		if wrong.n > 0 {
			errs = append(errs, fmt.Errorf("%d %s", wrong.n, wrong.what))
		}
	}
	return errors.Join(errs...)
}
