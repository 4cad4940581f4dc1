package rules

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Normaliser is one step that makes different spellings of an id equal.
type Normaliser struct {
	kind   normaliserKind
	places int        // kind decimals
	step   int64      // kind step, in milliseconds
	format TimeFormat // step
	auto   bool       // kind step: the file gives no format; a number is unix_ms, a string rfc3339
}

type normaliserKind uint8

const (
	trim     normaliserKind = iota // cuts Unicode white space at both ends
	upper                          // Unicode simple case mapping, rune by rune
	lower                          // the same, to lower case
	decimals                       // a fixed number of decimals, rounded half to even
	step                           // a time, cut down to a multiple of a duration
)

var normaliserNames = [...]string{"trim", "upper", "lower", "decimals", "step"}

// decimalPlacesMax is the most decimals of the normaliser decimals.
const decimalPlacesMax = 100

// String returns the normaliser in the form that KeyRule pins.
func (n Normaliser) String() string {
	name := normaliserNames[n.kind]
	switch {
	case n.kind == decimals:
		return name + "(" + strconv.Itoa(n.places) + ")"
	case n.kind == step && n.auto:
		return name + "(" + strconv.FormatInt(n.step, 10) + "ms)"
	case n.kind == step:
		return name + "(" + strconv.FormatInt(n.step, 10) + "ms," + n.format.String() + ")"
	}
	return name
}

// StepsText returns normalisers as they are shown to a person.
func StepsText(steps []Normaliser) string {
	texts := make([]string, len(steps))
	for i, n := range steps {
		texts[i] = n.String()
	}
	return strings.Join(texts, ", ")
}

// scalar is an id before or after normalisation. The text of a JSON number stays its literal until
// Deriver.write, so that decimals are exact.
type scalar struct {
	text   []byte
	number bool
}

// normalise applies the steps in order. It appends new text to d.text, because earlier results alias d.text. If
// a text is empty, normalise applies no further step to it, so that the same values count as empty with and
// without steps.
func (d *Deriver) normalise(s scalar, steps []Normaliser) (scalar, string) {
	for i := range steps {
		if len(s.text) == 0 {
			break
		}
		n, mark := &steps[i], len(d.text)
		switch n.kind {
		case trim:
			if !s.number {
				s.text = bytes.TrimSpace(s.text)
			}
			continue
		case upper, lower:
			if s.number {
				continue
			}
			d.text = appendCase(d.text, s.text, n.kind == upper)
			s.text = d.text[mark:]
		case decimals:
			v, reason := parseDecimal(d.digits, s.text)
			d.digits = v.digits[:0]
			if reason != "" {
				return s, reason
			}
			d.text = v.appendFixed(d.text, n.places)
			s = scalar{text: d.text[mark:]}
		case step:
			ms, reason := d.time(s, n.format, n.auto)
			if reason != "" {
				return s, reason
			}
			d.text = strconv.AppendInt(d.text, ms/n.step*n.step, 10)
			s = scalar{text: d.text[mark:], number: true}
		}
	}
	return s, ""
}

// appendCase appends text in upper or lower case. It copies bytes that are not UTF-8 unchanged, because a
// replacement character would merge different ids.
func appendCase(dst, text []byte, toUpper bool) []byte {
	for len(text) > 0 {
		r, size := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && size == 1:
			dst = append(dst, text[0])
		case toUpper:
			dst = utf8.AppendRune(dst, unicode.ToUpper(r))
		default:
			dst = utf8.AppendRune(dst, unicode.ToLower(r))
		}
		text = text[size:]
	}
	return dst
}

// lastTime is the latest valid event time: the end of the year 9999, in Unix
// milliseconds. The earliest is 0.
const lastTime int64 = 253402300799999

const (
	reasonTimeRange   = "the time is not between 1970 and 9999"
	reasonSeconds     = "the time is in January to April of 1970 as milliseconds, and in the present as seconds: set format: unix_s"
	reasonMillis      = "the time is after 9999 as seconds, and in the present as milliseconds: set format: unix_ms"
	reasonMicros      = "the time is after 9999 as milliseconds, and in the present as microseconds: send milliseconds"
	reasonTimeNumber  = "want a time as a number"
	reasonTimeRFC3339 = "want a time such as 2026-01-02T15:04:05Z (RFC 3339)"
)

