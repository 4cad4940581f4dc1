package oracle

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"encoding/json"
	"errors"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
)

// keptHistory is the file that the simulation writes.
type keptHistory struct {
	Config  Config
	History *History
}

// TestKeptHistory checks the history of a failed run again:
//
//	ONCEBUS_HISTORY=seed-7.history.json go test ./processor/oracle -run TestKeptHistory -v
//
// It reads the simulation's .json and the fault harness's .gob.gz.
func TestKeptHistory(t *testing.T) {
	path := os.Getenv("ONCEBUS_HISTORY")
	if path == "" {
		t.Skip("ONCEBUS_HISTORY names no file")
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	kept, err := readKept(path, file)
	if err != nil {
		t.Fatal(err)
	}
	report, violations := Check(kept.Config, kept.History)
	t.Log(report)
	for _, v := range violations {
		t.Error(v)
	}
}

func readKept(path string, r io.Reader) (kept keptHistory, err error) {
	if strings.HasSuffix(path, ".json") {
		err = json.NewDecoder(r).Decode(&kept)
		return kept, err
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return kept, err
	}
	dec := gob.NewDecoder(z)
	err = errors.Join(dec.Decode(&kept.Config), dec.Decode(&kept.History), z.Close())
	return kept, err
}

// TestHistoryRoundTrip: a history survives encoding and decoding, with the same findings.
func TestHistoryRoundTrip(t *testing.T) {
	w := story()
	h := w.end()
	text, err := json.Marshal(keptHistory{w.cfg, h})
	if err != nil {
		t.Fatal(err)
	}
	kept, err := readKept("history.json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(kept, keptHistory{w.cfg, h}) {
		t.Error("JSON decodes to another history")
	}
	// gob does not distinguish null from empty; no finding depends on that.
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	enc := gob.NewEncoder(z)
	if err := errors.Join(enc.Encode(w.cfg), enc.Encode(h), z.Close()); err != nil {
		t.Fatal(err)
	}
	if kept, err = readKept("history.gob.gz", &b); err != nil {
		t.Fatal(err)
	}
	if _, violations := Check(kept.Config, kept.History); len(violations) > 0 {
		t.Error(ids(t, violations))
	}
	var s Store
	if err := json.Unmarshal([]byte(`{"Rows":{"no hex":""}}`), &s); err == nil {
		t.Error("a digest that is not hex was accepted")
	}
	if err := json.Unmarshal([]byte(`{"Rows":1}`), &s); err == nil {
		t.Error("malformed rows were accepted")
	}
}
