package rules

import "bytes"

// The names of the CloudEvents Kafka protocol binding, version 1.0.2, sections
// 3.2 (binary content mode) and 3.3 (structured content mode).
const (
	headerContentType = "content-type"
	headerCESource    = "ce_source"
	headerCEID        = "ce_id"
)

// eventFormat is the format of a CloudEvent in a record.
type eventFormat uint8

const (
	eventBinary eventFormat = iota
	eventJSON
	eventUnknown
)

// classifyContentType returns the format by the content-type header. In structured
// mode it begins with application/cloudevents, in upper or lower case.
func classifyContentType(value []byte) eventFormat {
	const structured, json = "application/cloudevents", "+json"
	media, _, _ := bytes.Cut(value, []byte(";"))
	media = bytes.TrimSpace(media)
	if len(media) < len(structured) || !bytes.EqualFold(media[:len(structured)], []byte(structured)) {
		return eventBinary
	}
	if bytes.EqualFold(media[len(structured):], []byte(json)) {
		return eventJSON
	}
	return eventUnknown
}

// completeCloudEvent sets the fields of structured mode.
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
		return d.fail("header "+headerContentType, "of the CloudEvents formats only application/cloudevents+json is read")
	case eventBinary:
	}
	size := 0
	for _, name := range [...]string{headerCESource, headerCEID} {
		value := d.header(name)
		if len(value) == 0 {
			return d.skip("header "+name, emptyCause(value))
		}
		if size += len(value); size > limit {
			return d.fail("header "+name, "up to here "+reasonKeyLimit(size, limit))
		}
		d.buf = appendNetstring(d.buf, value)
	}
	d.hashed = d.buf
	return found
}
