package rules

import (
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// The file's format, object by object.
var (
	fileFields = []fieldOf[routesFile]{
		{"routes", func(d *decoder, f *routesFile, n *yaml.Node, at string) {
			d.list(n, at, func(n *yaml.Node, at string) { f.drafts = append(f.drafts, d.route(n, at)) })
		}},
	}
	routeFields = []fieldOf[Route]{
		{"name", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Name, _ = d.text(n, at) }},
		{"namespace", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Namespace, _ = d.text(n, at) }},
		{"topics", func(d *decoder, r *Route, n *yaml.Node, at string) {
			d.list(n, at, func(n *yaml.Node, at string) {
				if topic, ok := d.text(n, at); ok {
					r.Topics = append(r.Topics, topic)
				}
			})
		}},
		{"match", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Match = d.match(n, at) }},
		{"prepartitioned", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Prepartitioned, _ = d.boolean(n, at) }},
		{"mode", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.Mode = Mode(max(0, d.choice(n, at, modeNames[:]...)))
		}},
		{"key", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Keys = d.sources(n, at) }},
		{"secret", decodeSecret},
		{"max_key_bytes", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.MaxKeyBytes = d.integer(n, at, 1, keyBytesMax)
		}},
		{"window", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Window = d.duration(n, at, shortestWindow) }},
		{"grace", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Grace = d.duration(n, at, 0) }},
		{"skew", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Skew = d.duration(n, at, 0) }},
		{"time", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Time = d.eventTime(n, at) }},
		{"output", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Output, _ = d.text(n, at) }},
		{"duplicates", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Duplicates = d.duplicates(n, at) }},
		{"on_missing_key", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.OnMissingKey = d.policy(n, at, DeadLetter, Forward, Drop)
		}},
		{"on_late", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.OnLate = d.policy(n, at, DeadLetter, Forward, Drop)
		}},
		{"on_future", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.OnFuture = d.policy(n, at, DeadLetter, Clamp)
		}},
		{"dead_letter", func(d *decoder, r *Route, n *yaml.Node, at string) { r.DeadLetter, _ = d.text(n, at) }},
		{"fingerprint", func(d *decoder, r *Route, n *yaml.Node, at string) {
			for _, p := range d.paths(n, at, false) {
				r.Fingerprint = append(r.Fingerprint, newField(p))
			}
		}},
		{"collision", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.Collision = d.policy(n, at, DeadLetter, Forward)
		}},
		{"on_state_failure", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.FailOpen = d.choice(n, at, stateFailureNames[:]...) == 1
		}},
		{"outcomes", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Claim.Outcomes, _ = d.text(n, at) }},
		{"replies", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Claim.Replies, _ = d.text(n, at) }},
		{"lease", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.Claim.Lease = d.duration(n, at, time.Millisecond)
		}},
		{"while_in_progress", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.Claim.Wait = d.choice(n, at, inProgressNames[:]...) == 1
		}},
		{"max_waiting", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.Claim.MaxWaiting = d.integer(n, at, 1, dedup.WaitingMax)
		}},
		{"result_limit", func(d *decoder, r *Route, n *yaml.Node, at string) {
			r.Claim.ResultBytes = d.integer(n, at, 0, resultLimitMax)
		}},
		{"request", func(d *decoder, r *Route, n *yaml.Node, at string) { r.Claim.Request = d.requestID(n, at) }},
		{"http", func(d *decoder, r *Route, n *yaml.Node, at string) { r.HTTP = d.http(n, at) }},
		{"limits", func(d *decoder, r *Route, n *yaml.Node, at string) {
			if nodes := decodeObject(d, n, at, &r.Limits, limitsFields); nodes != nil {
				d.require(n, at, nodes, "live_keys")
			}
		}},
	}
	limitsFields = []fieldOf[Limits]{
		{"live_keys", func(d *decoder, l *Limits, n *yaml.Node, at string) { l.LiveKeys = d.integer(n, at, 1, liveKeysMax) }},
		{"on_limit", func(d *decoder, l *Limits, n *yaml.Node, at string) { l.OnLimit = d.policy(n, at, DeadLetter, Forward) }},
	}
	matchFields = []fieldOf[Match]{
		{"field", func(d *decoder, m *Match, n *yaml.Node, at string) { m.Field = d.field(n, at) }},
		{"header", func(d *decoder, m *Match, n *yaml.Node, at string) { m.Header, _ = d.text(n, at) }},
		{"in", decodeMatchIn},
	}
	requestFields = []fieldOf[RequestID]{
		{"field", func(d *decoder, x *RequestID, n *yaml.Node, at string) { x.Field = d.field(n, at) }},
		{"header", func(d *decoder, x *RequestID, n *yaml.Node, at string) {
			x.Header, _ = d.text(n, at)
			d.refuseOwnHeader(n, at, x.Header)
		}},
	}
	timeFields = []fieldOf[EventTime]{
		{"field", func(d *decoder, t *EventTime, n *yaml.Node, at string) { t.Field = d.field(n, at) }},
		{"format", func(d *decoder, t *EventTime, n *yaml.Node, at string) { t.Format = d.timeFormat(n, at) }},
	}
	duplicatesFields = []fieldOf[Duplicates]{
		{"to", func(d *decoder, x *Duplicates, n *yaml.Node, at string) { x.Topic, _ = d.text(n, at) }},
	}
)

