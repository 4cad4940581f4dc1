//go:build unix

package main

import (
	"bufio"
	"compress/gzip"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"oncebus/processor/oracle"
)

// historyLine is one line of a stored history; each line has one part of the history. JSON, unlike gob,
// distinguishes a record without a value from a record with an empty value.
type historyLine struct {
	Config  *oracle.Config  `json:",omitempty"`
	Sent    *oracle.Sent    `json:",omitempty"`
	Request *oracle.Request `json:",omitempty"`
	Live    *oracle.Record  `json:",omitempty"`
	Final   *oracle.Record  `json:",omitempty"`
	Sample  *oracle.Sample  `json:",omitempty"`
	Store   *oracle.Store   `json:",omitempty"` // with its digests in hex
	Ends    *historyEnds    `json:",omitempty"`
}

type historyEnds struct {
	Open    []string
	Lag     map[string]int64
	Cut     []string       `json:",omitempty"`
	Refused map[string]int `json:",omitempty"`
}

// keep writes the history of an epoch to a file, so that recheck can check it again.
func (e *epoch) keep(cfg oracle.Config, h *oracle.History) error {
	path := filepath.Join(e.h.dir, "history-"+e.name+".jsonl.gz")
	file, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("keep the history: %w", err)
	}
	z := gzip.NewWriter(file)
	if err := errors.Join(writeHistory(z, &cfg, h), z.Close(), file.Close()); err != nil {
		return fmt.Errorf("keep the history in %s: %w", path, err)
	}
	fmt.Printf("history of epoch %s: %s (check it again with -check)\n", e.name, path)
	return nil
}

func writeHistory(w io.Writer, cfg *oracle.Config, h *oracle.History) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	enc := json.NewEncoder(buffered)
	var errs []error
	put := func(l historyLine) {
		if len(errs) == 0 {
			if err := enc.Encode(l); err != nil {
				errs = append(errs, err)
			}
		}
	}
	put(historyLine{Config: cfg})
	for i := range h.Sent {
		put(historyLine{Sent: &h.Sent[i]})
	}
	for i := range h.Requests {
		put(historyLine{Request: &h.Requests[i]})
	}
	for _, records := range h.Live {
		for i := range records {
			put(historyLine{Live: &records[i]})
		}
	}
	for _, records := range h.Final {
		for i := range records {
			put(historyLine{Final: &records[i]})
		}
	}
	for i := range h.Offsets {
		put(historyLine{Sample: &h.Offsets[i]})
	}
	for _, s := range h.Stores {
		rows := make(map[string][]byte, len(s.Rows))
		for digest, row := range s.Rows {
			rows[hex.EncodeToString([]byte(digest))] = row
		}
		s.Rows = rows
		put(historyLine{Store: &s})
	}
	put(historyLine{Ends: &historyEnds{h.Open, h.Lag, h.Cut, h.Refused}})
	return errors.Join(append(errs, buffered.Flush())...)
}

// readHistory reads the output of writeHistory.
func readHistory(r io.Reader) (cfg oracle.Config, h oracle.History, err error) {
	h.Live, h.Final = map[string][]oracle.Record{}, map[string][]oracle.Record{}
	dec := json.NewDecoder(bufio.NewReaderSize(r, 1<<20))
	for {
		var l historyLine
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return cfg, h, nil
		} else if err != nil {
			return cfg, h, fmt.Errorf("read the history: %w", err)
		}
		switch {
		case l.Config != nil:
			cfg = *l.Config
		case l.Sent != nil:
			h.Sent = append(h.Sent, *l.Sent)
		case l.Request != nil:
			h.Requests = append(h.Requests, *l.Request)
		case l.Live != nil:
			h.Live[l.Live.Topic] = append(h.Live[l.Live.Topic], *l.Live)
		case l.Final != nil:
			h.Final[l.Final.Topic] = append(h.Final[l.Final.Topic], *l.Final)
		case l.Sample != nil:
			h.Offsets = append(h.Offsets, *l.Sample)
		case l.Store != nil:
			rows := make(map[string][]byte, len(l.Store.Rows))
			for text, row := range l.Store.Rows {
				digest, err := hex.DecodeString(text)
				if err != nil {
					return cfg, h, fmt.Errorf("read the history: %w", err)
				}
				rows[string(digest)] = row
			}
			l.Store.Rows = rows
			h.Stores = append(h.Stores, *l.Store)
		case l.Ends != nil:
			h.Open, h.Lag, h.Cut, h.Refused = l.Ends.Open, l.Ends.Lag, l.Ends.Cut, l.Ends.Refused
		}
	}
}

// recheck checks a stored history again.
func recheck(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it was only read.
	z, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	cfg, h, err := readHistory(z)
	if err != nil {
		return err
	}
	report, violations := oracle.Check(cfg, &h)
	counts, wrong := judgeClaims(&cfg, &h)
	violations = append(violations, wrong...)
	fmt.Println(report)
	fmt.Println("claim mode:", counts)
	for _, v := range violations {
		fmt.Println(v)
	}
	if len(violations) > 0 {
		return fmt.Errorf("%d violations", len(violations))
	}
	return nil
}
