package rules

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Media types of forms.
const (
	urlencodedForm = "application/x-www-form-urlencoded"
	multipartForm  = "multipart/form-data"
)

// formPartsMax is the most parts of a multipart form.
const formPartsMax = 1000

// formOf returns the media type of a form and the boundary of its parts; "" if the record
// is no form.
func (d *Deriver) formOf() (kind, boundary string) {
	value := d.header(headerContentType)
	if len(value) == 0 {
		return "", ""
	}
	kind, parameters, err := mime.ParseMediaType(string(value))
	if err != nil || kind != urlencodedForm && kind != multipartForm {
		return "", ""
	}
	return kind, parameters["boundary"]
}

// readForm makes the JSON of a form's fields the payload of the record, if the record is a form. The record
// itself stays as it is. The body alone decides whether a record is JSON or one of the two kinds of forms,
// because signatures do not cover the media type: otherwise somebody could repeat a captured request with
// another media type, and it would have another key.
func (d *Deriver) readForm() {
	kind, boundary := d.formOf()
	if kind == "" || looksLikeJSON(d.in.Value) {
		return
	}
	fields, err := parseForm(d.in.Value, kind, boundary)
	if err == nil {
		d.form, err = fields.appendJSON(d.form[:0])
	}
	if err != nil {
		d.state, d.broken = payloadBroken, shorten("not a valid form: "+err.Error())
		return
	}
	d.json = d.form
}

// looksLikeJSON reports whether a body begins as a JSON object or list. No sender writes a form that begins
// so: browsers encode brackets, and a multipart form begins with its boundary.
func looksLikeJSON(body []byte) bool {
	text := bytes.TrimLeft(body, " \t\r\n")
	return len(text) > 0 && (text[0] == '{' || text[0] == '[')
}

// formFields are the fields of a form, by name.
type formFields map[string][]formValue

// formValue is a text, or a file as JSON.
type formValue struct {
	text string
	file bool
}

func parseForm(body []byte, kind, boundary string) (formFields, error) {
	fields := formFields{}
	if kind == multipartForm {
		return fields, fields.readParts(body, boundary)
	}
	if bytes.HasPrefix(body, []byte("--")) { // otherwise one body could be read in two ways
		return nil, errors.New("it begins with the boundary of a multipart form")
	}
	// A semicolon is part of a value, as in browsers; ParseQuery refuses it.
	values, err := url.ParseQuery(strings.ReplaceAll(string(body), ";", "%3B"))
	if err != nil {
		return nil, errors.New("a name or value is not percent-encoded")
	}
	for name, texts := range values {
		for _, text := range texts {
			fields[name] = append(fields[name], formValue{text: text})
		}
	}
	return fields, nil
}

// readParts reads the parts of a multipart form.
func (f formFields) readParts(body []byte, boundary string) error {
	rest, begins := bytes.CutPrefix(body, []byte("--"+boundary))
	switch {
	case boundary == "":
		return errors.New("its content-type has no boundary")
	case !begins || !bytes.HasPrefix(rest, []byte("\r\n")) && !bytes.HasPrefix(rest, []byte("\n")) && !bytes.HasPrefix(rest, []byte("--")):
		return errors.New("it does not begin with the boundary of its content-type") // with another boundary the body would be read in another way
	case !bytes.Contains(body, []byte("--"+boundary+"--")): // otherwise the reader would take a cut body for a whole one
		return errors.New("it has no end")
	}
	parts := multipart.NewReader(bytes.NewReader(body), boundary)
	for n := 0; ; n++ {
		part, err := parts.NextRawPart()
		if err == io.EOF { //nolint:errorlint // A wrapped one is that of a form without an end.
			return nil
		}
		if err != nil {
			return errors.New("its parts cannot be read")
		}
		content, err := io.ReadAll(part) // at most as long as body
		switch {
		case err != nil:
			return errors.New("a part ends early")
		case part.FormName() == "":
			return errors.New("a part has no name")
		case n == formPartsMax:
			return fmt.Errorf("it has more than %d parts", formPartsMax)
		}
		value := formValue{text: string(content)}
		if part.FileName() != "" {
			value = fileValue(part, content)
		}
		f[part.FormName()] = append(f[part.FormName()], value)
	}
}

// fileValue describes a file as a JSON object: a path can read its name, type, size and digest.
func fileValue(part *multipart.Part, content []byte) formValue {
	sum := sha256.Sum256(content)
	b := []byte(`{"bytes":` + strconv.Itoa(len(content)) + `,"content_type":`)
	b = appendQuoted(b, bytes.ToValidUTF8([]byte(part.Header.Get("Content-Type")), nil))
	b = appendQuoted(append(b, `,"filename":`...), bytes.ToValidUTF8([]byte(part.FileName()), nil))
	b = append(b, `,"sha256":"`+hex.EncodeToString(sum[:])+`"}`...)
	return formValue{text: string(b), file: true}
}

// appendJSON appends a form as an object. A field that came once is a string; a field that came several times
// is a list of strings, in the order of the form.
func (f formFields) appendJSON(dst []byte) ([]byte, error) {
	names := make([]string, 0, len(f))
	for name := range f {
		names = append(names, name)
	}
	slices.Sort(names)
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		if !utf8.ValidString(name) {
			return dst, errors.New("the name of a field is not UTF-8")
		}
		dst = append(appendQuoted(dst, []byte(name)), ':')
		values := f[name]
		if len(values) > 1 {
			dst = append(dst, '[')
		}
		for k, v := range values {
			if k > 0 {
				dst = append(dst, ',')
			}
			switch {
			case v.file:
				dst = append(dst, v.text...)
			case !utf8.ValidString(v.text):
				return dst, fmt.Errorf("field %.80q is not UTF-8", name)
			default:
				dst = appendQuoted(dst, []byte(v.text))
			}
		}
		if len(values) > 1 {
			dst = append(dst, ']')
		}
	}
	return append(dst, '}'), nil
}

// formKey writes the names and values of a form, sorted, each pair once and without
// separators: the text that Twilio signs.
func (d *Deriver) formKey(*Source, int) status {
	kind, _ := d.formOf()
	if kind != urlencodedForm {
		return d.skip("form", "the record is no "+urlencodedForm)
	}
	fields, err := parseForm(d.in.Value, kind, "")
	if err != nil {
		return d.fail("form", err.Error())
	}
	names := make([]string, 0, len(fields))
	for name := range fields {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		texts := make([]string, len(fields[name]))
		for i, v := range fields[name] {
			texts[i] = v.text
		}
		slices.Sort(texts)
		for _, text := range slices.Compact(texts) {
			d.buf = append(append(d.buf, name...), text...)
		}
	}
	if len(d.buf) == 0 {
		return d.skip("form", "it has no fields")
	}
	d.hashed = d.buf
	return found
}
