//go:build unix

package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/benchmarks/internal/openloop"
	"oncebus/processor/kafkatest/program"
)

const (
	// floodCommit is the commit interval of the flood part.
	floodCommit = 20 * time.Millisecond
	// floodPath is the path of the route that a flood is sent to.
	floodPath = "/flood"
)

// phase is the traffic of one measurement: the quiet path alone, or during a flood on another path.
type phase struct {
	Connections int // connections of the flood, each with one request in flight; 0 means no flood
	Bytes       int // size of the body of a flood's request
	// Strangers says that the flood comes from strangers, whose requests have no signature. Each stranger sends the
	// head and one byte of a body, from one of strangerAddresses.
	Strangers bool
}

// phases are the phases of a round. The quiet path is measured without a flood both at the beginning and at the end,
// so that a change of the machine's load is visible.
var phases = []phase{{}, {128, bodyLen, false}, {1024, bodyLen, false}, {96, 512 << 10, false}, {6000, 1, true}, {}}

const (
	// strangerAddresses is how many client addresses the strangers have, according to X-Forwarded-For.
	strangerAddresses = 30
	// strangerPause is how long a stranger waits after the end of its connection before it connects again.
	strangerPause = 5 * time.Second
)

// floodRun is the quiet path in one phase of one round.
type floodRun struct {
	phase

	Round     int // from 1
	Rate      int // requests a second of the quiet path
	Requests  int // measured
	Statuses  map[int]int
	Latency   openloop.Quantiles `json:"LatencyMillis"`
	Behind    openloop.Quantiles `json:"BehindMillis"`
	FloodRate float64            // responses a second of the flood
	Flood     map[int]int        // its responses by status; 0: the connection ended without one
	Load      string             // the machine's load average of a minute, at the start of the phase
}

// floodRoute is a second route of an app, with a separate path.
func floodRoute(a *app) string {
	return fmt.Sprintf(`  - name: flood
    topics: [%[1]s-flood-input]
    key:
      - field: traceId
    window: 1h
    output: %[1]s-flood-output
    dead_letter: %[1]s-dead
    http:
      path: %[2]s
      signature: {scheme: hmac, secret: %[3]s, header: %[4]s, prefix: "%[5]s"}
`, a.id, floodPath, secretName, signatureHeader, signaturePrefix)
}

// floodRuns measures every phase in every round, all phases of a round in one process.
func (b *bed) floodRuns(ctx context.Context) (runs []floodRun, err error) {
	for round := 1; round <= b.rounds; round++ {
		more, err := b.measureFlood(ctx, round)
		if err != nil {
			return nil, fmt.Errorf("flood, round %d: %w", round, err)
		}
		runs = append(runs, more...)
	}
	return runs, nil
}

func (b *bed) measureFlood(ctx context.Context, round int) (runs []floodRun, err error) {
	a, err := b.newApp(ctx, fmt.Sprintf("flood-%d", round), "verdict", floodCommit)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, a.remove(ctx)) }()
	file, err := os.OpenFile(a.path("-routes.yaml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString(floodRoute(a))
	if err := errors.Join(err, file.Close(), a.broker.CreateTopics(ctx, b.partitions, a.id+"-flood-input", a.id+"-flood-output")); err != nil {
		return nil, err
	}
	s, err := a.start(ctx, "run", true)
	if err != nil {
		return nil, err
	}
	for n, p := range phases {
		m, phaseErr := a.measurePhase(ctx, s, p, n)
		if phaseErr != nil {
			return nil, errors.Join(phaseErr, s.Stop())
		}
		m.Round = round
		b.progress.Done("round %d  %4d connections of a flood, %6d bytes: p50 %7.2f  p99 %7.2f  max %7.2f ms, %v; the generator was %.2f ms late at p99; flood %.0f/s %v",
			round, p.Connections, p.Bytes, m.Latency.P50, m.Latency.P99, m.Latency.Max, m.Statuses, m.Behind.P99, m.FloodRate, m.Flood)
		runs = append(runs, m)
	}
	return runs, s.Stop()
}

// measurePhase sends the quiet path's schedule. Each phase has different events.
func (a *app) measurePhase(ctx context.Context, s *program.Process, p phase, number int) (m floodRun, err error) {
	rate := a.quietRate
	t := trial{
		app: a, service: s, point: point{rate, floodCommit},
		schedule: openloop.Schedule{Rate: rate, Warmup: a.warmup, Measured: a.measured, Duplicates: a.duplicates},
	}
	t.eventsFrom = number * 10_000_000
	m = floodRun{phase: p, Rate: rate, Load: bench.LoadAverage()}
	flooding, endFlood := context.WithCancel(ctx)
	defer endFlood()
	var flood *flooders
	t.primed = func() { flood = startFlooders(flooding, p, s.Address(listensIngress), number) }
	t.answered = endFlood // otherwise the app would never be drained
	quiet, err := t.run(ctx)
	endFlood()
	if flood != nil {
		m.Flood, m.FloodRate = flood.wait()
	}
	m.Requests, m.Statuses, m.Latency, m.Behind = quiet.Requests, quiet.Statuses, quiet.Latency, quiet.Behind
	return m, err
}

// flooders send signed requests in a closed loop, each on one connection, and accept any response.
type flooders struct {
	wg      sync.WaitGroup
	started time.Time

	mu       sync.Mutex
	ended    time.Time
	statuses map[int]int
}

func startFlooders(ctx context.Context, p phase, address string, number int) *flooders {
	f := &flooders{started: time.Now(), statuses: map[int]int{}}
	if p.Strangers {
		for c := range p.Connections {
			f.wg.Go(func() { f.sendAsStranger(ctx, address, c) })
		}
		return f
	}
	url := "http://" + address + floodPath
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: p.Connections, MaxConnsPerHost: p.Connections}}
	for c := range p.Connections {
		f.wg.Go(func() {
			own := map[int]int{}
			body := fmt.Appendf(nil, "%s%0*d%s", traceHead, digits, 0, bodyTail)
			body = append(body, bytes.Repeat([]byte{' '}, p.Bytes-len(body))...)
			for n := 0; ctx.Err() == nil; n++ {
				copy(body[len(traceHead):], fmt.Sprintf("%02d%04d%06d", number, c, n))
				status := post(ctx, client, url, body)
				if ctx.Err() == nil {
					own[status]++
				}
				if status != http.StatusAccepted { // a sender whose request is refused waits a little
					select {
					case <-ctx.Done():
					case <-time.After(10 * time.Millisecond):
					}
				}
			}
			f.add(own)
		})
	}
	context.AfterFunc(ctx, client.CloseIdleConnections)
	return f
}

