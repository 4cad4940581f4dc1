package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
)

// journal is a file with two lines for each event: one before the work, and one with the outcome. The executor
// continues only when the line is on the disk. If a crash leaves only the first of the two lines, the work may have
// had its effect. The first line of the file has the start id of the executor: oncebus does not grant a start again
// to a process with another journal or without one. The file is locked. Without a path the journal stores nothing.
type journal struct {
	id    string
	file  *os.File
	begun map[string]bool
	done  map[string]line
}

type line struct {
	ID     string `json:"id,omitempty"` // only in the first line of the file
	Event  string `json:"event,omitempty"`
	Kind   string `json:"kind,omitempty"` // the kind of the outcome; "" in the line before the work
	Result []byte `json:"result,omitempty"`
}

func openJournal(path, instance string) (*journal, error) {
	j := &journal{id: instance, begun: map[string]bool{}, done: map[string]line{}}
	if path == "" {
		return j, nil
	}
	var err error
	if j.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if err := syscall.Flock(int(j.file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("journal %s: another process has it: %w; give each process a journal of its own", path, err)
	}
	drawn := true
	lines := bufio.NewScanner(j.file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var l line
		switch err := json.Unmarshal(lines.Bytes(), &l); {
		case err != nil: // a crash cut the line short, so the executor has not done what the line announces
		case l.ID != "":
			j.id, drawn = l.ID, false
		default:
			j.begun[l.Event] = true
			if l.Kind != "" {
				j.done[l.Event] = l
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if _, err = j.file.WriteString("\n"); err != nil { // ends a line that a crash cut short
		return nil, fmt.Errorf("journal: %w", err)
	}
	if drawn {
		j.id += "-" + rand.Text()
		err = j.write(line{ID: j.id})
	}
	return j, err
}

func (j *journal) outcome(event string) (kind string, result []byte, known bool) {
	l, known := j.done[event]
	return l.Kind, l.Result, known
}

// begin writes that the work on an event begins, and returns whether the journal already said so.
func (j *journal) begin(event string) (again bool, err error) {
	if j.begun[event] {
		return true, nil
	}
	j.begun[event] = true
	return false, j.write(line{Event: event})
}

func (j *journal) end(event, kind string, result []byte) error {
	l := line{Event: event, Kind: kind, Result: result}
	j.done[event] = l
	return j.write(l)
}

func (j *journal) write(l line) error {
	if j.file == nil {
		return nil
	}
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	return j.file.Sync()
}
