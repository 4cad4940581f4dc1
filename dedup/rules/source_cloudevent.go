package rules

import (
	"bytes"
	"slices"
	"strings"
)

// The names of the CloudEvents Kafka protocol binding, version 1.0.2, sections
// 3.2 (binary content mode) and 3.3 (structured content mode).
const (
	headerContentType = "content-type"
	headerCESource    = "ce_source"
	headerCEID        = "ce_id"
)

// Prefixes of a CloudEvents attribute: the prefix of the record header in the Kafka binding, and the prefix of
// the request header in the HTTP binding (1.0.2, section 3.1.3.1).
const (
	EventRecordPrefix  = "ce_"
	EventRequestPrefix = "ce-"
)

// IsEventAttribute reports whether name can be the name of a CloudEvents attribute: lower-case letters and
// digits (CloudEvents 1.0.2, section 3.1).
func IsEventAttribute(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
}

// eventAttribute returns the attribute that a header with that prefix has; "" for another header. name must
// be in lower case.
func eventAttribute(name, prefix string) string {
	if attribute, ok := strings.CutPrefix(name, prefix); ok && IsEventAttribute(attribute) {
		return attribute
	}
	return ""
}

// eventFormat is the format of a CloudEvent in a record.
type eventFormat uint8

const (
	eventBinary eventFormat = iota
	eventJSON
	eventUnknown
	eventBatch
)

// classifyContentType returns the format that the content-type header names. In structured mode the header
// begins with application/cloudevents, in upper or lower case.
func classifyContentType(value []byte) eventFormat {
	const structured, json, batch = "application/cloudevents", "+json", "-batch"
	media, _, _ := bytes.Cut(value, []byte(";"))
	media = bytes.TrimSpace(media)
	if len(media) < len(structured) || !bytes.EqualFold(media[:len(structured)], []byte(structured)) {
		return eventBinary
	}
	format := media[len(structured):]
	switch {
	case bytes.EqualFold(format, []byte(json)):
		return eventJSON
	case len(format) >= len(batch) && bytes.EqualFold(format[:len(batch)], []byte(batch)):
		return eventBatch
	}
	return eventUnknown
}

// eventFormatMistake says why a body of another CloudEvents format has no key.
const eventFormatMistake = "of the CloudEvents formats only application/cloudevents+json is read"

// eventBatchMistake says why a batch of CloudEvents is refused: one record has one verdict.
const eventBatchMistake = "a batch of CloudEvents has several events, and each needs a verdict of its own: send each event in a request or record of its own"

// ContentTypeMistake returns why no route can judge a body of that content type; "" if a route can. A batch of
// CloudEvents is refused whatever the key sources are.
func ContentTypeMistake(contentType string, routes []*Route) string {
	switch classifyContentType([]byte(contentType)) {
	case eventBatch:
		return eventBatchMistake
	case eventUnknown:
		if slices.ContainsFunc(routes, (*Route).ReadsCloudEvents) {
			return eventFormatMistake
		}
	case eventBinary, eventJSON:
	}
	return ""
}

// ReadsCloudEvents reports whether cloudevent is a key source of the route.
func (r *Route) ReadsCloudEvents() bool {
	return slices.ContainsFunc(r.Keys, func(s Source) bool { return s.kind == sourceCloudEvent })
}

// completeCloudEvent sets the fields that hold the id in structured mode.
func completeCloudEvent(s *sourceDraft) {
	s.fields = []Field{namedField("source"), namedField("id")}
}

// cloudEventKey writes the composite of a CloudEvent's source and id, which
// together identify an event (CloudEvents 1.0.2, section 3.1). An event has the same
// key in both modes.
func (d *Deriver) cloudEventKey(s *Source, limit int) status {
	switch classifyContentType(d.header(headerContentType)) {
	case eventJSON:
		return d.fieldsKey(s, limit)
	case eventUnknown:
		return d.fail("header "+headerContentType, eventFormatMistake)
	case eventBatch:
		return d.fail("header "+headerContentType, eventBatchMistake)
	case eventBinary:
	}
	size, all := 0, found
	for _, name := range [...]string{headerCESource, headerCEID} {
		value := d.header(name)
		if len(value) == 0 {
			return d.skip("header "+name, emptyCause(value))
		}
		if size += len(value); size > limit {
			all = d.fail("header "+name, "up to here "+reasonKeyLimit(size, limit))
		}
		d.buf = appendNetstring(d.buf, value)
	}
	d.hashed = d.buf
	return all
}
