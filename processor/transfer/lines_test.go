package transfer

import (
	"errors"
	"io"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
)

// seedsOf reads all lines of a text as seeds of a route with the key id, first seen at 5.
func seedsOf(t *testing.T, text string) (seeds []Seed, err error) {
	t.Helper()
	routes, err := rules.ParseRoutes("", []byte("routes:\n- {name: signals, topics: [raw], key: [{field: id}], window: 24h, output: unique}\n"))
	if err != nil {
		t.Fatal(err)
	}
	at := int64(5)
	source, err := (&Client{routes: routes}).Lines(strings.NewReader(text), &app.Route{Route: routes.Routes[0]}, &at)
	if err != nil {
		return nil, err
	}
	for {
		line, err := source.Next()
		if errors.Is(err, io.EOF) {
			return seeds, nil
		}
		if err != nil {
			return nil, err
		}
		seeds = append(seeds, line...)
	}
}

// TestLinesOfOtherToolsAreTheSameKeys: a byte order mark, the line ends of Windows, and spaces
// before JSON are no part of an id.
func TestLinesOfOtherToolsAreTheSameKeys(t *testing.T) {
	want := func(id string) dedup.Digest {
		seeds, err := seedsOf(t, id)
		if err != nil || len(seeds) != 1 {
			t.Fatal(seeds, err)
		}
		return seeds[0].Digest
	}
	for text, ids := range map[string][]string{
		"\ufeffa\r\nb\r\n":                                   {"a", "b"},
		"\ufeff{\"id\":\"a\",\"first_seen\":7}\n":            {"a"},
		" {\"id\":\"a\",\"first_seen\":7}\n\t{\"id\":\"b\"}": {"a", "b"},
		"\n\n a \nb\ufeff":                                   {" a ", "b\ufeff"},
		"\ufeff":                                             nil,
		"":                                                   nil,
		"{\"id\":\"\\\"a\\\"\",\"first_seen\":7}\n\"": {`{"id":"\"a\""}`, `"`},
	} {
		seeds, err := seedsOf(t, text)
		if err != nil || len(seeds) != len(ids) {
			t.Errorf("%q: %d seeds, %v", text, len(seeds), err)
			continue
		}
		for i, id := range ids {
			if seeds[i].Digest != want(id) {
				t.Errorf("%q: seed %d is not %q", text, i+1, id)
			}
		}
	}
}

// TestFilesThatAreNoLinesAreRefused: with --first-seen any bytes would be ids.
func TestFilesThatAreNoLinesAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		"\x1f\x8b\x08\x00abc":             "the file is compressed with gzip: decompress it first",
		"\x28\xb5\x2f\xfdabc":             "the file is compressed with zstd",
		"\xff\xfea\x00\n\x00":             "the file is UTF-16",
		"\xfe\xff\x00a\x00\n":             "the file is UTF-16",
		"a\n\"b\"\n":                      `line 2: the id is in quotes: write it without, or as {"id":"b"}`,
		"a\t1764109200":                   `line 1: first_seen "1764109200": want Unix milliseconds, and this is a number of seconds`,
		`{"id":"a","first_seen":"1.7e9"}`: `line 1: first_seen "1.7e9": want Unix milliseconds, or`,
	} {
		if seeds, err := seedsOf(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d seeds, %v; want %q", text, len(seeds), err, want)
		}
	}
}
