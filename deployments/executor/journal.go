package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/twmb/franz-go/pkg/kgo"
)

// The states of an attempt in the journal, in their order.
const (
	stateAsked = "asked" // the executor is asking for the start, or will ask
	stateBegun = "begun" // the work has begun
	stateDone  = "done"  // the work has ended; the outcome is not sent yet
	stateSent  = "sent"  // the outcomes topic has the outcome, or the attempt was superseded
)

// attempt is a line of the journal: one attempt in one state.
type attempt struct {
	State string `json:"state"`
	Token string `json:"token"` // the claim token; for an event without a claim: topic, partition and offset

	// These fields are set in state asked. A restarted executor executes the event from them, because another process
	// may own the event's partition by then.
	Key   []byte `json:"key,omitempty"` // the record key
	Value []byte `json:"value,omitempty"`
	Dedup string `json:"dedup,omitempty"` // the dedup key
	// Unclaimed says that the event has no claim. The executor does not ask for its start, and sends its outcome only
	// to a request that waits for it, at the address ReplyTo.
	Unclaimed bool   `json:"unclaimed,omitempty"`
	ReplyTo   string `json:"reply_to,omitempty"`

	// These fields are set in state done.
	Outcome string `json:"outcome,omitempty"`
	Result  []byte `json:"result,omitempty"`
}

// journal is a file with a line for each state of each attempt. The journal's id is the start id of the executor:
// oncebus grants the repetition of a start only to the same id, that is to the process that has the journal and
// therefore knows what it did. The file is locked, so only one process can use it.
//
// An attempt in state begun may already have had its effect. If the process crashes in this state, only the other
// system, on which the work has its effect, knows.
type journal struct {
	file     *os.File
	id       string
	attempts map[string]*attempt // attempts that are not sent, by token
	order    []string            // the tokens of the open attempts, in their order
	ended    map[string]bool     // the tokens of attempts that are not open any more
}

// openJournal opens the journal at path, or creates it.
func openJournal(path string) (*journal, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	j := &journal{file: file, attempts: map[string]*attempt{}, ended: map[string]bool{}}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("journal %s: another process has it: %w; give each executor a journal of its own", path, err), file.Close())
	}
	if err := j.read(); err != nil {
		return nil, errors.Join(fmt.Errorf("journal %s: %w", path, err), file.Close())
	}
	return j, nil
}

func (j *journal) close() error { return j.file.Close() }

// read reads the lines of the journal. It cuts off a last line that a crash left incomplete.
func (j *journal) read() error {
	text, err := io.ReadAll(j.file)
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	if err := j.file.Truncate(int64(len(text))); err != nil {
		return err
	}
	if _, err := j.file.Seek(int64(len(text)), io.SeekStart); err != nil {
		return err
	}
	lines := bytes.Split(bytes.TrimSuffix(text, []byte("\n")), []byte("\n"))
	if len(text) == 0 {
		var drawn [16]byte
		_, _ = rand.Read(drawn[:]) // never fails
		j.id = "executor-" + hex.EncodeToString(drawn[:])
		return j.append(true, map[string]string{"id": j.id})
	}
	var first struct {
		ID string `json:"id"`
	}
	if err := json.Unmarshal(lines[0], &first); err != nil || first.ID == "" {
		return fmt.Errorf("line 1 has no id: this file is no journal of an executor (%w)", errors.Join(err))
	}
	j.id = first.ID
	for n, line := range lines[1:] {
		var a attempt
		if err := json.Unmarshal(line, &a); err != nil {
			return fmt.Errorf("line %d: %w; restore the file, because attempts in it must not run again", n+2, err)
		}
		j.apply(&a)
	}
	return nil
}

// apply moves an attempt to the state that a line of the journal has.
func (j *journal) apply(a *attempt) {
	known := j.attempts[a.Token]
	switch {
	case a.State == stateSent:
		delete(j.attempts, a.Token)
		j.ended[a.Token] = true
	case known == nil:
		j.attempts[a.Token] = a
		j.order = append(j.order, a.Token)
	case a.State == stateBegun || a.State == stateDone:
		known.State, known.Outcome, known.Result = a.State, a.Outcome, a.Result
	}
}

// open returns the attempts whose outcome is not sent, in the order in which they were written.
func (j *journal) open() (open []*attempt) {
	for _, token := range j.order {
		if a := j.attempts[token]; a != nil {
			open = append(open, a)
		}
	}
	j.order = j.order[:0]
	for _, a := range open {
		j.order = append(j.order, a.Token)
	}
	return open
}

// write appends a line with the current state of each attempt. With sync, write returns only when the lines would
// survive a crash of the machine.
func (j *journal) write(sync bool, attempts ...*attempt) error {
	lines := make([]any, len(attempts))
	for i, a := range attempts {
		lines[i] = a
	}
	if err := j.append(sync, lines...); err != nil {
		return fmt.Errorf("journal %s: %w", j.file.Name(), err)
	}
	for _, a := range attempts {
		j.apply(a)
	}
	return nil
}

// counting wraps work so that it appends a line in state done for each execution. It is for an executor that asks for
// no starts: its journal only counts, so an attempt may have several lines.
func (j *journal) counting(work func(context.Context, *kgo.Record) ([]byte, error)) func(context.Context, *kgo.Record) ([]byte, error) {
	return func(ctx context.Context, event *kgo.Record) ([]byte, error) {
		result, err := work(ctx, event)
		kind, text := outcomeOfWork(result, err)
		line := attempt{State: stateDone, Token: string(headerOf(event, "oncebus-claim-token")), Dedup: string(headerOf(event, "oncebus-key")), Outcome: kind, Result: text}
		return result, errors.Join(err, j.append(false, line))
	}
}

func (j *journal) append(sync bool, lines ...any) error {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	for _, line := range lines {
		if err := encoder.Encode(line); err != nil {
			return err
		}
	}
	if _, err := j.file.Write(text.Bytes()); err != nil || !sync {
		return err
	}
	return j.file.Sync()
}