// keyBytesMax bounds max_key_bytes: a Kafka record's usual largest size.
const keyBytesMax = 1 << 20

// liveKeysMax bounds live_keys: more than any partition can hold.
const liveKeysMax = 1_000_000_000

// stateFailureNames are the choices of on_state_failure.
var stateFailureNames = [...]string{"fail_closed", "fail_open"}

// inProgressNames are the choices of while_in_progress.
var inProgressNames = [...]string{"reject", "wait"}

// What a claim keeps is one row of the changelog, whose topic takes 1 MiB
// unless somebody changed that: waitingMax requests of twice RequestBytesMax
// fit, and so does the longest result.
const (
	resultLimitMax = 512 << 10
)

// shortestWindow is the shortest window, and the shortest step.
const shortestWindow = time.Millisecond

// route reads one route and fills in the defaults.
func (d *decoder) route(n *yaml.Node, at string) *draft {
	r := &draft{at: at, node: n, Route: Route{
		MaxKeyBytes: DefaultMaxKeyBytes,
		Grace:       DefaultGrace,
		Skew:        DefaultSkew,
		Duplicates:  Duplicates{Policy: Drop},
		DeadLetter:  DefaultDeadLetter,
		Claim:       Claims{Lease: DefaultLease, MaxWaiting: DefaultMaxWaiting, ResultBytes: DefaultResultBytes},
	}}
	r.nodes = decodeObject(d, n, at, &r.Route, routeFields)
	if _, set := r.nodes["namespace"]; !set {
		r.Namespace = r.Name
	}
	r.completeHTTP()
	return r
}

func decodeSecret(d *decoder, r *Route, n *yaml.Node, at string) {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
		// The value is not shown: it may be a secret.
		d.fail(n, at, "want true or false: the secret itself comes from ONCEBUS_KEY_SECRET, never from the file")
		return
	}
	r.Secret, _ = d.boolean(n, at)
}

func decodeMatchIn(d *decoder, m *Match, n *yaml.Node, at string) {
	d.list(n, at, func(n *yaml.Node, at string) {
		if n.Kind != yaml.ScalarNode {
			d.fail(n, at, "want a value, found %s", describe(n))
			return
		}
		switch n.ShortTag() {
		case "!!str":
			m.In = append(m.In, n.Value)
		case "!!bool":
			value, _ := d.boolean(n, at)
			m.In = append(m.In, strconv.FormatBool(value))
		case "!!int", "!!float":
			var scratch Deriver
			_, reason := parseDecimal(nil, []byte(n.Value)) // YAML knows numbers that JSON does not
			var text []byte
			if reason == "" {
				text, reason = scratch.appendNumber(nil, []byte(n.Value))
			}
			if reason != "" {
				d.fail(n, at, "%s: put it in quotes to match a string", reason)
			} else {
				m.In = append(m.In, string(text))
			}
		default:
			d.fail(n, at, "want a string, number or boolean, found %s", describe(n))
		}
	})
}

