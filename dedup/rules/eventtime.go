package rules

import (
	"time"

	"go.yaml.in/yaml/v4"
)

// EventTime names the payload field with the event time. With GoesOn, stream time also advances while no events
// arrive, as it does on routes that use the timestamps of records; otherwise stream time advances only with the
// next event.
type EventTime struct {
	Field  Field
	Format TimeFormat
	GoesOn bool
}

// TimeFormat is how an event time is written.
type TimeFormat uint8

// Time formats. Numbers may also be written as strings of digits.
const (
	UnixMilli TimeFormat = iota
	UnixSecond
	RFC3339
)

var timeFormatNames = [...]string{"unix_ms", "unix_s", "rfc3339"}

// String returns the format's name in the routes file.
func (f TimeFormat) String() string { return timeFormatNames[f] }

var timeFields = []fieldOf[EventTime]{
	{"field", func(d *decoder, t *EventTime, n *yaml.Node, at string) { t.Field = d.field(n, at) }},
	{"format", func(d *decoder, t *EventTime, n *yaml.Node, at string) { t.Format = d.timeFormat(n, at) }},
	{"goes_on", func(d *decoder, t *EventTime, n *yaml.Node, at string) { t.GoesOn, _ = d.boolean(n, at) }},
}

func (d *decoder) eventTime(n *yaml.Node, at string) *EventTime {
	t := &EventTime{}
	if nodes := decodeObject(d, n, at, t, timeFields); nodes != nil {
		d.require(n, at, nodes, "field")
	}
	return t
}

func (d *decoder) timeFormat(n *yaml.Node, at string) TimeFormat {
	return TimeFormat(max(0, d.choice(n, at, timeFormatNames[:]...)))
}

// eventTime sets t to the time in the route's time field. Without such a field, t is the record's timestamp,
// which eventTime checks.
func (d *Deriver) eventTime(r *Route, t *int64) status {
	if r.Time == nil {
		if *t < 0 {
			return d.fail("record", "has no timestamp")
		}
		return found
	}
	f := &r.Time.Field
	s, st := d.scalar(f)
	switch st {
	case found:
	case bad:
		return bad
	case none: // unlike a key, a time has only one source
		last := d.skipped[len(d.skipped)-1]
		return d.fail("time "+last.part, last.cause)
	}
	var reason string
	if *t, reason = d.time(s, r.Time.Format, false); reason != "" {
		return d.fail("time "+f.label, reason)
	}
	return found
}

// parseRFC3339 returns a time in Unix milliseconds, rounded down. It accepts what RFC 3339, section 5.6,
// allows: t and z in either case, a fraction after a point, an offset of less than a day, and the second 60
// at the end of a UTC day. In Unix time that second is the first of the next day.
func parseRFC3339(text []byte) (ms int64, ok bool) {
	const form = "0000-00-00t00:00:00"
	if len(text) <= len(form) {
		return 0, false
	}
	for i, want := range []byte(form) {
		if c := text[i]; want == '0' && !isDigit(c) || want == 't' && c|0x20 != 't' || want != '0' && want != 't' && c != want {
			return 0, false
		}
	}
	year, month, day := valueOf(text[:4]), time.Month(valueOf(text[5:7])), valueOf(text[8:10])
	hour, minute, second := valueOf(text[11:13]), valueOf(text[14:16]), valueOf(text[17:19])
	date := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	if date.Month() != month || date.Day() != day || hour > 23 || minute > 59 || second > 60 {
		return 0, false
	}
	fraction, rest, ok := parseMillis(text[len(form):])
	if !ok {
		return 0, false
	}
	offset, ok := parseOffset(rest)
	if !ok {
		return 0, false
	}
	seconds := date.Unix() + int64(hour*3600+minute*60+second-offset)
	const daySeconds = 24 * 60 * 60
	if second == 60 && seconds%daySeconds != 0 {
		return 0, false
	}
	return seconds*1000 + fraction, true
}

// parseMillis reads the fraction of a second in whole milliseconds, and returns the text behind it.
func parseMillis(text []byte) (ms int64, rest []byte, ok bool) {
	if len(text) == 0 || text[0] != '.' {
		return 0, text, true
	}
	text = text[1:]
	n := 0
	for scale := int64(100); n < len(text) && isDigit(text[n]); n++ {
		ms += int64(text[n]-'0') * scale
		scale /= 10
	}
	return ms, text[n:], n > 0
}

// parseOffset reads the offset from UTC, in seconds.
func parseOffset(text []byte) (seconds int, ok bool) {
	if len(text) == 1 {
		return 0, text[0]|0x20 == 'z'
	}
	if len(text) != len("+00:00") || text[3] != ':' || text[0] != '+' && text[0] != '-' {
		return 0, false
	}
	for _, i := range [...]int{1, 2, 4, 5} {
		if !isDigit(text[i]) {
			return 0, false
		}
	}
	hour, minute := valueOf(text[1:3]), valueOf(text[4:6])
	seconds = hour*3600 + minute*60
	if text[0] == '-' {
		seconds = -seconds
	}
	return seconds, hour <= 23 && minute <= 59
}

// valueOf returns the value of a few digits.
func valueOf(text []byte) (n int) {
	for _, c := range text {
		n = n*10 + int(c-'0')
	}
	return n
}
