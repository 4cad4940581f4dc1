package rules

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

// missingCase is a key source with a value of the kind of a column of the table in ROUTES.md.
type missingCase struct {
	source string
	in     Input
}

// missingRow makes the cases of a row. of has the values of a column, as JSON, and "" for a missing one. rest is
// what the other parts have: "" where one is absent.
type missingRow func(of []string, steps, rest string) []missingCase

// object returns an object of some members, without those whose value is "".
func object(members map[string]string) []byte {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(members)) {
		if members[name] != "" {
			texts = append(texts, fmt.Sprintf("%q:%s", name, members[name]))
		}
	}
	return []byte("{" + strings.Join(texts, ",") + "}")
}

// carriedBytes returns a value as the bytes of a header; nil for none and null.
func carriedBytes(value string) []byte {
	if value == "" || value == "null" {
		return nil
	}
	return []byte(strings.Trim(value, `"`))
}

// missingInput returns a record, with or without a header h, whose second source always yields a key.
func missingInput(payload, key, header []byte) Input {
	headers := headerMap{"last": "7"}
	if header != nil {
		headers["h"] = string(header)
	}
	return Input{Topic: "in", Value: payload, Key: key, Headers: headers}
}

// twoParts are the cases of fields and hash: the value is in either place, as a path or in a header.
func twoParts(name string) missingRow {
	return func(of []string, steps, rest string) (cases []missingCase) {
		normalise := ""
		if steps != "" {
			normalise = ", normalise: {a: " + steps + "}"
		}
		for _, value := range of {
			payload := object(map[string]string{"a": value, "b": rest})
			for _, list := range []string{"[a, b]", "[b, a]"} {
				cases = append(cases, missingCase{"{" + name + ": " + list + normalise + "}", missingInput(payload, nil, nil)})
			}
			if strings.ContainsAny(value, "{[") || value == "true" {
				continue // no header has these
			}
			header := "{header: h}"
			if steps != "" {
				header = "{header: h, normalise: " + steps + "}"
			}
			in := missingInput(object(map[string]string{"b": rest}), nil, carriedBytes(value))
			cases = append(cases, missingCase{"{" + name + ": [" + header + ", b]}", in}, missingCase{"{" + name + ": [b, " + header + "]}", in})
		}
		return cases
	}
}

func missingField(of []string, steps, _ string) (cases []missingCase) {
	source := "{field: a}"
	if steps != "" {
		source = "{field: a, normalise: " + steps + "}"
	}
	for _, value := range of {
		cases = append(cases, missingCase{source, missingInput(object(map[string]string{"a": value}), nil, nil)})
	}
	return cases
}

func missingCarried(of []string, steps, _ string) (cases []missingCase) {
	header, key := "{header: h}", "record_key"
	if steps != "" {
		header, key = "{header: h, normalise: "+steps+"}", "{record_key: true, normalise: "+steps+"}"
	}
	for _, value := range of {
		cases = append(cases, missingCase{header, missingInput(nil, nil, carriedBytes(value))}, missingCase{key, missingInput(nil, carriedBytes(value), nil)})
	}
	return cases
}

func missingRaw(of []string, _, _ string) (cases []missingCase) {
	for _, value := range of {
		cases = append(cases, missingCase{"raw", missingInput(carriedBytes(value), nil, nil)})
	}
	return cases
}

func missingEvent(of []string, _, rest string) (cases []missingCase) {
	for _, value := range of {
		for _, names := range [][2]string{{"id", "source"}, {"source", "id"}} {
			in := missingInput(object(map[string]string{names[0]: value, names[1]: rest}), nil, nil)
			in.Headers.(headerMap)["content-type"] = "application/cloudevents+json"
			cases = append(cases, missingCase{"cloudevent", in})
			if strings.ContainsAny(value, "{[") || value == "true" {
				continue
			}
			in = missingInput(nil, nil, nil)
			for name, text := range map[string]string{names[0]: value, names[1]: rest} {
				if b := carriedBytes(text); b != nil {
					in.Headers.(headerMap)["ce_"+name] = string(b)
				}
			}
			cases = append(cases, missingCase{"cloudevent", in})
		}
	}
	return cases
}

