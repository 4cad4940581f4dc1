package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
)

// journal is a file with two lines for each event: one before its work, and one with its outcome. Both
// are on the disk before the executor goes on. After a crash the first line alone says that the work
// may have had its effect. Its first line is the start id of the executor: with another journal, or without
// this one, no start is granted again. The file is locked. Without a path nothing is kept.
type journal struct {
	id    string
	file  *os.File
	begun map[string]bool
	done  map[string]line
}

type line struct {
	ID     string `json:"id,omitempty"` // of the first line
	Event  string `json:"event,omitempty"`
	Kind   string `json:"kind,omitempty"` // of the outcome; "" before the work
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
		case err != nil: // a crash cut it short: what it announces was not done
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
	if _, err = j.file.WriteString("\n"); err != nil { // ends a line that was cut short
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

// begin notes that the work on an event begins, and returns whether it had begun before.
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
