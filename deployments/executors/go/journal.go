package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
)

// journal is a file with a line for each event that was executed, so that a crash before the
// commit does not execute it again. It is the effect of this example's work: an executor that
// calls another system asks that system instead. Without a path nothing is kept.
type journal struct {
	file *os.File
	done map[string]line
}

type line struct {
	Token  string `json:"token"`
	Kind   string `json:"kind"`
	Result []byte `json:"result"`
}

func openJournal(path string) (*journal, error) {
	j := &journal{done: map[string]line{}}
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
		if json.Unmarshal(lines.Bytes(), &l) == nil { // else a crash cut it short: it was not executed to its end
			j.done[l.Token] = l
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	_, err = j.file.WriteString("\n") // ends a line that was cut short
	return j, err
}

func (j *journal) outcome(token string) (kind string, result []byte, known bool) {
	l, known := j.done[token]
	return l.Kind, l.Result, known
}

func (j *journal) write(token, kind string, result []byte) error {
	if j.file == nil {
		return nil
	}
	l := line{token, kind, result}
	text, err := json.Marshal(l)
	if err != nil {
		return err
	}
	if _, err := j.file.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	j.done[token] = l
	return j.file.Sync()
}
