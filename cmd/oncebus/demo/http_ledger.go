package demo

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// httpLedger records requests and responses, and verifies that the output topics agree with the responses. Each
// request gets a number, which its event carries, so that the ledger recognises the event without its dedup
// key.
type httpLedger struct {
	out   io.Writer // for progress and report
	paths map[string]string
	// topics has the input topic of each route. deriver derives the keys of the events in them.
	topics  map[string]string
	deriver *rules.Deriver

	mu         sync.Mutex
	requests   []httpEntry
	unique     map[[2]string]int // output records with the verdict unique, by key and attempt
	keys       map[string]bool   // keys of all output records
	dead       int
	missingKey int // accepted events with a missing key

	httpResult
	faults []string
}

// httpEntry is a request to the path of a route.
type httpEntry struct {
	route  string
	digest [sha256.Size]byte // of the body
	key    string            // dedup key in the response; "" if the response has none
	fate   fate
	found  int // how many records of the event the outputs have
}

// fate is what happened to an event, according to the response.
type fate int

const (
	fateUnknown fate = iota // no response, or a response without a verdict
	fateRejected
	fateAccepted
	fateDuplicate
)

func newHTTPLedger(out io.Writer, routes *rules.Routes) *httpLedger {
	l := &httpLedger{out: out, paths: map[string]string{}, topics: map[string]string{}, deriver: routes.NewDeriver(nil), unique: map[[2]string]int{}, keys: map[string]bool{}}
	for _, r := range routes.Routes {
		l.paths[r.HTTP.Path], l.topics[r.Name] = r.Name, r.Topics[0]
	}
	return l
}

// around wraps a handler. It records every request and its response, even if the handler panics and there is no
// response.
func (l *httpLedger) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response := &responseSeen{ResponseWriter: w}
		defer func() {
			cli.Printf(l.out, "  %-4s %.60q  %d %s\n", r.Method, r.URL.Path, response.status, response.Header().Get("Oncebus-Verdict"))
		}()
		if route, ok := l.paths[r.URL.Path]; ok {
			number := l.enter(route)
			r.Header.Set(headerRecord, strconv.Itoa(number))
			body := &bodySeen{ReadCloser: r.Body, hash: sha256.New()}
			r.Body = body
			defer func() { l.responded(number, body, response) }()
		}
		next.ServeHTTP(response, r)
	})
}

// enter records a request and returns its number.
func (l *httpLedger) enter(route string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, httpEntry{route: route})
	return len(l.requests) - 1
}

// responded records the response to a request.
func (l *httpLedger) responded(number int, body *bodySeen, response *responseSeen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.requests[number]
	body.hash.Sum(e.digest[:0])
	e.key = response.Header().Get("Oncebus-Key")
	verdict := response.Header().Get("Oncebus-Verdict")
	switch {
	case slices.Contains([]string{"duplicate", "replayed", "in_progress"}, verdict):
		e.fate = fateDuplicate
	case response.status == http.StatusAccepted, verdict == dedup.Unique.String():
		e.fate = fateAccepted
		if verdict == dedup.MissingKey.String() {
			l.missingKey++
		}
	case response.status >= 400 && response.status < 500:
		e.fate = fateRejected
	}
}

// acceptedMissingKey returns how many events with a missing key were accepted. The ingress responds to them
// without waiting for the verdict.
func (l *httpLedger) acceptedMissingKey() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.missingKey
}

// bodySeen computes the digest of a body while the handler reads it.
type bodySeen struct {
	io.ReadCloser
	hash hash.Hash
}

func (b *bodySeen) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.hash.Write(p[:n])
	return n, err
}

// responseSeen remembers the status of a response, 0 before there is one.
type responseSeen struct {
	http.ResponseWriter
	status int
}

