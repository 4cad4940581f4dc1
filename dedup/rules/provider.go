package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Provider is a preset: the fields that a route needs for one sender of webhooks. A route takes from the
// preset every field that its own text leaves out.
type Provider struct {
	Name   string // in the routes file
	Title  string
	Source string // address of the published rule
	Vector string // who made the request that the test sends

	// ID says where the provider's id of a delivery is; "" if its deliveries have no id. SignedID reports
	// whether the signature covers the id. Why says why the preset derives its key as it does.
	ID       string
	SignedID bool
	Why      string

	Media    string        // the media type of the provider's bodies
	Retries  string        // as documented
	Window   time.Duration // window of the route, which covers the retries
	Timeout  time.Duration // time limit of a response, below the provider's own limit
	Expects  string        // the statuses after which the provider does not send an event again
	Response Response      // a response with such a status, for every verdict that a retry would not change

	// Route and HTTP are YAML texts: the fields of the route, and the fields of its http part, that the preset
	// sets.
	Route, HTTP string
}

// answered are the verdicts that a retry would not change. For these verdicts the ingress sends
// Provider.Response: otherwise the provider would send the event again and again, and at last disable the
// endpoint. Nothing is lost if an event cannot be judged, because when the ingress responds, the event is
// already in Kafka and will be written to the dead-letter topic.
var answered = []dedup.Verdict{
	dedup.Unique, dedup.Duplicate, dedup.AfterWindow, dedup.Late, dedup.Invalid, dedup.MissingKey, dedup.Collision, dedup.Bypassed,
}

// Expanded returns the fields of the preset as YAML: everything that a route gets from the preset and need not
// say itself.
func (p *Provider) Expanded(claim bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%swindow: %s\nhttp:\n", p.Route, shortDuration(p.Window))
	for line := range strings.Lines(p.HTTP) {
		b.WriteString("  " + line)
	}
	fmt.Fprintf(&b, "  timeout: %s\n  responses:\n", shortDuration(p.Timeout))
	verdicts := answered
	if claim {
		verdicts = append(slices.Clone(verdicts), dedup.InProgress)
	}
	for _, v := range verdicts {
		fmt.Fprintf(&b, "    %s: {status: %d", v, p.Response.Status)
		if p.Response.Body != "" {
			fmt.Fprintf(&b, ", content_type: %s, body: '%s'", p.Response.ContentType, p.Response.Body)
		}
		b.WriteString("}\n")
	}
	return b.String()
}

// Example returns a route that names the preset and sets no field that the preset sets.
func (p *Provider) Example() *Route {
	routes, err := ParseRoutes(p.Name, []byte(p.ExampleText()))
	if err != nil {
		panic("dedup: preset " + p.Name + ": " + err.Error()) // a test reads every preset
	}
	return routes.Routes[0]
}

// Keys reports whether a route derives its keys as the preset does.
func (p *Provider) Keys(r *Route) bool {
	return slices.EqualFunc(r.Keys, p.Example().Keys, func(a, b Source) bool { return a.text == b.text })
}

// ExampleText returns a routes file that uses the preset and has only the fields that the preset cannot know.
func (p *Provider) ExampleText() string {
	more := ""
	if strings.Contains(p.HTTP, "kind: meta") {
		more = "\n      handshake: {verify_token: VERIFY}"
	}
	secret := strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_"))
	url := ""
	if strings.Contains(p.HTTP, "scheme: twilio") || strings.Contains(p.HTTP, "scheme: square") {
		url = ", url: https://hooks.example.com/" + p.Name
	}
	return fmt.Sprintf(`routes:
  - name: %[1]s
    topics: [%[1]s.raw]
    output: %[1]s.unique
    http:
      path: /%[1]s
      provider: %[1]s
      signature: {secret: %[2]s%[3]s}%[4]s
`, p.Name, secret, url, more)
}

// shortDuration returns a duration without units that are zero.
func shortDuration(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(text, zero) {
			text = text[:len(text)-len(zero)+1]
		}
	}
	return text
}

// ProviderOf returns the preset of a name, or nil.
func ProviderOf(name string) *Provider {
	for i := range Providers {
		if Providers[i].Name == name {
			return &Providers[i]
		}
	}
	return nil
}

// providerName reads the name of a preset.
func (d *decoder) providerName(n *yaml.Node, at string) string {
	names := make([]string, len(Providers))
	for i := range Providers {
		names[i] = Providers[i].Name
	}
	if ProviderOf(n.Value) != nil && n.Kind == yaml.ScalarNode {
		return n.Value
	}
	if near := Nearest(n.Value, names); near != "" {
		d.fail(n, at, "%q is no provider; did you mean %s?", n.Value, near)
	} else {
		d.fail(n, at, "%s is no provider; known are %s", describe(n), strings.Join(names, ", "))
	}
	return ""
}

// expand returns a route with the fields of its preset, if the route names a preset. The fields of the preset
// get the line and column of the preset's name, so that a mistake in them names that line.
func (d *decoder) expand(n *yaml.Node) *yaml.Node {
	name := valueAt(valueAt(n, "http"), "provider")
	if name == nil || name.Kind != yaml.ScalarNode {
		return n
	}
	p := ProviderOf(name.Value)
	if p == nil {
		return n
	}
	mode := valueAt(n, "mode")
	var preset yaml.Node
	if err := yaml.Unmarshal([]byte(p.Expanded(mode != nil && mode.Value == modeNames[ClaimMode])), &preset); err != nil {
		panic("dedup: preset " + p.Name + ": " + err.Error()) // a test reads every preset
	}
	place(preset.Content[0], name)
	return merge(n, preset.Content[0])
}

// place gives a node, and all nodes within it, the line and column of another node.
func place(n, at *yaml.Node) {
	n.Line, n.Column = at.Line, at.Column
	for _, child := range n.Content {
		place(child, at)
	}
}

// merged are the objects of a route that a preset completes field by field. In every other field the value in
// the file replaces the value of the preset.
var merged = []string{"http", "signature", "handshake", "responses"}

// whole names, for an object, a field that says which kind of object it is. If the file sets that field, the
// preset adds nothing to the object, because the fields of one scheme have no meaning in another scheme.
var whole = map[string]string{"signature": "scheme", "handshake": "kind"}

// merge returns the mapping of the file and adds those fields of the preset that the file lacks.
func merge(file, preset *yaml.Node) *yaml.Node {
	out := *file
	out.Content = slices.Clone(file.Content)
	for i := 0; i+1 < len(preset.Content); i += 2 {
		name, value := preset.Content[i].Value, preset.Content[i+1]
		k := indexOf(file, name)
		switch {
		case k < 0:
			out.Content = append(out.Content, preset.Content[i], value)
		case slices.Contains(merged, name) && out.Content[k+1].Kind == yaml.MappingNode && valueAt(out.Content[k+1], whole[name]) == nil:
			out.Content[k+1] = merge(out.Content[k+1], value)
		}
	}
	return &out
}

// indexOf returns the index of a mapping's key in its content; -1 without it.
func indexOf(n *yaml.Node, name string) int {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return i
		}
	}
	return -1
}