// time parses an event time and returns it in whole Unix milliseconds, rounded
// down. With auto, a number is unix_ms and a string rfc3339.
func (d *Deriver) time(s scalar, format TimeFormat, auto bool) (int64, string) {
	if auto && !s.number {
		format = RFC3339
	}
	var ms int64
	if format == RFC3339 {
		var ok bool
		if ms, ok = parseRFC3339(s.text); s.number || !ok {
			return 0, reasonTimeRFC3339
		}
	} else {
		v, reason := parseDecimal(d.digits, s.text)
		d.digits = v.digits[:0]
		shift := 0
		if format == UnixSecond {
			shift = 3
		}
		var fits bool
		if ms, fits = v.floor(shift); reason != "" {
			return 0, reasonTimeNumber
		} else if reason = unitMistake(format, ms, fits); reason != "" {
			return 0, reason
		} else if !fits {
			return 0, reasonTimeRange
		}
	}
	if ms < 0 || ms > lastTime {
		return 0, reasonTimeRange
	}
	return ms, ""
}

// nowFrom and nowTo bound what counts as a present time, in Unix seconds: from September 2001 to November 2286.
// If a number is a present time only when it is read in another unit, the unit of the route is probably wrong.
const nowFrom, nowTo = 1_000_000_000, 10_000_000_000

// unitMistake returns why a number is refused as a time of that format, if the number is a present time only in
// another unit; "" for any other number. A time in the wrong unit would make the window a thousand times as
// long, or as short.
func unitMistake(format TimeFormat, ms int64, fits bool) string {
	within := func(unit int64) bool { return fits && ms/unit >= nowFrom && ms/unit < nowTo }
	switch {
	case format == UnixMilli && within(1):
		return reasonSeconds
	case format == UnixSecond && within(1_000_000):
		return reasonMillis
	case format == UnixMilli && within(1_000_000):
		return reasonMicros
	}
	return ""
}

// stepFields lists the fields of a normaliser that is an object.
var stepFields = []fieldOf[Normaliser]{
	{"decimals", func(d *decoder, x *Normaliser, n *yaml.Node, at string) {
		x.kind = decimals
		x.places = d.integer(n, at, 0, decimalPlacesMax)
	}},
	{"step", func(d *decoder, x *Normaliser, n *yaml.Node, at string) {
		x.kind = step
		x.step = d.stepMS(n, at)
	}},
	{"format", func(d *decoder, x *Normaliser, n *yaml.Node, at string) { x.format = d.timeFormat(n, at) }},
}

// normaliseOne reads the normalisers of a source that reads one value.
func normaliseOne(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	s.fields[0].Normalise = d.steps(n, at)
}

// normaliseByPath reads an object that has normalisers for some of the paths.
func normaliseByPath(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	var fields []fieldOf[sourceDraft]
	for i := range s.fields {
		fields = append(fields, fieldOf[sourceDraft]{s.fields[i].Path.Text,
			func(d *decoder, s *sourceDraft, n *yaml.Node, at string) { s.fields[i].Normalise = d.steps(n, at) }})
	}
	decodeObject(d, n, at, s, fields)
}

// steps reads one normaliser or a list of them.
func (d *decoder) steps(n *yaml.Node, at string) []Normaliser {
	if n.Kind != yaml.SequenceNode {
		return []Normaliser{d.step(n, at)}
	}
	var steps []Normaliser
	d.list(n, at, func(n *yaml.Node, at string) { steps = append(steps, d.step(n, at)) })
	return steps
}

func (d *decoder) step(n *yaml.Node, at string) Normaliser {
	var x Normaliser
	if n.Kind == yaml.ScalarNode {
		i := slices.Index(normaliserNames[:decimals], n.Value)
		if i < 0 {
			d.fail(n, at, "want trim, upper, lower, {decimals: N} or {step: DURATION}, found %s", describe(n))
			return x
		}
		return Normaliser{kind: normaliserKind(i)}
	}
	nodes := decodeObject(d, n, at, &x, stepFields)
	if nodes == nil {
		return x
	}
	_, places := nodes["decimals"]
	_, truncate := nodes["step"]
	_, format := nodes["format"]
	if places == truncate || format && !truncate {
		d.fail(n, at, "want {decimals: N}, {step: DURATION} or {step: DURATION, format: FORMAT}")
	}
	x.auto = truncate && !format
	return x
}

// stepMS reads a duration of at least a millisecond, in milliseconds.
func (d *decoder) stepMS(n *yaml.Node, at string) int64 {
	return max(d.duration(n, at, shortestWindow).Milliseconds(), 1)
}
