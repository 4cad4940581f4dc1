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
)

// httpLedger is the demo's own account of requests and answers: what their
// senders were told, and whether the output is that. Each request bears a
// number that travels with its event, so that no dedup key is needed to know
// an event again.
type httpLedger struct {
	out   io.Writer // for the person watching
	paths map[string]string

	mu         sync.Mutex
	requests   []httpEntry
	passed     map[[2]string]int // by key and attempt, records in the output that are said to be the first
	keys       map[string]bool   // in the output
	dead       int
	missingKey int // events without a key that were accepted

	httpResult
	faults []string
}

// httpEntry is one request to a route's path.
type httpEntry struct {
	route  string
	digest [sha256.Size]byte // of the body
	key    string            // as answered; "" if it was not
	fate   fate
	found  int // records in the outputs
}

// fate is what a request's sender was told.
type fate int

const (
	fateUnknown fate = iota // nothing, or that nothing is known
	fateRefused
	fatePassed
	fateCopy
)

func newHTTPLedger(out io.Writer, routes *rules.Routes) *httpLedger {
	l := &httpLedger{out: out, paths: map[string]string{}, passed: map[[2]string]int{}, keys: map[string]bool{}}
	for _, r := range routes.Routes {
		l.paths[r.HTTP.Path] = r.Name
	}
	return l
}

// around enters every request and its answer, also where the handler panics:
// then nobody was told anything.
func (l *httpLedger) around(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &answerSeen{ResponseWriter: w}
		defer func() {
			cli.Printf(l.out, "  %-4s %.60q  %d %s\n", r.Method, r.URL.Path, answer.status, answer.Header().Get("Oncebus-Verdict"))
		}()
		if route, ok := l.paths[r.URL.Path]; ok {
			number := l.enter(route)
			r.Header.Set(headerRecord, strconv.Itoa(number))
			body := &bodySeen{ReadCloser: r.Body, hash: sha256.New()}
			r.Body = body
			defer func() { l.answered(number, body, answer) }()
		}
		next.ServeHTTP(answer, r)
	})
}

// enter adds a request and returns its number.
func (l *httpLedger) enter(route string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests = append(l.requests, httpEntry{route: route})
	return len(l.requests) - 1
}

// answered notes what the sender was told.
func (l *httpLedger) answered(number int, body *bodySeen, answer *answerSeen) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := &l.requests[number]
	body.hash.Sum(e.digest[:0])
	e.key = answer.Header().Get("Oncebus-Key")
	verdict := answer.Header().Get("Oncebus-Verdict")
	switch {
	case slices.Contains([]string{"duplicate", "replayed", "in_progress"}, verdict):
		e.fate = fateCopy
	case answer.status == http.StatusAccepted:
		e.fate = fatePassed
		if verdict == dedup.MissingKey.String() {
			l.missingKey++
		}
	case answer.status >= 400 && answer.status < 500:
		e.fate = fateRefused
	}
}

// acceptedMissingKey counts the accepted events for whose verdict nobody waited.
func (l *httpLedger) acceptedMissingKey() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.missingKey
}

// bodySeen digests a body as it is read.
type bodySeen struct {
	io.ReadCloser
	hash hash.Hash
}

func (b *bodySeen) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.hash.Write(p[:n])
	return n, err
}

// answerSeen keeps the status of an answer; 0 if there was none.
type answerSeen struct {
	http.ResponseWriter
	status int
}

func (a *answerSeen) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController at the connection.
func (a *answerSeen) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// output judges a record read from the output topic of route.
func (l *httpLedger) output(route string, r *kgo.Record) {
	l.mu.Lock() // a request that was cut off may still end
	defer l.mu.Unlock()
	key := header(r, "oncebus-key")
	l.keys[key] = true
	if header(r, "oncebus-verdict") == dedup.Unique.String() {
		first := [2]string{key, header(r, "oncebus-attempt")}
		if l.passed[first]++; l.passed[first] > 1 {
			l.fault(&l.Extra, r, "another event with its key passed before")
			return
		}
	}
	number, err := strconv.Atoi(header(r, headerRecord))
	if err != nil || number < 0 || number >= len(l.requests) {
		l.fault(&l.Extra, r, "no request brought it")
		return
	}
	e := &l.requests[number]
	e.found++
	switch {
	case e.found > 1:
		l.fault(&l.Extra, r, "it was there before")
	case e.fate == fateCopy:
		l.fault(&l.Extra, r, "its sender was told that it is a copy")
	case e.fate == fateRefused:
		l.fault(&l.Extra, r, "its sender was told that it is refused")
	case e.route != route || sha256.Sum256(r.Value) != e.digest:
		l.fault(&l.Altered, r, "route or value are not those of the request")
	}
}

// deadLetter counts; a request that was accepted and ended there is missing.
func (l *httpLedger) deadLetter(*kgo.Record) { l.dead++ }

// close counts what was promised and never found.
func (l *httpLedger) close() httpResult {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.requests {
		e := &l.requests[i]
		switch e.fate {
		case fateUnknown:
			l.Unanswered++
		case fateRefused:
			l.Refused++
		case fatePassed:
			if l.Events++; e.found > 0 {
				l.Unique++
				continue
			}
			l.Missing++
			l.note("request %d (%s), which was accepted, is missing", i, e.route)
		case fateCopy:
			l.Duplicates++
			if l.Events++; !l.keys[e.key] {
				l.Missing++
				l.note("request %d (%s) was called a copy, and its first is missing", i, e.route)
			}
		}
	}
	return l.httpResult
}

func (l *httpLedger) fault(count *int, r *kgo.Record, what string) {
	*count++
	l.note("%s/%d/%d (request %s): %s", r.Topic, r.Partition, r.Offset, header(r, headerRecord), what)
}

func (l *httpLedger) note(format string, args ...any) {
	if len(l.faults) < faultsMax {
		l.faults = append(l.faults, fmt.Sprintf(format, args...))
	}
}

// report prints the result for a person.
func (l *httpLedger) report(r httpResult) {
	cli.Printf(l.out, "\nRead back and compared with what senders were told:\n")
	for _, line := range []struct {
		n    int
		what string
	}{
		{r.Events, "requests were answered with a verdict"},
		{r.Unique, "events came out"},
		{r.Duplicates, "requests were copies, and none of them came out"},
		{r.Refused, "requests were refused"},
		{r.Unanswered, "requests ended without an answer that says what became of them"},
		{l.dead, "records are in the dead-letter topic"},
		{r.Missing, "missing"},
		{r.Extra, "there twice, or from nowhere"},
		{r.Altered, "altered"},
	} {
		cli.Printf(l.out, "  %8d  %s\n", line.n, line.what)
	}
	for _, fault := range l.faults {
		cli.Printf(l.out, "  ! %s\n", fault)
	}
}
