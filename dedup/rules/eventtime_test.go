package rules

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestParseRFC3339: what RFC 3339 allows is read, and nothing else.
func TestParseRFC3339(t *testing.T) {
	t.Parallel()
	const day = 24 * 60 * 60 * 1000
	for text, want := range map[string]int64{
		"1970-01-02T00:00:00Z": day, "1970-01-02t00:00:00z": day, "1970-01-01T23:59:60Z": day, "1970-01-01T23:59:60.25Z": day + 250,
		"1970-01-01T22:59:60-01:00": day, "1970-01-02T01:30:00+01:30": day, "1970-01-01T00:00:00.001999Z": 1, "2024-02-29T00:00:00-00:00": 1709164800000,
		"1970-01-02T02:40:23+23:59": -(23*60+59)*60_000 + day + (2*60+40)*60_000 + 23_000,
	} {
		if got, ok := parseRFC3339([]byte(text)); !ok || got != want {
			t.Errorf("%s is %d, %v, want %d", text, got, ok, want)
		}
	}
	for _, text := range []string{
		"", "1970-01-01T2:40:23Z", "1970-01-01T02:40:23,5Z", "1970-01-01T02:40:23+24:00", "1970-01-01T02:40:23+00:60", "1970-01-01T02:40:23", "1970-01-01 02:40:23Z",
		"1970-01-01T02:40:23.Z", "1970-01-01T02:40:23Zx", "1970-02-30T00:00:00Z", "1970-13-01T00:00:00Z", "1970-00-01T00:00:00Z", "1970-01-00T00:00:00Z", "1970-01-01T24:00:00Z",
		"1970-01-01T00:60:00Z", "1970-01-01T00:00:61Z", "1970-01-01T22:59:60Z", "1970-01-01T23:59:60+01:00", "1970-01-01T02:40:23+0100", "1970-01-01T02:40:23+a1:00", "197a-01-01T00:00:00Z",
	} {
		if got, ok := parseRFC3339([]byte(text)); ok {
			t.Errorf("%s is read as %d", text, got)
		}
	}
}

// TestParseRFC3339AsGo: a time that Go writes is read as Go reads it.
func TestParseRFC3339AsGo(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.Unix(rapid.Int64Range(0, lastTime/1000).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanos"))
		zone := time.FixedZone("", 60*rapid.IntRange(-1439, 1439).Draw(t, "offset"))
		text := at.In(zone).Format(time.RFC3339Nano)
		if at.In(zone).Year() > 9999 || at.In(zone).Year() < 0 {
			return
		}
		if got, ok := parseRFC3339([]byte(text)); !ok || got != at.UnixMilli() {
			t.Fatalf("%s is %d, %v, want %d", text, got, ok, at.UnixMilli())
		}
	})
}

// TestWrongUnitOfTime: a number that is a present time in another unit is no event time, no time of an order
// and no time of a step, as a number and as a string. Numbers next to these are.
func TestWrongUnitOfTime(t *testing.T) {
	for _, of := range []struct{ format, value, want string }{
		{"unix_ms", "1000000000", "set format: unix_s"}, {"unix_ms", "1700000000.5", "set format: unix_s"}, {"unix_ms", "9999999999", "set format: unix_s"}, {"unix_ms", "17e8", "set format: unix_s"},
		{"unix_ms", "999999999", ""}, {"unix_ms", "10000000000", ""}, {"unix_ms", "1700000000000", ""}, {"unix_ms", "0", ""},
		{"unix_ms", "1700000000000000", "send milliseconds"}, {"unix_ms", "1700000000000000000", "between 1970 and 9999"},
		{"unix_s", "1700000000000", "set format: unix_ms"}, {"unix_s", "1700000000", ""}, {"unix_s", "999999999", ""}, {"unix_s", "-1", "between 1970 and 9999"},
	} {
		for _, value := range []string{of.value, strconv.Quote(of.value)} {
			payload := `{"id":1,"at":` + value + `,"account":"A","symbol":"S","side":"buy","quantity":1,"type":"limit","timestamp":` + value + `}`
			for _, got := range []Derived{
				derive(t, "[{field: id}]", payload, "time: {field: at, format: "+of.format+"}"),
				derive(t, "[{order: {format: "+of.format+"}}]", payload),
				derive(t, "[{field: at, normalise: [{step: 1m, format: "+of.format+"}]}]", payload),
			} {
				if (got.Finding == Malformed) != (of.want != "") || !strings.Contains(got.Reason, of.want) {
					t.Errorf("%s %s: %v %q, want %q", of.format, value, got.Finding, got.Reason, of.want)
				}
			}
		}
	}
}
