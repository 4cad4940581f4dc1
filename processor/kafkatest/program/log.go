//go:build unix

package program

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"sync"
)

// tailLines is how many lines from the end of the log an error contains.
const tailLines = 30

// Entry is a line of the log that is a JSON object.
type Entry map[string]any

// Log reads the log file of one process. Earlier processes may have written to the same file. Every method first
// reads the lines that are new in the file. Lines are JSON objects, except the lines of a crash and of fault points
// ("failpoint: name").
type Log struct {
	path string
	from int64 // offset at which the lines of this process begin

	mu      sync.Mutex
	read    int64 // offset after the last complete line that was read
	tail    []string
	first   map[string]Entry // first entry of each message
	counts  map[string]int   // number of entries by message, and by message and task
	failure string
}

// openLog returns a Log of the lines that are written from now on.
func openLog(path string) (*Log, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("open a log: %w", err)
	}
	return &Log{path: path, from: info.Size(), read: info.Size(), first: map[string]Entry{}, counts: map[string]int{}}, nil
}

// catchUp reads the lines that are new in the file. If it fails, it puts the error into the tail: callers use the
// tail to explain another failure, or a line that did not come.
func (l *Log) catchUp() {
	if l.path == "" {
		return
	}
	file, err := os.Open(l.path)
	if err != nil {
		l.tail = append(l.tail, err.Error())
		return
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewReader(io.NewSectionReader(file, l.read, math.MaxInt64-l.read))
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil { // the line is incomplete: read it again next time
			break
		}
		l.read += int64(len(line))
		l.note(bytes.TrimSuffix(line, []byte("\n")))
	}
	l.tail = l.tail[max(0, len(l.tail)-tailLines):]
}

func (l *Log) note(line []byte) {
	if l.tail = append(l.tail, string(line)); len(l.tail) > 10*tailLines {
		l.tail = append([]string(nil), l.tail[len(l.tail)-tailLines:]...)
	}
	var fields struct{ Level, Msg, Error, Task string }
	if json.Unmarshal(line, &fields) != nil {
		if point, ok := strings.CutPrefix(string(line), "failpoint: "); ok {
			l.counts["failpoint "+point]++
		} else if l.failure == "" {
			l.failure = string(line)
		}
		return
	}
	l.counts[fields.Msg]++
	if fields.Task != "" {
		l.counts[fields.Msg+" "+fields.Task]++
	}
	if fields.Level == "ERROR" {
		l.failure = fields.Msg + ": " + fields.Error
	}
	if l.first[fields.Msg] == nil {
		l.first[fields.Msg] = parseEntry(line)
	}
}

func parseEntry(line []byte) (e Entry) {
	if json.Unmarshal(line, &e) != nil {
		return nil
	}
	return e
}

// First returns the first entry with this message, or the zero Entry.
func (l *Log) First(msg string) Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUp()
	return l.first[msg]
}

// Count returns how often the process logged msg. For "failpoint name" it returns how often the process reached that
// fault point.
func (l *Log) Count(msg string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUp()
	return l.counts[msg]
}

// CountTask returns how often the process logged msg about a task.
func (l *Log) CountTask(msg, task string) int { return l.Count(msg + " " + task) }

// Failure returns the last entry of level ERROR as "message: error". Without such an entry it returns the first line
// of a crash, or "".
func (l *Log) Failure() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUp()
	return l.failure
}

// Tail returns the last lines of the log.
func (l *Log) Tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.catchUp()
	return strings.Join(l.tail, "\n")
}

// Text returns all output of the process.
func (l *Log) Text() (text string, err error) {
	file, err := os.Open(l.path)
	if err != nil {
		return "", fmt.Errorf("read a log: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	b, err := io.ReadAll(io.NewSectionReader(file, l.from, math.MaxInt64-l.from))
	return string(b), err
}

// Entries returns all lines that are JSON objects.
func (l *Log) Entries() ([]Entry, error) {
	text, err := l.Text()
	var entries []Entry
	for line := range strings.Lines(text) {
		if e := parseEntry([]byte(line)); e != nil {
			entries = append(entries, e)
		}
	}
	return entries, err
}
