package transfer

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
)

// seedsOf reads all lines of a text as seeds of a route with the key id, first seen at 5.
func seedsOf(t *testing.T, text string) (seeds []Seed, err error) {
	t.Helper()
	at := int64(5)
	return seedsFor(t, "name: signals, key: [{field: id}]", text, &at)
}

// seedsFor reads all lines of a text as seeds of a route.
func seedsFor(t *testing.T, route, text string, first *int64) (seeds []Seed, err error) {
	t.Helper()
	routes, err := rules.ParseRoutes("", []byte("routes:\n- {topics: [raw], window: 24h, output: unique, "+route+"}\n"))
	if err != nil {
		t.Fatal(err)
	}
	source, err := (&Client{routes: routes, app: &app.App{}}).Lines(strings.NewReader(text), &app.Route{Route: routes.Routes[0]}, first)
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

// operations is a route in claim mode.
const operations = "name: ops, mode: claim, key: [{fields: [account, id]}], outcomes: outcomes, replies: replies, lease: 1m, while_in_progress: reject, request: {field: id}, result_limit: 64"

// TestLinesBringStoredOutcomes: a line of a route in claim mode is an operation with its result, byte for byte.
func TestLinesBringStoredOutcomes(t *testing.T) {
	id := `"id":["a","1"],"first_seen":7`
	for line, want := range map[string]dedup.Claim{
		`{"status":"completed",` + id + `}`:                                                       {},
		`{"status":"completed","result":null,` + id + `}`:                                         {},
		`{"status":"completed","result":"",` + id + `}`:                                           {Result: []byte{}},
		`{"status":"completed","result":"d\u00f6ne\n",` + id + `}`:                                {Result: []byte("döne\n")},
		`{"status":"completed","result":{"n": 1.50},` + id + `}`:                                  {Result: []byte(`{"n": 1.50}`)},
		`{"status":"completed","result":"{\"n\": 1}","http_status":201,` + id + `}`:               {Result: []byte(`{"n": 1}`), Headers: []dedup.Header{{Key: "http-status", Value: []byte("201")}}},
		`{"status":"completed","result_base64":"AP8=","content_type":"application/x",` + id + `}`: {Result: []byte{0, 0xff}, Headers: []dedup.Header{{Key: "content-type", Value: []byte("application/x")}}},
		`{"status":"submitted",` + id + `}`:                                                       {Bypassed: true},
		`{"status":"in_progress",` + id + `}`:                                                     {},
		`{"status":"in_progress","event":{"account":"a","id":"1"},"first_seen":7}`:                {Original: []byte("1")},
	} {
		seeds, err := seedsFor(t, operations, line, nil)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		row, err := dedup.DecodeValue(seeds[0].Digest, seeds[0].value)
		if err != nil {
			t.Fatal(err)
		}
		claim, err := row.SeedClaim()
		if want.Key = claim.Key; err != nil || !reflect.DeepEqual(claim, want) || seeds[0].First != 7 || !strings.Contains(line, row.Status.String()) {
			t.Errorf("%s: %v %+v of %+v, %v", line, row.Status, claim, seeds[0], err)
		}
	}
}

// TestWrongOutcomesNameFieldAndWayOut: nothing of a table is left out without a word.
func TestWrongOutcomesNameFieldAndWayOut(t *testing.T) {
	const id = `,"id":["a","1"],"first_seen":7}`
	for line, want := range map[string]string{
		"a\t7":                                  `route ops is in claim mode, and the line has no outcome to replay: want {"id":...`,
		`{"account":"a","id":"1"}`:              `unknown field "account": want {"id":...`,
		`{"first_seen":7,"status":"completed"}`: "want one of id, event and key",
		`{"key":"x","first_seen":7,"status":"completed"}`:                       `field key: want 64 hexadecimal digits, after "ops:" or nothing, not "x"`,
		`{"id":["a","1"],"status":"completed"}`:                                 "field first_seen is missing: give it, or give all lines without one a time by --first-seen",
		`{"id":["a","1"],"first_seen":7}`:                                       "field status is missing: want completed, submitted or in_progress",
		`{"status":"done"` + id:                                                 `field status: want completed, submitted or in_progress, not "done"`,
		`{"status":"failed"` + id:                                               "field status: failed leaves the key free, so leave the line out",
		`{"status":"submitted","result":"x"` + id:                               "field status is submitted, so the line has no result",
		`{"status":"completed","result":1,"result_base64":""` + id:              "fields result and result_base64: give one of them",
		`{"status":"completed","result_base64":"?"` + id:                        "field result_base64: illegal base64 data at input byte 0",
		`{"status":"completed","content_type":"json"` + id:                      `field content_type: want a media type such as application/json, not "json"`,
		`{"status":"completed","http_status":42` + id:                           "field http_status: want a status from 200 to 599, not 42",
		"{\"status\":\"completed\",\"result\":\"\xff\"" + id:                    "field result: the text is not valid UTF-8: give its bytes by result_base64",
		`{"status":"completed","result":"\ud800"` + id:                          "field result: the text is not valid UTF-8",
		`{"status":"completed","result":"` + strings.Repeat("x", 65) + `"` + id: "field result: it has 65 bytes with its headers, and result_limit of route ops is 64: raise result_limit",
		`{"status":"completed"` + id + id:                                       "more than one object",
	} {
		seeds, err := seedsFor(t, operations, line, nil)
		if err == nil || !strings.Contains(err.Error(), "line 1: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %d seeds, %v; want %q", line, len(seeds), err, want)
		}
	}
	seeds, err := seedsOf(t, `{"id":"a","first_seen":7,"status":"completed"}`)
	if err == nil || !strings.Contains(err.Error(), "line 1: route signals is in plain mode, which stores no outcome: leave out status") {
		t.Errorf("%d seeds, %v", len(seeds), err)
	}
}

