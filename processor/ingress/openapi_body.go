package ingress

import (
	"fmt"
	"strings"

	"oncebus/dedup/rules"
)

// describeEvents says what becomes of the events of routes.
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
		fmt.Fprintf(&b, "Route %s: goes to topic %s. The key: %s. An event with the same key within %v is a copy.", r.Name, r.HTTP.Topic, strings.Join(keys, "; else "), r.Window)
	}
	if h := routes[0].HTTP; !h.Verdict {
		b.WriteString("\n\nThe answer comes as soon as the event is on the bus, without a verdict.")
	} else {
		fmt.Fprintf(&b, "\n\nThe answer comes with the verdict, within %v.", h.Timeout)
	}
	return b.String()
}

// eventBody describes the payload: the fields that the routes read.
func eventBody(routes []*rules.Route) *requestBody {
	s := schema{}
	object := true // every source of a key reads fields, so nothing but an object has one
	for _, r := range routes {
		if r.Match != nil && r.Match.Header == "" {
			s.describe(&r.Match.Field, schema{"description": "Tells which route takes the event."})
		}
		for k := range r.Keys {
			fields := r.Keys[k].Reads()
			object = object && len(fields) > 0
			for f := range fields {
				s.describe(&fields[f], schema{"description": "Of the key."})
			}
		}
		if r.Time != nil {
			s.describe(&r.Time.Field, schema{"description": fmt.Sprintf("The event time (%v).", r.Time.Format)})
		}
		for f := range r.Fingerprint {
			s.describe(&r.Fingerprint[f], schema{"description": "Has to agree between copies."})
		}
		if x := r.Claim.Request; x != nil && x.Header == "" {
			s.describe(&x.Field, schema{"description": "The sender's own id of the request."})
		}
	}
	if object {
		s["type"] = "object"
	}
	return &requestBody{
		Description: fmt.Sprintf("The event, of at most %d bytes and without a Content-Encoding. Its fields are read as JSON whatever the Content-Type says.", routes[0].HTTP.MaxBody),
		Required:    true,
		Content:     map[string]mediaType{"application/json": {s}, "*/*": {schema{}}},
	}
}

// describe adds a field to the schema of an object. Where a path goes through
// an array its description ends there.
func (s schema) describe(f *rules.Field, what schema) {
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
				inner = what
			}
			properties[name] = inner
		}
		s = inner
	}
}
