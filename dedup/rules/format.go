package rules

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup/formats"
)

// RecordFormat is how the values of records are encoded.
type RecordFormat struct {
	Format formats.Format
	// SchemaFile is the file with the schema of values that name no schema; "" if each value names its schema
	// in a registry.
	SchemaFile string
	// Message is the Protobuf message type in SchemaFile; "" for the first type of the file.
	Message string
}

// String returns the format in one form of the routes file.
func (f RecordFormat) String() string {
	text := f.Format.String()
	if f.SchemaFile != "" {
		text += " of " + f.SchemaFile
	}
	if f.Message != "" {
		text += ", message " + f.Message
	}
	return text
}

// FromRegistry reports whether each record names its schema in a registry.
func (f RecordFormat) FromRegistry() bool { return f.Format.NeedsSchema() && f.SchemaFile == "" }

// FormatOf returns the format of the records in one of the route's topics.
func (r *Route) FormatOf(topic string) RecordFormat {
	if f, ok := r.formats[topic]; ok {
		return f
	}
	return r.format
}

// Formats returns the formats of all topics, each once, in no particular order.
func (rs *Routes) Formats() []RecordFormat {
	var all []RecordFormat
	for _, plan := range rs.byTopic {
		if !slices.Contains(all, plan.format) {
			all = append(all, plan.format)
		}
	}
	return all
}

// Schemas returns the schema of a value: the schema in the format's schema file, or the schema that the record
// names. It does no I/O: while a schema is not known yet it returns ErrSchemaPending, and the caller has to
// keep the record waiting. Any other error says why the schema will never be available. Any number of
// goroutines may call it.
type Schemas func(RecordFormat, formats.Reference) (*formats.Schema, error)

// ErrSchemaPending is the error for a schema that was not read yet.
var ErrSchemaPending = errors.New("its schema was not read yet")

// Using makes the deriver read formats with these schemas, and returns the deriver. Without schemas, a record
// of a format that needs a schema has the finding SchemaPending.
func (d *Deriver) Using(schemas Schemas) *Deriver {
	d.schemas = schemas
	return d
}

// locate finds the schema of a value, and the part of the value behind the schema's prefix.
func (d *Deriver) locate() (l formats.Located, schema *formats.Schema, err error) {
	f := d.plan.format
	switch {
	case f.Format == formats.JSONSchema || f.FromRegistry():
		l, err = f.Format.Locate(d.in.Value, d.header(formats.ValueSchemaHeader))
	default:
		l.Body = d.in.Value
	}
	switch {
	case err != nil || !f.Format.NeedsSchema():
		return l, nil, err
	case d.schemas == nil:
		return l, nil, ErrSchemaPending
	}
	if schema, err = d.schemas(f, l.Schema); err != nil || f.SchemaFile == "" {
		return l, schema, err
	}
	of, ok := schema.OfMessage(f.Message)
	if !ok {
		return l, nil, fmt.Errorf("%s has no message type %s", f.SchemaFile, f.Message)
	}
	of.Body = d.in.Value
	return of, schema, nil
}

// asJSON sets d.json to the value as JSON text. It returns false if that is not possible: then d.broken has the
// cause, or d.pending names the schema that was not read yet.
func (d *Deriver) asJSON() bool {
	located, schema, err := d.locate()
	if err == nil && d.plan.format.Format == formats.JSONSchema {
		d.json = located.Body
		return true
	}
	if err == nil {
		d.transcoded, err = d.formats.AppendJSON(d.transcoded[:0], d.plan.format.Format, schema, &located)
	}
	switch {
	case err == nil:
		d.json = d.transcoded
		return true
	case errors.Is(err, ErrSchemaPending):
		d.pending, d.isPending = located.Schema, true
	}
	d.state, d.broken = payloadBroken, shorten("not valid "+d.plan.format.Format.String()+": "+err.Error())
	return false
}

// formatFields lists the fields that the routes file allows in the field format, if format is an object.
var formatFields = []fieldOf[RecordFormat]{
	{"type", func(d *decoder, f *RecordFormat, n *yaml.Node, at string) { f.Format = d.formatName(n, at) }},
	{"schema", func(d *decoder, f *RecordFormat, n *yaml.Node, at string) { f.SchemaFile, _ = d.text(n, at) }},
	{"message", func(d *decoder, f *RecordFormat, n *yaml.Node, at string) { f.Message, _ = d.text(n, at) }},
}

func (d *decoder) formatName(n *yaml.Node, at string) formats.Format {
	return formats.Format(max(0, d.choice(n, at, formats.Names()...)))
}

// recordFormat reads the field format: the name of a format, or an object with that name and a schema file.
func (d *decoder) recordFormat(n *yaml.Node, at string) (f RecordFormat) {
	if n.Kind != yaml.MappingNode {
		f.Format = d.formatName(n, at)
		return f
	}
	nodes := decodeObject(d, n, at, &f, formatFields)
	d.require(n, at, nodes, "type")
	if f.SchemaFile != "" && !f.Format.NeedsSchema() {
		d.fail(nodes["schema"], join(at, "schema"), "%s is read without a schema: leave it out", f.Format)
	}
	if f.Message != "" && (f.Format != formats.Protobuf || f.SchemaFile == "") {
		d.fail(nodes["message"], join(at, "message"), "only a Protobuf schema of a file has it, because a record of a registry names its message type")
	}
	return f
}

// formatsByTopic reads an object with the formats of some topics.
func (d *decoder) formatsByTopic(n *yaml.Node, at string) map[string]RecordFormat {
	if n.Kind != yaml.MappingNode {
		d.fail(n, at, "want a format for each topic, such as {orders.avro: avro}, found %s", describe(n))
		return nil
	}
	byTopic := map[string]RecordFormat{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		topic, value := n.Content[i].Value, n.Content[i+1]
		if _, twice := byTopic[topic]; twice {
			d.fail(n.Content[i], at, "%s is listed twice", topic)
		}
		byTopic[topic] = d.recordFormat(value, join(at, topic))
	}
	return byTopic
}

// validateFormats refuses formats of topics that the route does not read, and formats other than JSON for
// routes with an http part, because an HTTP request does not name a schema in a registry.
func (d *decoder) validateFormats(r *draft) {
	for _, topic := range slices.Sorted(maps.Keys(r.formats)) {
		if !slices.Contains(r.Topics, topic) {
			d.failAt(r, "formats", "the route has no topic %s, want one of %s", topic, strings.Join(r.Topics, ", "))
		}
	}
	if r.Sender != nil && r.Sender.Kind == SenderField && slices.ContainsFunc(r.Topics, func(topic string) bool { return r.FormatOf(topic).Format != formats.JSON }) {
		d.failAt(r, "sender", "a field is read from JSON alone: name a header, or producer_id")
	}
	if r.HTTP != nil && r.FormatOf(r.HTTP.Topic).Format != formats.JSON {
		d.failAt(r, "http", "requests are JSON, and so are the records of %s: it cannot have the format %s", r.HTTP.Topic, r.FormatOf(r.HTTP.Topic))
	}
}