// TestLinesOfBareKeys: a table of another guard has only hashes, with the name of the guard before each.
func TestLinesOfBareKeys(t *testing.T) {
	const webhooks = "name: webhooks, namespace: webhook, key: [{hash: [eventId]}]"
	first := int64(5)
	want, err := seedsFor(t, webhooks, `{"event":{"eventId":"e"},"first_seen":5}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	key := fmt.Sprintf("%x", sha256.Sum256([]byte(`{"eventId":"e"}`)))
	for _, line := range []string{key, "webhook:" + key, strings.ToUpper(key), key + "\t5", `{"key":"` + key + `","first_seen":5}`, `{"key":"webhook:` + key + `","first_seen":5}`} {
		seeds, err := seedsFor(t, webhooks, line, &first)
		if err != nil || len(seeds) != 1 || seeds[0].Digest != want[0].Digest || seeds[0].routing != want[0].routing || seeds[0].First != 5 {
			t.Errorf("%s: %+v, %v", line, seeds, err)
		}
	}
	for line, text := range map[string]string{
		"other:" + key: `the key of "other" is not one of route webhooks: want 64 hexadecimal digits, after "webhook:" or nothing`,
		"x" + key:      `want 64 hexadecimal digits, after "webhook:" or nothing, not "x` + key,
		"e":            "route webhooks has no key of that one id: its sources are hash: [eventId]; pass the event, or its key of 64 hexadecimal digits",
	} {
		if seeds, err := seedsFor(t, webhooks, line, &first); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %+v, %v", line, seeds, err)
		}
	}
	// An id of 64 digits is an id where the route has one, unless the line says that it is a key.
	ids, err := seedsOf(t, key)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := seedsOf(t, `{"key":"`+key+`","first_seen":5}`)
	if err != nil || ids[0].Digest == keys[0].Digest {
		t.Errorf("%+v, %v", keys, err)
	}
	if seeds, err := seedsFor(t, "name: orders, key: [order]", key, &first); err == nil || !strings.Contains(err.Error(), "each line must be an event") {
		t.Errorf("%+v, %v", seeds, err)
	}
}
