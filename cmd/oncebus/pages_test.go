//go:build unix

package main_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/settings"
	"oncebus/dedup"
	"oncebus/processor/kafkatest/golden"

	main "oncebus/cmd/oncebus"
)

// The pages of the repository are all *.md files. The functions here generate the
// sections between "<!-- generated: NAME -->" and "<!-- end -->"; make pages writes
// them.

// generated has the generated sections of the pages, by page and name.
// processor/ingress has its own, from unexported tables.
var generated = []struct {
	page, name string
	make       func(t *testing.T) string
}{
	{"dedup/ROUTES.md", "route keys", routeKeys},
	{"cmd/oncebus/SETTINGS.md", "settings", settingRows},
	{"cmd/oncebus/SETTINGS.md", "exit codes", exitCodeRows},
	{"cmd/oncebus/COMMANDS.md", "commands", commandList},
	{"deployments/SECURITY.md", "rights", rightRows},
	{"deployments/METRICS.md", "alerts", alertRows},
	{"deployments/METRICS.md", "metrics", metricRows},
	{"deployments/METRICS.md", "runtime metrics", runtimeRows},
	{"processor/HEADERS.md", "headers", headerRows},
	{"deployments/OPERATIONS.md", "encodings", encodingRows},
}

// TestPages compares the generated sections of the pages with the code.
func TestPages(t *testing.T) {
	for _, s := range generated {
		t.Run(s.name, func(t *testing.T) {
			golden.AssertSection(t, filepath.Join(moduleRoot, s.page), s.name, s.make(t))
		})
	}
}

// table writes rows in Markdown.
type table struct{ strings.Builder }

func newTable(columns ...string) *table {
	var t table
	t.row(columns...)
	t.row(slices.Repeat([]string{"---"}, len(columns))...)
	return &t
}

func (t *table) row(cells ...string) {
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(cell, "|", `\|`)
	}
	t.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

// code returns text as Markdown code; "" stays empty.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}