func missingOrder(of []string, _, rest string) (cases []missingCase) {
	fields := map[string]string{"account": `"A"`, "symbol": `"S"`, "side": `"buy"`, "quantity": "1", "type": `"limit"`, "timestamp": "119999"}
	for _, value := range of {
		for name := range fields {
			with := maps.Clone(fields)
			with[name] = value
			if rest != "" {
				cases = append(cases, missingCase{"order", missingInput(object(with), nil, nil)})
				continue
			}
			for other := range fields {
				if other != name {
					lacks := maps.Clone(with)
					lacks[other] = ""
					cases = append(cases, missingCase{"order", missingInput(object(lacks), nil, nil)})
				}
			}
		}
	}
	return cases
}

// missingColumns are the kinds of values, in the order of the table.
var missingColumns = []struct {
	of    []string
	steps []string
	rest  string
}{
	{of: []string{"", "null"}, steps: []string{"", "trim", "{step: 1m}", "[lower, {decimals: 2}]"}, rest: `"1"`},
	{of: []string{`""`}, steps: []string{"", "trim", "{step: 1m}", "{decimals: 2}"}, rest: `"1"`},
	{of: []string{`" "`, `"  "`}, steps: []string{"trim", "[trim, {step: 1m}]", "[trim, upper, {decimals: 2}]"}, rest: `"1"`},
	{of: []string{"{}", "[]", `{"x":1}`, "true"}, steps: []string{""}, rest: `"1"`},
	{of: []string{`"x"`, `"x y"`}, steps: []string{"{step: 1m}", "[trim, {decimals: 2}]"}, rest: `"1"`},
	{of: []string{"{}", "[]", "true", `"x"`}, steps: []string{"{decimals: 2}"}, rest: ""},
}

// TestMissingValues compares each cell of the table in ROUTES.md with what a deriver does with each
// value of that kind, in each place of the source.
func TestMissingValues(t *testing.T) {
	rows := map[string]missingRow{
		"`record_key`, `header`": missingCarried, "`field`": missingField, "`fields`": twoParts("fields"), "`hash`": twoParts("hash"),
		"`raw`": missingRaw, "`cloudevent`": missingEvent, "`order`": missingOrder,
	}
	page, err := os.ReadFile("../ROUTES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(page), "| source | absent, null |")
	if !found {
		t.Fatal("ROUTES.md has no table of missing values")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	tried := 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		row := rows[strings.TrimSpace(cells[0])]
		if row == nil {
			continue
		}
		delete(rows, strings.TrimSpace(cells[0]))
		for i, column := range missingColumns {
			want := strings.TrimSpace(cells[i+1])
			if want == "–" {
				continue
			}
			for _, steps := range column.steps {
				for _, c := range row(column.of, steps, column.rest) {
					tried++
					checkMissing(t, c, want)
				}
			}
		}
	}
	if len(rows) > 0 {
		t.Errorf("rows that the table lacks: %v", slices.Sorted(maps.Keys(rows)))
	}
	t.Logf("%d values", tried)
}

// checkMissing derives the key of a case whose route has a second source, which yields one.
func checkMissing(t *testing.T, c missingCase, want string) {
	t.Helper()
	got := oneRoute(t, "["+c.source+", {header: last}]").NewDeriver(nil).Derive(&c.in)
	is := map[bool]string{true: "next source", false: "key"}[got.Source == "header: last"]
	if got.Finding != Keyed {
		is = "invalid"
	}
	if is != want {
		t.Errorf("%s, value %s, key %q, headers %v: %s (%s), want %s", c.source, c.in.Value, c.in.Key, c.in.Headers, is, got.Reason, want)
	}
}
