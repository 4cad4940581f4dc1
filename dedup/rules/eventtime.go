package rules

import "go.yaml.in/yaml/v4"

// EventTime names the payload field with the event time. GoesOn lets stream time go on without
// events, as that of the record's timestamp does; else it waits for the next event.
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

// eventTime sets t to the route's time field. Without one, it checks the record's
// timestamp in t.
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
	case none: // unlike a key, the time has no fallback
		last := d.skipped[len(d.skipped)-1]
		return d.fail("time "+last.part, last.cause)
	}
	var reason string
	if *t, reason = d.time(s, r.Time.Format, false); reason != "" {
		return d.fail("time "+f.label, reason)
	}
	return found
}