func settingRows(*testing.T) string {
	var groups []string
	rows := map[string]*table{}
	for _, s := range settings.All() {
		if rows[s.Group] == nil {
			groups, rows[s.Group] = append(groups, s.Group), newTable("variable", "meaning", "default")
		}
		name := code(s.Name)
		if s.Secret {
			name += " or " + code(s.Name+"_FILE")
		}
		rows[s.Group].row(name, s.Meaning, code(s.Default))
	}
	var b strings.Builder
	for _, group := range groups {
		fmt.Fprintf(&b, "### %s\n\n%s\n", group, rows[group])
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func exitCodeRows(*testing.T) string {
	rows := newTable("code", "meaning")
	for _, c := range cli.ExitCodes() {
		rows.row(strconv.Itoa(c.Code), c.Meaning)
	}
	return rows.String()
}

func encodingRows(*testing.T) string {
	rows := newTable("encoding", "writes", "reads", "in")
	for _, e := range main.Encodings() {
		rows.row(e.Name, main.Versions(e.Writes), main.Versions(e.Reads), strings.ReplaceAll(e.Place, "<app>-manifest", "`<app>-manifest`"))
	}
	return rows.String()
}

func rightRows(*testing.T) string {
	rows := newTable("resource", "name", "operations", "why")
	for _, r := range settingRules {
		rows.row(r.resource, r.names, r.operations, r.why)
	}
	for _, r := range optionalRules {
		rows.row(r.resource, r.names, r.operations, "optional: "+r.why)
	}
	return rows.String()
}

// commandList returns the list of the commands, as oncebus --help prints it.
func commandList(*testing.T) string { return "```\n" + main.Commands().Help() + "```\n" }

// constant is a documented constant of the code.
type constant struct{ name, value, comment string }

// constants returns the constants below dir that which selects, in the order of the
// source. Each must have a comment.
func constants(t *testing.T, dir string, which func(name, value string) bool) []constant {
	t.Helper()
	var list []constant
	err := filepath.WalkDir(filepath.Join(moduleRoot, dir), func(path string, d fs.DirEntry, err error) error {
		if d != nil && d.Name() == "oracle" { // the oracle has its own header names, because it shares no code
			return fs.SkipDir
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Names) != 1 || len(spec.Values) != 1 {
				return true
			}
			literal, ok := spec.Values[0].(*ast.BasicLit)
			if !ok {
				return true
			}
			value := literal.Value
			if text, err := strconv.Unquote(value); err == nil {
				value = text
			}
			if !which(spec.Names[0].Name, value) {
				return true
			}
			comment := strings.TrimSpace(strings.ReplaceAll(cmp.Or(spec.Doc.Text(), spec.Comment.Text()), "\n", " "))
			if comment == "" {
				t.Errorf("%s: constant %s has no comment", path, spec.Names[0].Name)
			}
			list = append(list, constant{spec.Names[0].Name, value, comment})
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Fatalf("no such constant below %s", dir)
	}
	return list
}

// ours matches the name of a header that oncebus adds.
var ours = regexp.MustCompile(`^(oncebus-[a-z0-9-]*[a-z0-9]|__connect\.errors\.[a-z.]*[a-z])$`)

// otherHeader matches a header that the comment of another one names.
var otherHeader = regexp.MustCompile(`\boncebus-[a-z-]*[a-z]`)

// headerRows makes the table of headers from the constants of their names. A comment
// is "RECORDS: VALUE".
func headerRows(t *testing.T) string {
	rows, internal := newTable("header", "on", "value"), newTable("header", "on", "value")
	for _, c := range constants(t, "processor", func(name, value string) bool {
		return strings.Contains(strings.ToLower(name), "header") && ours.MatchString(value)
	}) {
		on, value, ok := strings.Cut(otherHeader.ReplaceAllString(c.comment, "`$0`"), ": ")
		if !ok {
			t.Errorf("comment of %s: %q, want \"RECORDS: VALUE\"", c.name, c.comment)
		}
		if inside, ok := strings.CutPrefix(on, "internal, "); ok {
			internal.row(code(c.value), inside, value)
		} else {
			rows.row(code(c.value), on, value)
		}
	}
	return rows.String() + "\nOn internal topics only:\n\n" + internal.String()
}

// schemaNode has the parts of a JSON Schema that the tables of route keys use.
type schemaNode struct {
	Ref         string                `json:"$ref"`
	Type        any                   `json:"type"`
	Description string                `json:"description"`
	Default     json.RawMessage       `json:"default"`
	Enum        []any                 `json:"enum"`
	Const       any                   `json:"const"`
	Minimum     json.Number           `json:"minimum"`
	Maximum     json.Number           `json:"maximum"`
	Above       json.Number           `json:"exclusiveMinimum"`
	Items       *schemaNode           `json:"items"`
	OneOf       []schemaNode          `json:"oneOf"`
	AnyOf       []schemaNode          `json:"anyOf"`
	Required    []string              `json:"required"`
	Properties  properties            `json:"properties"`
	Defs        map[string]schemaNode `json:"$defs"`
}

// properties are in the order of the file.
type properties []property

type property struct {
	name string
	schemaNode
}

func (p *properties) UnmarshalJSON(data []byte) error {
	d := json.NewDecoder(strings.NewReader(string(data)))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var node schemaNode
		if err := d.Decode(&node); err != nil {
			return err
		}
		*p = append(*p, property{name.(string), node})
	}
	return nil
}

// routeObjects are the objects of the routes file, in the order of the page.
var routeObjects = []struct{ def, heading string }{
	{"route", "Keys of a route"},
	{"match", "Keys of `match`"},
	{"source", "Keys of a key source"},
	{"part", "Parts of `fields` and `hash`"},
	{"payload", "Keys of `payload`"},
	{"order", "Keys of `order`"},
	{"fingerprint", "Keys of `fingerprint`"},
	{"normaliserStep", "Steps of `normalise`"},
	{"formatOfFile", "Keys of `format`"},
	{"time", "Keys of `time`"},
	{"duplicates", "Keys of `duplicates`"},
	{"limits", "Keys of `limits`"},
	{"request", "Keys of `request`"},
	{"tenant", "Keys of `tenant`"},
	{"quota", "Keys of `quota`"},
	{"tenantQuota", "Keys of a quota in `tenants`"},
	{"sender", "Keys of `sender`"},
	{"shadow", "Keys of `shadow`"},
	{"http", "Keys of `http`"},
	{"signature", "Keys of `signature`"},
	{"handshake", "Keys of `handshake`"},
	{"decompress", "Keys of `decompress`"},
	{"followers", "Keys of `events`"},
	{"idempotencyKey", "Keys of `idempotency_key`"},
	{"httpOutcomes", "Keys of `outcomes` in `http`"},
	{"rate", "Keys of `rate` and `rate_per_source`"},
	{"responses", "Keys of `responses`"},
	{"response", "Keys of a response"},
}

// routeKeys makes the tables of all keys of a routes file from its JSON Schema.
func routeKeys(t *testing.T) string {
	got := execute(t.Context(), nil, "", "check", "--schema")
	var schema schemaNode
	if err := json.Unmarshal([]byte(got.Stdout), &schema); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, o := range routeObjects {
		def := schema.Defs[o.def]
		if len(def.OneOf) > 0 && len(def.Properties) == 0 { // the object form, for keys that also have a short one
			def = def.OneOf[len(def.OneOf)-1]
		}
		rows := newTable("key", "value", "default", "meaning")
		for _, p := range def.Properties {
			if p.Description == "" {
				t.Errorf("key %s of %s has no description in the schema", p.name, o.def)
			}
			value := strings.Join(strings.Fields(string(p.Default)), "")
			if slices.Contains(def.Required, p.name) {
				value = "required"
			} else if value != "" {
				value = code(strings.Trim(value, `"`))
			}
			rows.row(code(p.name), schema.values(&p.schemaNode), value, p.Description)
		}
		fmt.Fprintf(&b, "### %s\n\n%s\n", o.heading, rows)
	}
	for name, def := range schema.Defs {
		if len(def.Properties) > 0 && !slices.ContainsFunc(routeObjects, func(o struct{ def, heading string }) bool { return o.def == name }) {
			t.Errorf("object %s of the schema is not on the page", name)
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func (s *schemaNode) resolve(n *schemaNode) *schemaNode {
	if name, ok := strings.CutPrefix(n.Ref, "#/$defs/"); ok {
		def := s.Defs[name]
		return &def
	}
	return n
}

// values describes the values of a key.
func (s *schemaNode) values(n *schemaNode) string {
	var texts []string
	switch name := strings.TrimPrefix(n.Ref, "#/$defs/"); name {
	case "duration", "topic", "name", "path":
		return name
	case "headerName":
		return "header name"
	case "source":
		for _, bare := range s.Defs[name].OneOf[0].Enum {
			texts = append(texts, code(fmt.Sprint(bare)))
		}
		return strings.Join(texts, ", ") + " or [object](#keys-of-a-key-source)"
	case "normalisers":
		return "`trim`, `upper`, `lower` or [step](#steps-of-normalise), or a list of them"
	}
	for _, o := range routeObjects {
		if n.Ref == "#/$defs/"+o.def && len(s.Defs[o.def].Properties) > 0 {
			return "[object](#" + anchor(o.heading) + ")"
		}
	}
	n = s.resolve(n)
	for _, v := range n.Enum {
		texts = append(texts, code(fmt.Sprint(v)))
	}
	if n.Const != nil {
		texts = append(texts, code(fmt.Sprint(n.Const)))
	}
	for _, o := range append(n.OneOf, n.AnyOf...) {
		if v := s.values(&o); v != "" && !slices.Contains(texts, v) {
			texts = append(texts, v)
		}
	}
	if n.Items != nil {
		return "list of " + s.values(n.Items)
	}
	if len(texts) > 0 && len(n.Properties) == 0 {
		return strings.Join(texts, ", ")
	}
	switch n.Type {
	case "integer", "number":
		text := "number"
		if n.Type == "integer" {
			text = "integer"
		}
		if n.Minimum != "" && n.Maximum != "" {
			return text + ", " + n.Minimum.String() + " to " + n.Maximum.String()
		}
		if n.Above != "" && n.Maximum != "" {
			return text + " over " + n.Above.String() + ", to " + n.Maximum.String()
		}
		return text
	case "boolean":
		return "`true`, `false`"
	case "string":
		return "text"
	case "object":
		return "object"
	}
	if list, ok := n.Type.([]any); ok {
		for _, v := range list {
			texts = append(texts, fmt.Sprint(v))
		}
	}
	return strings.Join(texts, ", ")
}

// TestEveryVerdictIsOnThePage: HEADERS.md describes each verdict in a table that
// is written by hand.
func TestEveryVerdictIsOnThePage(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(moduleRoot, "processor", "HEADERS.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range dedup.Verdicts {
		if !strings.Contains(string(page), "\n| "+code(v.String())+" |") {
			t.Errorf("HEADERS.md does not describe the verdict %s", v)
		}
	}
}
