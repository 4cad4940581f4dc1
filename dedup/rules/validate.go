package rules

import (
	"fmt"
	"slices"
	"strings"
)

// validate checks what no single field can show: required fields, names, and
// routes that fight over topics, namespaces or paths.
func (d *decoder) validate(drafts []*draft) {
	if len(drafts) == 0 && len(d.mistakes) == 0 {
		d.failLine(1, "routes", "is required")
	}
	for _, r := range drafts {
		if r.nodes != nil {
			d.validateRoute(r)
		}
	}
	d.validateNames(drafts)
	d.validateNamespaces(drafts)
	d.validateInputs(drafts)
	d.validateOutputs(drafts)
	d.validatePaths(drafts)
}

// failAt notes a mistake at a route's field, or at the route where the field is
// not set.
func (d *decoder) failAt(r *draft, field, format string, args ...any) {
	n := r.nodes[field]
	if n == nil {
		n = r.node
	}
	d.fail(n, join(r.at, field), format, args...)
}

func (d *decoder) validateRoute(r *draft) {
	d.require(r.node, r.at, r.nodes, "name", "topics", "key", "window", "output")
	for _, field := range []string{"name", "namespace"} {
		value := r.Name
		if field == "namespace" {
			value = r.Namespace
		}
		if r.nodes[field] != nil && value != "" && !validName(value) {
			d.failAt(r, field, "%q: want 1 to %d of a-z, 0-9, dot, dash and underscore", value, nameBytesMax)
		}
	}
	topics := r.nodes["topics"]
	seen := map[string]bool{}
	for _, topic := range r.Topics {
		d.checkTopic(r, "topics", topic)
		if seen[topic] {
			d.fail(topics, join(r.at, "topics"), "%s is listed twice", topic)
		}
		seen[topic] = true
	}
	if r.Prepartitioned && len(r.Topics) > 1 {
		d.failAt(r, "topics", "a prepartitioned route takes one topic, because every prepartitioned topic has a state of its own: "+
			"copies on two of them would not meet; write a route for each, or leave prepartitioned out")
	}
	d.checkTopic(r, "output", r.Output)
	d.checkTopic(r, "duplicates", r.Duplicates.Topic)
	d.checkTopic(r, "dead_letter", r.DeadLetter)
	d.validateClaim(r)
	d.validateAdjacentBuckets(r)
	d.validateHTTP(r)
	if m := r.Match; m != nil {
		d.refuseOwnHeader(r.nodes["match"], join(r.at, "match"), m.Header)
	}
}

// claimOnly are the fields that mean something in claim mode alone.
var claimOnly = []string{"outcomes", "replies", "lease", "while_in_progress", "max_waiting", "result_limit", "request"}

func (d *decoder) validateClaim(r *draft) {
	if r.Mode != ClaimMode {
		for _, field := range claimOnly {
			if r.nodes[field] != nil {
				d.failAt(r, field, "belongs to mode: claim")
			}
		}
		return
	}
	d.require(r.node, r.at, r.nodes, "outcomes", "replies")
	d.checkTopic(r, "outcomes", r.Claim.Outcomes)
	d.checkTopic(r, "replies", r.Claim.Replies)
	if r.Prepartitioned {
		d.failAt(r, "prepartitioned", "a claim's outcome reaches its task through the repartition topic only: leave prepartitioned out")
	}
	if r.nodes["duplicates"] != nil {
		d.failAt(r, "duplicates", "copies are answered on replies in claim mode: leave duplicates out")
	}
	if r.nodes["max_waiting"] != nil && !r.Claim.Wait {
		d.failAt(r, "max_waiting", "says how many copies may wait, but none does: write while_in_progress: wait")
	}
	if r.Claim.Lease > r.Window {
		d.failAt(r, "lease", "%v is longer than the window of %v, after which the claim is forgotten anyway", r.Claim.Lease, r.Window)
	}
	if r.Claim.Outcomes != "" && r.Claim.Outcomes == r.Claim.Replies {
		d.failAt(r, "replies", "%s is the route's outcomes topic: replies would be taken for outcomes", r.Claim.Replies)
	}
}

// nameBytesMax bounds the names of routes and namespaces.
const nameBytesMax = 64

func validName(s string) bool {
	const legal = "abcdefghijklmnopqrstuvwxyz0123456789-_."
	return len(s) <= nameBytesMax && strings.IndexFunc(s, func(c rune) bool { return !strings.ContainsRune(legal, c) }) < 0
}

// topicBytesMax is Kafka's limit on a topic name.
const topicBytesMax = 249

// checkTopic applies Kafka's rule for topic names (org.apache.kafka.common.
// internals.Topic); "" is left to others.
func (d *decoder) checkTopic(r *draft, field, topic string) {
	legal := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-'
	}
	illegal := strings.IndexFunc(topic, func(c rune) bool { return !legal(c) }) >= 0
	if illegal || len(topic) > topicBytesMax || topic == "." || topic == ".." {
		d.failAt(r, field, "%.260q is no topic name: want 1 to %d of a-z, A-Z, 0-9, dot, dash and underscore", topic, topicBytesMax)
	}
}

func (d *decoder) validateNames(drafts []*draft) {
	first := map[string]*draft{}
	for _, r := range drafts {
		if r.Name == "" {
			continue
		}
		if other, ok := first[r.Name]; ok {
			d.failAt(r, "name", "%q is the name of the route in line %d", r.Name, other.node.Line)
			continue
		}
		first[r.Name] = r
	}
}

