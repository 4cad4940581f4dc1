package rules

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// payload is the JSON of one record, or its JSON form if the record has another format. It is read at most
// once. While it is read, the whole document is checked (grammar, UTF-8, surrogates, duplicate names, at most
// 10,000 levels), and the values of the topic's paths are found.
type payload struct {
	state  payloadState
	broken string   // cause of payloadBroken
	json   []byte   // the record's value, or its JSON form
	found  [][]byte // by slot: the raw value, aliasing json; nil: absent

	scan    scan // tried before decoder
	decoder jsontext.Decoder
	reader  bytes.Buffer
	name    []byte // scratch for a member name with escapes
}

type payloadState uint8

const (
	payloadUnread payloadState = iota
	payloadRead
	payloadBroken
)

// open prepares the payload of a record. It does not read the payload yet, because the payload of a record
// whose key is in a header need not be JSON.
func (p *payload) open(value []byte, wanted []int) {
	p.state, p.broken, p.json = payloadUnread, "", value
	for _, slot := range wanted {
		p.found[slot] = nil
	}
}

// release drops the references to the record's payload.
func (p *payload) release() {
	p.state, p.json, p.scan.b = payloadUnread, nil, nil
	clear(p.found)
	p.reader = bytes.Buffer{}
	p.decoder.Reset(&p.reader)
}

// read reads the payload if it is unread. It returns false for a broken one, with
// p.broken set.
func (p *payload) read(tree *pathNode) bool {
	if p.state != payloadUnread {
		return p.state == payloadRead
	}
	p.state = payloadBroken
	switch {
	case p.json == nil:
		p.broken = "null where the route reads JSON"
		return false
	case len(p.json) == 0:
		p.broken = "empty where the route reads JSON"
		return false
	}
	p.scan.b, p.scan.found = p.json, p.found
	if p.scan.document(tree) {
		p.state = payloadRead
		return true
	}
	if openMembersMax(p.json) > membersMax {
		p.broken = reasonMembers
		return false
	}
	err := p.decode(tree)
	if err == nil {
		p.state = payloadRead
		return true
	}
	if p.broken = shorten("not valid JSON: " + strings.TrimPrefix(err.Error(), "jsontext: ")); bytes.HasPrefix(p.json, byteOrderMark) {
		p.broken = "not valid JSON: it begins with a byte order mark (EF BB BF); send it without"
	}
	return false
}

// reasonMembers is the reason to refuse a payload with too many open members. The decoder keeps the name of
// each open member in memory, so a payload of one megabyte with very many members would take tens of megabytes.
var reasonMembers = fmt.Sprintf("objects with more than %d members in all are open at one place", membersMax)

// levelsMax is how many levels of nesting the decoder reads.
const levelsMax = 10_000

// openMembersMax returns the highest number of open members in a payload: at each place, it counts the members
// that all objects open there have so far. The payload need not be valid JSON.
func openMembersMax(b []byte) (most int) {
	var before []int // for each open object, how many members were open at its beginning
	open, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case c == '"':
			quoted = !quoted
		case quoted && c == '\\':
			i++
		case quoted:
		case c == '{' && len(before) == levelsMax:
			return most // the decoder reads no further
		case c == '{':
			before = append(before, open)
		case c == ':':
			open++
			most = max(most, open)
		case c == '}' && len(before) > 0:
			open, before = before[len(before)-1], before[:len(before)-1]
		}
	}
	return most
}

// byteOrderMark is U+FEFF in UTF-8. RFC 8259, section 8.1, forbids senders to add it.
var byteOrderMark = []byte("\xef\xbb\xbf")

// decode reads a payload that scan refused. The error names its fault.
func (p *payload) decode(tree *pathNode) error {
	// The decoder reads a bytes.Buffer in place and never writes to it.
	p.reader = *bytes.NewBuffer(p.json)
	p.decoder.Reset(&p.reader)
	if err := p.walk(tree); errors.Is(err, io.EOF) {
		return errors.New("no value")
	} else if err != nil {
		return err
	}
	if _, err := p.decoder.ReadToken(); err == nil {
		return errors.New("more than one value")
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// walk reads one value and stores the values of the paths below node in p.found. It recurses along those
// paths only, so pathSegmentsMax bounds its depth.
func (p *payload) walk(node *pathNode) error {
	kind := p.decoder.PeekKind()
	if node == nil || len(node.children) == 0 || kind != jsontext.KindBeginObject && kind != jsontext.KindBeginArray {
		raw, err := p.decoder.ReadValue()
		if err == nil && node != nil && node.slot >= 0 {
			end := p.decoder.InputOffset()
			p.found[node.slot] = p.json[end-int64(len(raw)) : end]
		}
		return err
	}
	if _, err := p.decoder.ReadToken(); err != nil {
		return err
	}
	start := p.decoder.InputOffset() - 1
	var err error
	if kind == jsontext.KindBeginObject {
		err = p.walkObject(node)
	} else {
		err = p.walkArray(node)
	}
	if err == nil {
		_, err = p.decoder.ReadToken() // the closing bracket
	}
	if err == nil && node.slot >= 0 {
		p.found[node.slot] = p.json[start:p.decoder.InputOffset()]
	}
	return err
}

func (p *payload) walkObject(node *pathNode) error {
	for {
		if kind := p.decoder.PeekKind(); kind == jsontext.KindEndObject || kind == jsontext.KindInvalid {
			return nil // the next read reports invalid input
		}
		quoted, err := p.decoder.ReadValue()
		if err != nil {
			return err
		}
		name := p.unquote(quoted)
		if err := p.walk(node.member(name)); err != nil {
			return err
		}
	}
}

func (p *payload) walkArray(node *pathNode) error {
	for i := 0; ; i++ {
		if kind := p.decoder.PeekKind(); kind == jsontext.KindEndArray || kind == jsontext.KindInvalid {
			return nil
		}
		if err := p.walk(node.element(i)); err != nil {
			return err
		}
	}
}

// unquote returns the text of a valid JSON string. The text aliases the string, or p.name if the string has
// escapes.
func (p *payload) unquote(quoted []byte) []byte {
	text, scratch := unquote(p.name, quoted)
	p.name = scratch
	return text
}

// unquote returns the text of a valid JSON string, and the scratch for the next call. The text aliases quoted
// if it has no escape, else the scratch.
func unquote(scratch, quoted []byte) (text, next []byte) {
	inner := quoted[1 : len(quoted)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner, scratch
	}
	scratch = appendUnquoted(scratch[:0], quoted)
	return scratch, scratch
}

// reasonBytesMax is the longest reason: reasons get into headers and logs, and a part of a reason may be text
// from a hostile payload.
const reasonBytesMax = 300

// shorten returns a reason as one line of valid UTF-8 of bounded length. A reason that was cut ends with
// dots.
func shorten(reason string) string {
	if len(reason) > reasonBytesMax {
		reason = reason[:reasonBytesMax] + "..."
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(reason, ""))
}
