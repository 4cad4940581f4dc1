package ingress

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafkatest/golden"
	"oncebus/processor/wire"
)

// TestPages compares the generated sections of HTTP.md with the code; those of
// the other pages are in cmd/oncebus.
func TestPages(t *testing.T) {
	golden.AssertSection(t, "HTTP.md", "responses", responseRows())
	golden.AssertSection(t, "HTTP.md", "problems", problemRows(t))
	golden.AssertSection(t, "HTTP.md", "covered", schemeRows(t))
	golden.AssertSection(t, "PROVIDERS.md", "covered", coverRows(t))
	golden.AssertSection(t, "PROVIDERS.md", "providers", providerRows())
	golden.AssertSection(t, "PROVIDERS.md", "deliveries", deliveryRows())
	golden.AssertSection(t, "PROVIDERS.md", "presets", presetTexts())
}

// providerRows lists how the presets verify and key.
func providerRows() string {
	var b strings.Builder
	b.WriteString("| provider | rule | vector of the test | handshake | delivery id | keyed by | why |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range rules.Providers {
		p := &rules.Providers[i]
		r := p.Example()
		var keys []string
		for k := range r.Keys {
			keys = append(keys, "`"+r.Keys[k].String()+"`")
		}
		signed := "not signed"
		if p.SignedID {
			signed = "signed"
		}
		handshake := ""
		if h := r.HTTP.Handshake.Kind; h != rules.NoHandshake {
			handshake = "`" + h.String() + "`"
		}
		fmt.Fprintf(&b, "| `%s`: %s | [`%v`](%s) | %s | %s | %s, %s | %s | %s |\n", p.Name, p.Title, r.HTTP.Signature.Scheme, p.Source,
			p.Vector, handshake, p.ID, signed, strings.Join(keys, ", else "), p.Why)
	}
	return b.String()
}

// deliveryRows lists how the providers send, and what the presets make of it.
func deliveryRows() string {
	var b strings.Builder
	b.WriteString("| provider | retries | window | expects | gets | timeout | event time | tolerance | bodies |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range rules.Providers {
		p := &rules.Providers[i]
		r := p.Example()
		response := strconv.Itoa(p.Response.Status)
		if p.Response.Body != "" {
			response += " `" + p.Response.Body + "`"
		}
		at, tolerance := "arrival", "no signed time"
		if r.Time != nil {
			at = "`" + r.Time.Field.Path.Text + "`"
		}
		if t := r.HTTP.Signature.Tolerance; t > 0 {
			tolerance = fmt.Sprintf("`%v`", t)
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%v` | %s | %s | `%v` | %s | %s | %s |\n", p.Name, p.Retries, r.Window, p.Expects, response, p.Timeout, at, tolerance, p.Media)
	}
	return b.String()
}

// presetTexts has what each preset adds to a route.
func presetTexts() string {
	var b strings.Builder
	for i := range rules.Providers {
		p := &rules.Providers[i]
		lines := strings.Split(p.Expanded(false), "  responses:\n")
		fmt.Fprintf(&b, "%s:\n\n```yaml\n%s```\n\n", p.Title, lines[0])
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// problemRows lists the problems; the comment of each in the code says when it
// is the response.
func problemRows(t *testing.T) string {
	file, err := parser.ParseFile(token.NewFileSet(), "problem.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	when := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		literal, ok := spec.Values[0].(*ast.CompositeLit)
		if !ok || len(literal.Elts) == 0 {
			return true
		}
		if first, ok := literal.Elts[0].(*ast.BasicLit); ok {
			name, _ := strconv.Unquote(first.Value)
			when[name] = strings.TrimSpace(strings.ReplaceAll(spec.Doc.Text(), "\n", " "))
		}
		return true
	})
	var b strings.Builder
	b.WriteString("| `type` | status | title | when |\n| --- | --- | --- | --- |\n")
	for _, p := range problems {
		if when[p.name] == "" {
			t.Errorf("problem %s has no comment that says when it is the response", p.name)
		}
		fmt.Fprintf(&b, "| `%s%s` | %d | %s | %s |\n", problemType, p.name, p.status, p.title, when[p.name])
	}
	return b.String()
}

// responseRows lists the default response to each verdict, as the code makes it.
func responseRows() string {
	var b strings.Builder
	b.WriteString("| verdict | when | status | body | headers |\n| --- | --- | --- | --- | --- |\n")
	row := func(verdict, when string, r *response) {
		body := "the result, byte for byte"
		switch {
		case r.problem != nil:
			body = "`" + problemType + r.problem.name + "`"
		case r.name != "":
			body = "`" + string(r.body) + "`"
		case r.body == nil:
			body = "none"
		}
		var headers []string
		for name := range r.header {
			headers = append(headers, "`"+name+": "+r.header.Get(name)+"`")
		}
		slices.Sort(headers)
		fmt.Fprintf(&b, "| `%s` | %s | %d | %s | %s |\n", verdict, when, r.status, body, strings.Join(headers, ", "))
	}
	for _, v := range dedup.Verdicts {
		if v == dedup.Replayed {
			continue
		}
		forwarded := defaultResponse(&wire.Answer{Verdict: v, Forwarded: true})
		refused := defaultResponse(&wire.Answer{Verdict: v})
		if forwarded.status == refused.status {
			if v == dedup.Duplicate {
				row(v.String(), "claim mode: an event of the key was forwarded without a claim", defaultResponse(&wire.Answer{Verdict: v, Status: dedup.StatusForwarded}))
			}
			row(v.String(), "", refused)
			continue
		}
		row(v.String(), "the route forwards it", forwarded)
		row(v.String(), "otherwise", refused)
	}
	result := func(when string, a wire.Answer) {
		a.Verdict, a.HasOutcome = dedup.Replayed, true
		r := outcomeResponse(&a)
		if r.problem == nil {
			r.name = ""
		}
		row(dedup.Replayed.String(), when, r)
	}
	result("completed", wire.Answer{Status: dedup.OutcomeCompleted.ClaimStatus(), Value: []byte("{}")})
	result("completed, null result", wire.Answer{Status: dedup.OutcomeCompleted.ClaimStatus()})
	result("completed, result not recorded", wire.Answer{Status: dedup.OutcomeCompleted.ClaimStatus(), Omitted: true})
	for _, kind := range []dedup.OutcomeKind{dedup.OutcomeFailed, dedup.OutcomeRejected, dedup.OutcomeForget} {
		result("waited, and the outcome is `"+kind.String()+"`", wire.Answer{Status: kind.ClaimStatus()})
	}
	result("waited, and an event of the key was forwarded without a claim", wire.Answer{Status: dedup.StatusForwarded})
	return b.String()
}
