package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// journal is a file with two lines for each event: one before its work, and one with its outcome. Both
// are on the disk before the executor goes on. After a crash the first line alone says that the work
// may have had its effect. Without a path nothing is kept.
type journal struct {
	file  *os.File
	begun map[string]bool
	done  map[string]line
}

type line struct {
	Event  string `json:"event"`
	Kind   string `json:"kind,omitempty"` // of the outcome; "" before the work
	Result []byte `json:"result,omitempty"`
}

func openJournal(path string) (*journal, error) {
	j := &journal{begun: map[string]bool{}, done: map[string]line{}}
	if path == "" {
		return j, nil
	}
	var err error
	if j.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	lines := bufio.NewScanner(j.file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var l line
		if json.Unmarshal(lines.Bytes(), &l) == nil { // else a crash cut it short: what it announces was not done
			j.begun[l.Event] = true
			if l.Kind != "" {
				j.done[l.Event] = l
			}
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	_, err = j.file.WriteString("\n") // ends a line that was cut short
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
	l := line{event, kind, result}
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