// add counts the responses of one connection.
func (f *flooders) add(own map[int]int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = time.Now()
	for status, n := range own {
		f.statuses[status] += n
	}
}

// sendAsStranger opens one connection after the other, and waits on each until the server responds or closes
// the connection.
func (f *flooders) sendAsStranger(ctx context.Context, address string, number int) {
	own := map[int]int{}
	for ctx.Err() == nil {
		status := stranger(ctx, address, number)
		if ctx.Err() == nil {
			own[status]++
		}
		select {
		case <-ctx.Done():
		case <-time.After(strangerPause):
		}
	}
	f.add(own)
}

// stranger sends the beginning of a request without a signature and returns the status; 0 if there is no response.
func stranger(ctx context.Context, address string, number int) int {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return 0
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	_, err = fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nX-Forwarded-For: 192.0.2.%d\r\n\r\n{", floodPath, number%strangerAddresses)
	if err != nil {
		return 0
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	_ = response.Body.Close()
	return response.StatusCode
}

// post sends one request and returns the status; 0 if there is no response.
func post(ctx context.Context, client *http.Client, url string, body []byte) int {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0
	}
	mac := hmac.New(sha256.New, []byte(secretValue))
	_, _ = mac.Write(body) // a hash returns no errors
	request.Header.Set(signatureHeader, signaturePrefix+hex.EncodeToString(mac.Sum(nil)))
	response, err := client.Do(request)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, response.Body) // only the status counts
	_ = response.Body.Close()
	return response.StatusCode
}

// wait returns the responses by status, and their number a second.
func (f *flooders) wait() (statuses map[int]int, rate float64) {
	f.wg.Wait()
	took := f.ended.Sub(f.started)
	total := 0
	for _, n := range f.statuses {
		total += n
	}
	if total == 0 {
		return f.statuses, 0
	}
	return f.statuses, float64(total) / took.Seconds()
}

// floodTable lists the phases of each round, each with its ratio to the first phase of the same round.
func floodTable(b *strings.Builder, runs []floodRun) {
	fmt.Fprintf(b, `
## While another path is flooded

One process with two signed routes. The quiet path gets %d requests/s in an open loop and waits for verdicts: milliseconds from when a request was due until
its whole response had arrived. Meanwhile as many connections as the table says send signed requests to the other path, each the next when it has the
response, or after 10 ms if it was refused. Commit interval %v. The ratio is to the p99 of the same round's first phase without a flood. The flood's generator
shares the cores too: its lateness at p99 is part of the latency. Bodies of one byte are those of strangers: %d addresses, no signature, and the rest of
the body never comes; a stranger whose connection has ended comes again after %v.

| round | flood: connections | bytes of a body | p50 | p99 | ratio | max | quiet path's responses | generator late | flood's responses/s | by status | load |
| ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: | --- | ---: |
`, runs[0].Rate, floodCommit, strangerAddresses, strangerPause)
	alone := map[int]float64{}
	for _, m := range runs {
		if _, ok := alone[m.Round]; !ok {
			alone[m.Round] = m.Latency.P99
		}
		flood := latencyRun{Statuses: m.Flood}
		quiet := latencyRun{Statuses: m.Statuses}
		fmt.Fprintf(b, "| %d | %d | %d | %s | %s | %s | %s | %s | %s | %.0f | %s | %s |\n", m.Round, m.Connections, m.Bytes,
			bench.Millis(m.Latency.P50), bench.Millis(m.Latency.P99), bench.Ratio(m.Latency.P99, alone[m.Round]), bench.Millis(m.Latency.Max),
			quiet.statuses(), bench.Millis(m.Behind.P99), m.FloodRate, flood.statuses(), m.Load)
	}
}