func (d *decoder) match(n *yaml.Node, at string) *Match {
	m := &Match{}
	nodes := decodeObject(d, n, at, m, matchFields)
	if nodes == nil {
		return m
	}
	_, field := nodes["field"]
	_, header := nodes["header"]
	if field == header {
		d.fail(n, at, "want either field or header")
	}
	d.require(n, at, nodes, "in")
	return m
}

func (d *decoder) requestID(n *yaml.Node, at string) *RequestID {
	x := &RequestID{}
	if nodes := decodeObject(d, n, at, x, requestFields); nodes != nil && len(nodes) != 1 {
		d.fail(n, at, "want either field or header")
	}
	return x
}

func (d *decoder) eventTime(n *yaml.Node, at string) *EventTime {
	t := &EventTime{}
	if nodes := decodeObject(d, n, at, t, timeFields); nodes != nil {
		d.require(n, at, nodes, "field")
	}
	return t
}

func (d *decoder) timeFormat(n *yaml.Node, at string) TimeFormat {
	return TimeFormat(max(0, d.choice(n, at, timeFormatNames[:]...)))
}

func (d *decoder) duplicates(n *yaml.Node, at string) Duplicates {
	if n.Kind == yaml.MappingNode {
		x := Duplicates{Policy: ToTopic}
		d.require(n, at, decodeObject(d, n, at, &x, duplicatesFields), "to")
		return x
	}
	policies := [...]Policy{Drop, Forward}
	if n.Kind == yaml.ScalarNode {
		for _, p := range policies {
			if n.Value == p.String() {
				return Duplicates{Policy: p}
			}
		}
	}
	d.fail(n, at, "want drop, forward or {to: TOPIC}, found %s", describe(n))
	return Duplicates{Policy: Drop}
}

// policy reads one of the allowed policies.
func (d *decoder) policy(n *yaml.Node, at string, allowed ...Policy) Policy {
	names := make([]string, len(allowed))
	for i, p := range allowed {
		names[i] = p.String()
	}
	return allowed[max(0, d.choice(n, at, names...))]
}

// require notes a mistake for every field that is not there.
func (d *decoder) require(n *yaml.Node, at string, nodes map[string]*yaml.Node, names ...string) {
	for _, name := range names {
		if _, ok := nodes[name]; !ok {
			d.fail(n, join(at, name), "is required")
		}
	}
}

// field reads a payload path.
func (d *decoder) field(n *yaml.Node, at string) Field {
	text, ok := d.text(n, at)
	if !ok {
		return Field{}
	}
	return newField(d.path(n, at, text, false))
}

func (d *decoder) path(n *yaml.Node, at, text string, star bool) Path {
	p, err := parsePath(text, star)
	if err != nil {
		d.fail(n, at, "path %q %v", text, err)
	}
	return p
}

// paths reads a list of payload paths.
func (d *decoder) paths(n *yaml.Node, at string, star bool) []Path {
	var paths []Path
	d.list(n, at, func(n *yaml.Node, at string) {
		text, ok := d.text(n, at)
		if !ok {
			return
		}
		for _, p := range paths {
			if p.Text == text {
				d.fail(n, at, "path %q is listed twice", text)
				return
			}
		}
		paths = append(paths, d.path(n, at, text, star))
	})
	return paths
}

// textOf is how a list of paths stands in a source's text.
func textOf(paths []Path) string {
	texts := make([]string, len(paths))
	for i, p := range paths {
		texts[i] = p.Text
	}
	return "[" + strings.Join(texts, ", ") + "]"
}