// validateNamespaces lets routes share a namespace only where their keys can
// meet and mean the same: rows of one namespace expire by one window, its key
// rule is pinned once, and a prepartitioned topic's state is its own.
func (d *decoder) validateNamespaces(drafts []*draft) {
	first := map[string]*draft{}
	for _, r := range drafts {
		if r.Namespace == "" {
			continue
		}
		other, ok := first[r.Namespace]
		if !ok {
			first[r.Namespace] = r
			if len(first) == MaxNamespaces+1 {
				d.fail(r.node, r.at, "one namespace too many: at most %d", MaxNamespaces)
			}
			continue
		}
		field := "namespace"
		if r.nodes[field] == nil {
			field = "name"
		}
		with := fmt.Sprintf("namespace %q is shared with the route in line %d", r.Namespace, other.node.Line)
		if r.Span() != other.Span() {
			d.failAt(r, field, "%s, which has another window, grace, skew or on_future", with)
		}
		if r.KeyRule() != other.KeyRule() {
			d.failAt(r, field, "%s, which derives keys in another way", with)
		}
		if r.Mode != other.Mode || r.Mode == ClaimMode && !r.sameClaims(other) {
			d.failAt(r, field, "%s, which has another mode, or other outcomes, replies, lease, while_in_progress, max_waiting or result_limit", with)
		}
		if r.FailOpen != other.FailOpen {
			d.failAt(r, field, "%s, which says something else on_state_failure", with)
		}
		if (r.Prepartitioned || other.Prepartitioned) && !slices.Equal(r.Topics, other.Topics) {
			d.failAt(r, field, "%s, but a prepartitioned topic has a state of its own: copies would not meet", with)
		}
	}
}

// validateNeighbours: within a window that is shorter than the step hardly any
// neighbour is a copy.
func (d *decoder) validateAdjacentBuckets(r *draft) {
	for i := range r.Keys {
		o := r.Keys[i].order
		if o == nil || !o.AdjacentBuckets {
			continue
		}
		if o.Step > r.Window.Milliseconds() {
			d.failAt(r, "window", "is shorter than the order's step, so that neighbours would never count")
		}
	}
}

// sameClaims tells whether an outcome means the same to both routes: it finds
// its route by the namespace of the claim.
func (r *draft) sameClaims(other *draft) bool {
	a, b := r.Claim, other.Claim
	a.Request, b.Request = nil, nil
	return a == b
}

// validateInputs finds routes that fight over a topic.
func (d *decoder) validateInputs(drafts []*draft) {
	byTopic := map[string][]*draft{}
	for _, r := range drafts {
		for _, topic := range slices.Compact(slices.Sorted(slices.Values(r.Topics))) {
			for _, earlier := range byTopic[topic] {
				if earlier.Prepartitioned != r.Prepartitioned {
					d.failAt(r, "prepartitioned", "%s is prepartitioned in one route and not in another (line %d)", topic, earlier.node.Line)
				}
				if earlier.takesAllOf(r) {
					d.failAt(r, "topics", "the route gets nothing of %s: the one in line %d takes every record before it; "+
						"give that one a match, or move it down", topic, earlier.node.Line)
				}
			}
			byTopic[topic] = append(byTopic[topic], r)
		}
	}
}

// takesAllOf tells whether no record can pass r and match later.
func (r *draft) takesAllOf(later *draft) bool {
	a, b := r.Match, later.Match
	if a == nil {
		return true
	}
	if b == nil || a.Field.Path.Text != b.Field.Path.Text || a.Header != b.Header {
		return false
	}
	for _, value := range b.In {
		if !slices.Contains(a.In, value) {
			return false
		}
	}
	return len(b.In) > 0
}

// validateOutputs keeps what we emit out of what we consume, where a record
// would go round for ever, and everything but single events out of outputs.
func (d *decoder) validateOutputs(drafts []*draft) {
	input, output := map[string]*draft{}, map[string]*draft{}
	for _, r := range drafts {
		for _, topic := range r.Topics {
			input[topic] = r
		}
		output[r.Output] = r
	}
	for _, r := range drafts {
		if in, ok := input[r.Claim.Outcomes]; ok && r.Claim.Outcomes != "" {
			d.failAt(r, "outcomes", "%s is an input topic of the route in line %d: an outcome is no event", r.Claim.Outcomes, in.node.Line)
		}
	}
	for _, r := range drafts {
		if r.Mode == ClaimMode && r.Claim.Outcomes != "" {
			input[r.Claim.Outcomes] = r
		}
	}
	for _, r := range drafts {
		for _, out := range []struct{ field, topic string }{
			{"output", r.Output}, {"duplicates", r.Duplicates.Topic}, {"dead_letter", r.DeadLetter}, {"replies", r.Claim.Replies},
		} {
			if out.topic == "" {
				continue
			}
			if in, ok := input[out.topic]; ok {
				d.failAt(r, out.field, "%s is an input topic of the route in line %d: records would go round for ever", out.topic, in.node.Line)
			}
			if other, ok := output[out.topic]; ok && out.field != "output" {
				d.failAt(r, out.field, "%s is the output of the route in line %d, where every event stands once; "+
					"duplicates: forward is the way to have copies there", out.topic, other.node.Line)
			}
		}
	}
}
