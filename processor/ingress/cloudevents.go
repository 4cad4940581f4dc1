package ingress

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// appendEventAttributes appends a record header for each CloudEvents attribute in the headers of a request. In
// the Kafka binding (1.0.2, section 3.2.3) the attribute's value is UTF-8; in the HTTP binding (1.0.2, section
// 3.1.3.2) it is percent-encoded. appendEventAttributes decodes the value, so that an event has the same key in
// both bindings and in all modes. The error is the detail of the problem.
func appendEventAttributes(headers []dedup.Header, in http.Header) ([]dedup.Header, error) {
	var names []string
	for name := range in {
		if len(name) > len(rules.EventRequestPrefix) && strings.EqualFold(name[:len(rules.EventRequestPrefix)], rules.EventRequestPrefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names) // equal requests give equal records
	for _, name := range names {
		attribute := strings.ToLower(name[len(rules.EventRequestPrefix):])
		if !rules.IsEventAttribute(attribute) {
			continue // no attribute has such a name
		}
		values := in[name]
		if len(values) > 1 {
			// If the header came twice, two readers of the event could use different values.
			return nil, fmt.Errorf("header %s: it came %d times, want one", name, len(values))
		}
		value, err := decodeEventAttribute(values[0])
		if err != nil {
			return nil, fmt.Errorf("header %s: %.80q: %w", name, values[0], err)
		}
		headers = append(headers, dedup.Header{Key: rules.EventRecordPrefix + attribute, Value: []byte(value)})
	}
	return headers, nil
}

var errNotUTF8 = errors.New("it is not UTF-8, want UTF-8 that is percent-encoded")

// eventAttributePattern describes the values of attributes in the OpenAPI document. The server also decodes
// values that do not match it.
const eventAttributePattern = `^([\x21\x23\x24\x26-\x7e]|%[2-7][0-9A-Fa-f])*$`

// decodeEventAttribute decodes a header's value: it unquotes a quoted string, which earlier versions of the
// binding allow, and then undoes one round of percent-encoding. A percent sign without two hexadecimal digits
// after it stays as it is, because many senders do not encode at all.
func decodeEventAttribute(value string) (string, error) {
	value = unquote(strings.Trim(value, " \t"))
	if strings.Contains(value, "%") {
		decoded := make([]byte, 0, len(value))
		for i := 0; i < len(value); i++ {
			if value[i] == '%' && i+2 < len(value) && isHex(value[i+1]) && isHex(value[i+2]) {
				decoded = append(decoded, unhex(value[i+1])<<4|unhex(value[i+2]))
				i += 2
				continue
			}
			decoded = append(decoded, value[i])
		}
		value = string(decoded)
	}
	if !utf8.ValidString(value) {
		return "", errNotUTF8
	}
	return value, nil
}

// unquote returns the content of a quoted string (RFC 9110, section 5.6.4), or value itself if it is no quoted
// string.
func unquote(value string) string {
	if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return value
	}
	content := make([]byte, 0, len(value)-2)
	for i := 1; i < len(value)-1; i++ {
		switch {
		case value[i] == '"': // the quoted string ends before the value
			return value
		case value[i] == '\\':
			if i++; i == len(value)-1 { // the last quote is escaped
				return value
			}
		}
		content = append(content, value[i])
	}
	return string(content)
}

func isHex(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' || c >= 'A' && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}

// contentTypeProblem returns the response to a content type with which a request has no event or several
// events. It returns nil for every other content type.
func (e *endpoint) contentTypeProblem(in http.Header) *response {
	values := in["Content-Type"]
	if len(values) > 1 {
		return problemInvalid.respond(fmt.Sprintf("header Content-Type: it came %d times, want one", len(values)))
	}
	if len(values) == 0 {
		return nil
	}
	if mistake := rules.ContentTypeMistake(values[0], e.routes); mistake != "" {
		return problemMediaType.respond(mistake)
	}
	return nil
}

// eventParameters describes the headers with the CloudEvents attributes that the routes read: the attributes of
// the key source cloudevent, and the attributes that a header source names.
func eventParameters(routes []*rules.Route) []parameter {
	var all []parameter
	add := func(attribute string, required bool, meaning string) {
		name := rules.EventRequestPrefix + attribute
		if slices.ContainsFunc(all, func(p parameter) bool { return p.Name == name }) {
			return
		}
		p := parameter{
			Name: name, In: "header", Required: required,
			Description: meaning + " Percent-encoded UTF-8 (CloudEvents HTTP binding 1.0.2, section 3.1.3.2); becomes the record header " + rules.EventRecordPrefix + attribute + ".",
			Schema:      schema{"type": "string", "pattern": eventAttributePattern},
		}
		if required {
			p.Schema["minLength"] = 1
		}
		all = append(all, p)
	}
	for _, r := range routes {
		if attribute, ok := strings.CutPrefix(r.KeyHeader(), rules.EventRecordPrefix); ok && rules.IsEventAttribute(attribute) {
			required := !slices.ContainsFunc(routes, func(o *rules.Route) bool { return !o.HTTP.RequireKey || o.KeyHeader() != r.KeyHeader() })
			add(attribute, required, "The key.")
		}
	}
	if slices.ContainsFunc(routes, (*rules.Route).ReadsCloudEvents) {
		for _, attribute := range []string{"specversion", "type", "source", "id"} {
			add(attribute, false, "CloudEvents in binary mode.")
		}
	}
	return all
}
