//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
)

// executions has the executions of one operation, by the token of the attempt.
type executions map[string]int

func (e executions) total() (n int) {
	for _, times := range e {
		n += times
	}
	return n
}

// countExecutions reads the executors' journals: each line with the state done is one execution. The keys of
// the returned map are the accounts of the operations.
func countExecutions(paths []string) (map[string]executions, error) {
	counted := map[string]executions{}
	for _, path := range paths {
		if err := countIn(counted, path); err != nil {
			return nil, fmt.Errorf("journal %s: %w", path, err)
		}
	}
	return counted, nil
}

func countIn(counted map[string]executions, path string) (err error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // the executor of this journal has not started yet
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	lines := bufio.NewReader(file)
	for {
		text, readErr := lines.ReadBytes('\n')
		if readErr != nil {
			return nil // a line without an end is still being written
		}
		var line struct {
			State, Token string
			Result       []byte
		}
		if err := json.Unmarshal(text, &line); err != nil {
			return err
		}
		if line.State != "done" {
			continue
		}
		var result struct{ Account string }
		if err := json.Unmarshal(line.Result, &result); err != nil {
			return fmt.Errorf("result %q: %w", line.Result, err)
		}
		if counted[result.Account] == nil {
			counted[result.Account] = executions{}
		}
		counted[result.Account][line.Token]++
	}
}

// findings compares the requests that were sent with what was executed and answered.
type findings struct {
	Operations, Duplicates  int
	ByTopic, ByHTTP         int
	Dispatched, Executed    int // events in the output; journal lines with the state done
	Never, Repeated         int // operations that were never executed; operations that were executed twice or more
	SeveralAttempts         int // how many of the repeated operations were executed in two or more attempts
	Unanswered, Twice       int // requests without a reply; with two or more
	Results                 int // replies that contain the result
	Wrong                   []string
	Responses, ReplyVerdict map[string]int
}

// wrongMax limits the number of wrong operations and requests that a report lists.
const wrongMax = 20

func judge(counted map[string]executions, out *senders, log *replies) findings {
	out.mu.Lock()
	defer out.mu.Unlock()
	log.mu.Lock()
	defer log.mu.Unlock()
	f := findings{Dispatched: log.runs, Responses: out.responses, ReplyVerdict: log.kinds, Wrong: slices.Concat(out.wrong, log.wrong)}
	executed := map[string]bool{}
	for i := range out.sent {
		q := &out.sent[i]
		f.answered(q, log)
		if !executed[q.account()] {
			executed[q.account()] = true
			f.execution(q, counted[q.account()])
		}
	}
	f.replied(out, log)
	slices.Sort(f.Wrong)
	return f
}

func (f *findings) wrong(format string, args ...any) {
	f.Wrong = append(f.Wrong, fmt.Sprintf(format, args...))
}

// answered counts a request and the replies to it.
func (f *findings) answered(q *request, log *replies) {
	if q.duplicate {
		f.Duplicates++
	}
	if q.byHTTP {
		f.ByHTTP++
	} else {
		f.ByTopic++
	}
	if !log.requests[q.id] {
		f.Unanswered++
		f.wrong("request %s has no reply", q.id)
	}
	result, ok := log.results[q.id]
	if !ok {
		return
	}
	f.Results++
	if result != q.result() {
		f.wrong("request %s got the result %s, want %s", q.id, result, q.result())
	}
}

// execution counts an operation and its executions.
func (f *findings) execution(q *request, done executions) {
	f.Operations++
	f.Executed += done.total()
	switch {
	case len(done) == 0:
		f.Never++
		f.wrong("operation %s was not executed", q.account())
	case done.total() > 1:
		f.Repeated++
		if len(done) > 1 {
			f.SeveralAttempts++
		}
		f.wrong("operation %s was executed %d times, as %d attempts", q.account(), done.total(), len(done))
	}
}

// replied finds requests by topic without a reply or with several, and requests by HTTP without a response.
func (f *findings) replied(out *senders, log *replies) {
	for place, id := range out.byTopic {
		if log.bySource[place] == 0 {
			f.Unanswered++
			f.wrong("request %s, event %s, has no reply", id, place)
		}
	}
	for place, n := range log.bySource {
		if n > 1 {
			f.Twice++
			f.wrong("event %s has %d replies", place, n)
		}
	}
	if f.ByHTTP != out.answered {
		f.Unanswered += f.ByHTTP - out.answered
		f.wrong("%d of %d requests by HTTP have a response", out.answered, f.ByHTTP)
	}
}

// err returns an error that names the operations and requests that break the promise. In a run with
// -fenced=false it returns an error if no operation was executed in several attempts.
func (f *findings) err(s settings) error {
	if !s.fenced {
		if f.SeveralAttempts == 0 {
			return errors.New("no operation was executed as several attempts: the run does not show what the fences prevent")
		}
		return nil
	}
	if len(f.Wrong) == 0 {
		return nil
	}
	return fmt.Errorf("%d findings, the first: %s", len(f.Wrong), f.Wrong[0])
}
