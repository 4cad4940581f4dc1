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

// States of an attempt in the journal.
const (
	stateAsked = "asked" // its start is being asked for
	stateBegun = "begun" // it is being executed
	stateDone  = "done"  // executed
	stateSent  = "sent"  // the outcomes topic has its outcome, or it was superseded
)

// attempt is a line of the journal: one state of one attempt.
type attempt struct {
	State string `json:"state"`
	Token string `json:"token"` // without a claim: topic, partition and offset

	// Of asked. A restart executes the event from here: another process may have its
	// partition then.
	Key   []byte `json:"key,omitempty"` // the record key
	Value []byte `json:"value,omitempty"`
	Dedup string `json:"dedup,omitempty"` // the dedup key
	// Unclaimed says that the event has no claim: it is not asked for, and only a request that
	// waits gets its outcome, at the address ReplyTo.
	Unclaimed bool   `json:"unclaimed,omitempty"`
	ReplyTo   string `json:"reply_to,omitempty"`

	// Of done.
	Outcome string `json:"outcome,omitempty"`
	Result  []byte `json:"result,omitempty"`
}

// journal is a file with a line for each state of each attempt. Its id is the start id of the
// executor: a start is granted again only to the process that has the journal, and so knows
// what it did. The file is locked, so that this is one process.
//
// An attempt that is begun and not done may have had its effect: after a crash only the
// system that has the effect knows.
type journal struct {
	file     *os.File
	id       string
	attempts map[string]*attempt // open ones, by token
	order    []string            // their tokens
	ended    map[string]bool     // tokens of the attempts that are not open any more
}

// openJournal opens the journal, or creates it.
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

// read reads the lines, and cuts one that a crash left incomplete.
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

// apply moves an attempt to the state of a line.
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

// open returns the attempts without a sent outcome, in their order.
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

// write appends a state of each attempt. With sync the lines survive a crash of the machine.
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

// counting returns work that appends a line done for each execution. Without starts the
// journal only counts: an attempt may have several lines.
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
