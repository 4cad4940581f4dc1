package rules

import (
	"hash/crc32"
	"strconv"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Sender says what identifies the sender of an event, for the counts of duplicates by sender. The sender is
// never part of a key, so an operator may change this setting at any time.
type Sender struct {
	Kind   SenderKind
	Header string // of SenderHeader
	Field  Field  // of SenderField
	tree   *pathNode
}

// SenderKind is the kind of a Sender.
type SenderKind uint8

// Kinds of senders. SenderHTTPSource and SenderProducerID are not in the record that a task reads: they are in
// the envelope that the ingress or the router writes around the event.
const (
	SenderHeader SenderKind = iota
	SenderField
	SenderHTTPSource // the client's address, after trusted proxies
	SenderProducerID // the producer id of the record batch
)

// senderNames are the values of the field sender that need no name of a header or field.
var senderNames = [...]string{"http_source", "producer_id"}

// String returns the sender as it is shown to a person.
func (s *Sender) String() string {
	switch s.Kind {
	case SenderHeader:
		return "header " + s.Header
	case SenderField:
		return "field " + s.Field.Path.Text
	case SenderHTTPSource, SenderProducerID:
	}
	return senderNames[s.Kind-SenderHTTPSource]
}

// Travels reports whether the envelope of an event contains its sender.
func (s *Sender) Travels() bool {
	return s != nil && (s.Kind == SenderHTTPSource || s.Kind == SenderProducerID)
}

var senderFields = []fieldOf[Sender]{
	{"field", func(d *decoder, x *Sender, n *yaml.Node, at string) { x.Kind, x.Field = SenderField, d.field(n, at) }},
	{"header", func(d *decoder, x *Sender, n *yaml.Node, at string) {
		x.Header, _ = d.text(n, at)
		d.refuseOwnHeader(n, at, x.Header)
	}},
}

// sender reads the sender of a route.
func (d *decoder) sender(n *yaml.Node, at string) *Sender {
	x := &Sender{}
	if n.Kind == yaml.MappingNode {
		if nodes := decodeObject(d, n, at, x, senderFields); nodes != nil && len(nodes) != 1 {
			d.fail(n, at, "want either field or header")
		}
		if x.Kind == SenderField {
			x.tree = newPathTree()
			x.tree.add(x.Field.Path.segments, 0)
		}
		return x
	}
	for i, name := range senderNames {
		if n.Kind == yaml.ScalarNode && n.Value == name {
			x.Kind = SenderHTTPSource + SenderKind(i)
			return x
		}
	}
	d.fail(n, at, "want {header: NAME}, {field: PATH}, %s or %s, found %s", senderNames[0], senderNames[1], describe(n))
	return x
}

// validateSender refuses a setting with which no event of the route has a sender.
func (d *decoder) validateSender(r *draft) {
	switch s := r.Sender; {
	case s == nil:
	case s.Kind == SenderHTTPSource && r.HTTP == nil:
		d.failAt(r, "sender", "http_source needs an http part: no event of the route comes by HTTP")
	case s.Kind == SenderHTTPSource && r.Prepartitioned:
		d.failAt(r, "sender", "an event of a prepartitioned route has no envelope that could carry its http_source: name a header or a field")
	case s.Kind == SenderHeader && s.Header != "" && r.HTTP != nil:
		d.requireCarried(r, r.nodes["sender"], join(r.at, "sender"), s.Header)
	}
}

// SenderBytesMax is the longest name of a sender in bytes.
const SenderBytesMax = 64

// senderMark stands before the checksum of a name that was cut.
const senderMark = '~'

// AppendSender appends a sender's name in the form in which it is shown and counted: printable UTF-8 of at
// most SenderBytesMax bytes. It escapes, as in Go, a byte that is no UTF-8, a character that does not print,
// and a backslash. It cuts a longer name after a character and adds ~ and the CRC-32 of the whole name as 8
// hexadecimal digits, so that long names with a common start differ.
func AppendSender(dst, raw []byte) []byte {
	from, cut := len(dst), -1
	const kept = SenderBytesMax - 1 - 8
	for i := 0; i < len(raw); {
		if len(dst)-from <= kept {
			cut = len(dst)
		}
		size := 1
		if c := raw[i]; c >= ' ' && c < utf8.RuneSelf-1 && c != '\\' {
			dst = append(dst, c)
		} else {
			dst, size = appendEscaped(dst, raw[i:])
		}
		i += size
		if len(dst)-from > SenderBytesMax {
			return appendCut(dst, cut, raw)
		}
	}
	return dst
}

// appendEscaped appends the first character of raw, escaped if necessary, and returns its size in raw.
func appendEscaped(dst, raw []byte) ([]byte, int) {
	const digits = "0123456789abcdef"
	r, size := utf8.DecodeRune(raw)
	switch {
	case r == utf8.RuneError && size == 1:
		return append(dst, '\\', 'x', digits[raw[0]>>4], digits[raw[0]&15]), 1
	case r == '\\':
		return append(dst, '\\', '\\'), 1
	case unicode.IsPrint(r):
		return append(dst, raw[:size]...), size
	}
	var quoted [16]byte
	text := strconv.AppendQuoteRune(quoted[:0], r)
	return append(dst, text[1:len(text)-1]...), size
}

// appendCut cuts the name in dst at cut and appends the checksum of the whole name.
func appendCut(dst []byte, cut int, raw []byte) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst[:cut], senderMark)
	for sum, shift := crc32.ChecksumIEEE(raw), 28; shift >= 0; shift -= 4 {
		dst = append(dst, digits[sum>>shift&15])
	}
	return dst
}

// SenderReader reads the senders of events. It reuses its buffers, so it is for one goroutine. It does work
// only for events whose sender is counted.
type SenderReader struct {
	payload
	text, name []byte
}

// Of returns the name of an event's sender as AppendSender writes it, valid until the next call; empty
// without a sender. carried is the sender in the envelope.
func (s *SenderReader) Of(x *Sender, value []byte, headers HeaderSource, carried []byte) []byte {
	s.name = s.name[:0]
	switch x.Kind {
	case SenderHeader:
		raw, _ := headers.Header(x.Header)
		s.name = AppendSender(s.name, raw)
	case SenderField:
		s.name = AppendSender(s.name, s.field(x, value))
		s.release()
	case SenderHTTPSource, SenderProducerID:
		s.name = AppendSender(s.name, carried)
	}
	return s.name
}

// field returns the text of a payload field: a string, a number or a boolean. It returns nothing for any
// other value, and for a payload that is no JSON.
func (s *SenderReader) field(x *Sender, value []byte) []byte {
	if s.found == nil {
		s.found = make([][]byte, 1)
	}
	s.open(value, firstSlot)
	if !s.read(x.tree) || len(s.found[0]) == 0 {
		return nil
	}
	switch raw := s.found[0]; raw[0] {
	case '"':
		if s.text = s.text[:0]; cap(s.text) > scratchBytesMax {
			s.text = nil
		}
		s.text = appendUnquoted(s.text, raw)
		return s.text
	case '{', '[', 'n':
		return nil
	default:
		return raw
	}
}

var firstSlot = []int{0}
