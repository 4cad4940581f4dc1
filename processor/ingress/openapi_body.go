package ingress

import (
	"fmt"
	"slices"
	"strings"

	"oncebus/dedup/rules"
)

// describeEvents returns the text that tells what the routes do with events.
func describeEvents(routes []*rules.Route) string {
	var b strings.Builder
	for i, r := range routes {
		if i > 0 {
			b.WriteString("\n\n")
		}
		var keys []string
		for k := range r.Keys {
			keys = append(keys, r.Keys[k].String())
		}
		fmt.Fprintf(&b, "Route %s: produced to topic %s. Key: %s. An event with the same key within %v is a duplicate.", r.Name, r.HTTP.Topic, strings.Join(keys, "; else "), r.Window)
	}
	if h := routes[0].HTTP; h.Answer != nil {
		fmt.Fprintf(&b, "\n\nThe response is the outcome of the event within %v, or of Prefer: wait=N; else 202 with its Location.", h.Answer.Timeout)
	} else if !h.Verdict {
		b.WriteString("\n\nThe response comes when Kafka has stored the event, without a verdict.")
	} else {
		fmt.Fprintf(&b, "\n\nThe response comes with the verdict, within %v.", h.Timeout)
	}
	return b.String()
}

// eventBody describes the body of an event: the fields that the routes read.
func eventBody(routes []*rules.Route) *requestBody {
	s := schema{}
	object := true // while every key source reads fields: then only a JSON object has a key
	for _, r := range routes {
		if r.Match != nil && r.Match.Header == "" {
			s.describe(&r.Match.Field, schema{"description": "Selects the route."})
		}
		for k := range r.Keys {
			fields := r.Keys[k].Reads()
			object = object && len(fields) > 0
			s.describeAll(fields, "Part of the key.")
		}
		if r.Time != nil {
			s.describe(&r.Time.Field, schema{"description": fmt.Sprintf("The event time (%v).", r.Time.Format)})
		}
		for f := range r.Fingerprint {
			s.describeAll(r.Fingerprint[f].Fields, "Must be equal in duplicates.")
		}
		if x := r.Claim.Request; x != nil && x.Header == "" {
			s.describe(&x.Field, schema{"description": "The sender's id of the request."})
		}
	}
	if object {
		s["type"] = "object"
	}
	content := map[string]mediaType{"application/json": {s}, "*/*": {schema{}}}
	if slices.ContainsFunc(routes, (*rules.Route).ReadsCloudEvents) {
		content["application/cloudevents+json"] = mediaType{structuredEvent()}
	}
	h := routes[0].HTTP
	coding, parsed := "without a Content-Encoding", "It is parsed as JSON whatever its Content-Type."
	if h.Decompress.MaxBytes > 0 {
		coding = fmt.Sprintf("in gzip or deflate at most %d bytes decompressed", h.Decompress.MaxBytes)
	}
	if h.Form {
		parsed = "It is parsed as JSON, unless its Content-Type is that of a form."
		content["application/x-www-form-urlencoded"], content["multipart/form-data"] = mediaType{s}, mediaType{s}
	}
	return &requestBody{
		Description: fmt.Sprintf("The event, at most %d bytes, %s. %s", h.MaxBody, coding, parsed),
		Required:    true,
		Content:     content,
	}
}

// structuredEvent describes a CloudEvent in structured mode.
func structuredEvent() schema {
	part := schema{"type": "string", "minLength": 1, "description": "Part of the key."}
	return schema{
		"type": "object", "description": "A CloudEvent in structured mode.", "required": []string{"source", "id"},
		"properties": schema{"source": part, "id": part},
	}
}

// describeAll adds several fields with the same description.
func (s schema) describeAll(fields []rules.Field, description string) {
	for i := range fields {
		s.describe(&fields[i], schema{"description": description})
	}
}

// describe adds a field to the schema of an object. If the path of the field goes through an array, the
// description ends at the array.
func (s schema) describe(f *rules.Field, meaning schema) {
	names := f.Path.Names()
	for i, name := range names {
		properties, ok := s["properties"].(schema)
		if !ok {
			properties = schema{}
			s["properties"] = properties
		}
		inner, ok := properties[name].(schema)
		if !ok {
			inner = schema{}
			if i == len(names)-1 {
				inner = meaning
			}
			properties[name] = inner
		}
		s = inner
	}
}