func (r *responseSeen) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *responseSeen) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// output verifies a record in the output topic of this route.
func (l *httpLedger) output(route string, r *kgo.Record) {
	l.mu.Lock() // an aborted request may still be running
	defer l.mu.Unlock()
	key := l.keyOf(route, r)
	l.keys[key] = true
	if verdict := header(r, "oncebus-verdict"); verdict == "" || verdict == dedup.Unique.String() {
		first := [2]string{key, header(r, "oncebus-attempt")}
		if l.unique[first]++; l.unique[first] > 1 {
			l.fault(&l.Extra, r, "another event with this key was emitted before")
			return
		}
	}
	number, err := strconv.Atoi(header(r, headerRecord))
	if err != nil || number < 0 || number >= len(l.requests) {
		l.fault(&l.Extra, r, "no request produced it")
		return
	}
	e := &l.requests[number]
	e.found++
	switch {
	case e.found > 1:
		l.fault(&l.Extra, r, "it is there twice")
	case e.fate == fateDuplicate:
		l.fault(&l.Extra, r, "the response called it a duplicate")
	case e.fate == fateRejected:
		l.fault(&l.Extra, r, "the response rejected it")
	case e.route != route || sha256.Sum256(r.Value) != e.digest:
		l.fault(&l.Altered, r, "its route or value is not that of the request")
	}
}

// keyOf returns the dedup key of an emitted record. A unique event of a plain route has no header with the key,
// so keyOf derives the key again.
func (l *httpLedger) keyOf(route string, r *kgo.Record) string {
	if slices.ContainsFunc(r.Headers, func(h kgo.RecordHeader) bool { return h.Key == wire.HeaderKey }) {
		return header(r, wire.HeaderKey)
	}
	in := *r
	in.Topic = l.topics[route]
	input := wire.InputOf(&in)
	derived := l.deriver.Derive(&input)
	return wire.KeyText(&derived.Key)
}

// deadLetter counts a record of the dead-letter topic. If its request was accepted, the event is missing in the
// output.
func (l *httpLedger) deadLetter(*kgo.Record) { l.dead++ }

// close counts the requests by their fate, and the accepted events that are missing in the output.
func (l *httpLedger) close() httpResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.requests {
		e := &l.requests[i]
		switch e.fate {
		case fateUnknown:
			l.Unanswered++
		case fateRejected:
			l.Refused++
		case fateAccepted:
			if l.Events++; e.found > 0 {
				l.Unique++
				continue
			}
			l.Missing++
			l.note("request %d (%s) was accepted, but its event is missing", i, e.route)
		case fateDuplicate:
			l.Duplicates++
			if l.Events++; !l.keys[e.key] {
				l.Missing++
				l.note("request %d (%s) was called a duplicate, but the first event is missing", i, e.route)
			}
		}
	}
	return l.httpResult
}

// fault counts a fault of record r and keeps it for the report.
func (l *httpLedger) fault(count *int, r *kgo.Record, what string) {
	*count++
	l.note("%s/%d/%d (request %s): %s", r.Topic, r.Partition, r.Offset, header(r, headerRecord), what)
}

// note keeps the first faultsMax faults for the report.
func (l *httpLedger) note(format string, args ...any) {
	if len(l.faults) < faultsMax {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

// report prints the result as text.
func (l *httpLedger) report(r httpResult) {
	cli.Printf(l.out, "\nRead the output topics and compared them with the responses:\n")
	for _, line := range []struct {
		n    int
		what string
	}{
		{r.Events, "requests got a verdict"},
		{r.Unique, "unique events emitted"},
		{r.Duplicates, "requests were duplicates"},
		{r.Refused, "requests were rejected"},
		{r.Unanswered, "requests got no verdict"},
		{l.dead, "records in the dead-letter topic"},
		{r.Missing, "missing"},
		{r.Extra, "extra: emitted twice or never requested"},
		{r.Altered, "altered"},
	} {
		cli.Printf(l.out, "  %8d  %s\n", line.n, line.what)
	}
	for _, fault := range l.faults {
		cli.Printf(l.out, "  ! %s\n", fault)
	}
}
