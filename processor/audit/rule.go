package audit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"oncebus/dedup/rules"
)

// Rule is a key rule of an audit.
type Rule struct {
	Text   string // as the user wrote it, or "route NAME"
	Routes *rules.Routes
	Route  *rules.Route // the route that has the rule; records of other routes are not counted
}

// Source has what all rules of the command line share.
type Source struct {
	Topics []string
	Time   string // payload field with the event time, as FIELD or FIELD:FORMAT; "" for the record's timestamp
	Sender string // header:NAME, field:PATH or producer_id; "" for none
	Secret bool   // the key is an HMAC instead of a SHA-256
	Format rules.RecordFormat
}

// NewRule parses a key rule: one key source or several, separated by semicolons, each as NAME or NAME:ARGUMENT.
// A text that begins with [ or { is the value of key as in a routes file. The error names the mistake.
func NewRule(text string, in Source) (*Rule, error) {
	list, err := keyList(text)
	if err != nil {
		return nil, fmt.Errorf("--key %q: %w", text, err)
	}
	// The route needs an output and a dead-letter topic, whose names must differ from the input topics, because
	// a route must not read a topic to which it writes.
	file := "routes:\n- {name: audit, topics: [" + quoteAll(in.Topics) + "], window: 1h, output: " + unlike(in.Topics, "out") +
		", dead_letter: " + unlike(in.Topics, "dead") + ", secret: " + strconv.FormatBool(in.Secret) + ", key: " + list + in.timeField() + in.senderField() + in.formatField() + "}\n"
	routes, err := rules.ParseRoutes("", []byte(file))
	if err != nil {
		return nil, in.explain(text, err)
	}
	return &Rule{Text: text, Routes: routes, Route: routes.Routes[0]}, nil
}

// RouteRule returns the key rule of a route in a routes file.
func RouteRule(routes *rules.Routes, route *rules.Route) *Rule {
	return &Rule{Text: "route " + route.Name, Routes: routes, Route: route}
}

// unlike returns a topic name that is not in a list.
func unlike(topics []string, name string) string {
	for slices.Contains(topics, name) {
		name += "-"
	}
	return quote(name)
}

// explain replaces each mistake in the file that NewRule wrote by a mistake in the option that caused it.
func (in Source) explain(text string, err error) error {
	var errs []error
	for _, m := range mistakes(err) {
		option := "--key " + strconv.Quote(text)
		switch {
		case strings.Contains(m.Field, ".topics"):
			option = "--topic"
		case strings.HasSuffix(m.Field, ".time") || strings.Contains(m.Field, ".time."):
			option = "--time " + strconv.Quote(in.Time)
		case strings.Contains(m.Field, ".sender"):
			option = "--sender " + strconv.Quote(in.Sender)
		}
		errs = append(errs, fmt.Errorf("%s: %s", option, m.Problem))
	}
	if errs == nil {
		return err
	}
	return errors.Join(errs...)
}

// mistakes returns the mistakes that an error joins.
func mistakes(err error) []*rules.Mistake {
	var m *rules.Mistake
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var all []*rules.Mistake
		for _, e := range joined.Unwrap() {
			all = append(all, mistakes(e)...)
		}
		return all
	}
	if errors.As(err, &m) {
		return []*rules.Mistake{m}
	}
	return nil
}

// keyList converts the text of a rule to the value of key in a routes file.
func keyList(text string) (string, error) {
	switch trimmed := strings.TrimSpace(text); {
	case trimmed == "":
		return "", errors.New("want a source such as field:PATH")
	case trimmed[0] == '[':
		return trimmed, nil
	case trimmed[0] == '{':
		return "[" + trimmed + "]", nil
	}
	var sources []string
	for part := range strings.SplitSeq(text, ";") {
		source, err := keySource(strings.TrimSpace(part))
		if err != nil {
			return "", err
		}
		sources = append(sources, source)
	}
	return "[" + strings.Join(sources, ", ") + "]", nil
}

// keySource converts one key source to its form in a routes file.
func keySource(text string) (string, error) {
	name, argument, has := strings.Cut(text, ":")
	argument = strings.TrimSpace(argument)
	if !slices.Contains(rules.SourceNames(), name) {
		return "", unknownSource(name)
	}
	missing := func(example string) error {
		return fmt.Errorf("%s needs an argument, such as %s:%s", name, name, example)
	}
	switch name {
	case "record_key", "raw", "cloudevent", "order":
		if has {
			return "", fmt.Errorf("%s takes no argument here; write it as in the routes file, such as {order: {adjacent_buckets: true}}", name)
		}
		return name, nil
	case "payload":
		return payloadSource(argument)
	case "header", "field":
		if argument == "" {
			return "", missing("id")
		}
		return "{" + name + ": " + quote(argument) + "}", nil
	default: // fields and hash
		if argument == "" {
			return "", missing("account,id")
		}
		return "{" + name + ": [" + quoteAll(strings.Split(argument, ",")) + "]}", nil
	}
}

func unknownSource(name string) error {
	meant := ""
	if near := rules.Nearest(name, rules.SourceNames()); near != "" {
		meant = "; did you mean " + near + "?"
	}
	return fmt.Errorf("unknown source %q, want one of %s%s", name, strings.Join(rules.SourceNames(), ", "), meant)
}

// payloadSource converts the key source payload, whose argument is exclude=A,B or include=A,B.
func payloadSource(argument string) (string, error) {
	if argument == "" {
		return "{payload: {}}", nil
	}
	way, paths, _ := strings.Cut(argument, "=")
	if way != "exclude" && way != "include" || paths == "" {
		return "", fmt.Errorf("payload:%s: want payload, payload:exclude=sentAt,retries or payload:include=id", argument)
	}
	return "{payload: {" + way + ": [" + quoteAll(strings.Split(paths, ",")) + "]}}", nil
}

// timeField returns the field time of the route.
func (in Source) timeField() string {
	if in.Time == "" {
		return ""
	}
	field, format, has := strings.Cut(in.Time, ":")
	if !has {
		format = rules.UnixMilli.String()
	}
	return ", time: {field: " + quote(field) + ", format: " + quote(format) + "}"
}

// senderField returns the field sender of the route.
func (in Source) senderField() string {
	kind, name, has := strings.Cut(in.Sender, ":")
	switch {
	case in.Sender == "":
		return ""
	case !has:
		return ", sender: " + quote(kind)
	}
	return ", sender: {" + quote(kind) + ": " + quote(name) + "}"
}

func (in Source) formatField() string {
	f := in.Format
	text := ", format: {type: " + f.Format.String()
	if f.SchemaFile != "" {
		text += ", schema: " + quote(f.SchemaFile)
	}
	if f.Message != "" {
		text += ", message: " + quote(f.Message)
	}
	return text + "}"
}

// quote writes a text as a double-quoted YAML scalar. YAML knows all escapes of JSON, and \x means the same as
// in Go.
func quote(text string) string { return strconv.Quote(text) }

func quoteAll(texts []string) string {
	quoted := make([]string, len(texts))
	for i, t := range texts {
		quoted[i] = quote(strings.TrimSpace(t))
	}
	return strings.Join(quoted, ", ")
}
