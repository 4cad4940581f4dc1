package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Routes is a validated routes file.
type Routes struct {
	Routes []*Route // in the file's order
	// Warnings say what is at risk although the file is valid, in the file's order, each as "routes.yaml:12:
	// routes[0].key[0]: header ...".
	Warnings []string
	// Text is the file. Digest identifies its content: files that differ only in comments, format or the
	// order of fields have the same Digest.
	Text   []byte
	Digest string

	byTopic map[string]*topicPlan
	slots   int // number of distinct payload paths in all routes
}

// index assigns a slot to every payload path of the file, a mask for the state digest to every source, and a
// plan to every topic.
func (rs *Routes) index() {
	slots := map[string]int{}
	slotOf := func(segments []segment) int {
		var id strings.Builder
		for _, s := range segments {
			id.WriteString(strconv.Quote(s.name))
		}
		if _, ok := slots[id.String()]; !ok {
			slots[id.String()] = len(slots)
		}
		return slots[id.String()]
	}
	rs.byTopic = map[string]*topicPlan{}
	for _, r := range rs.Routes {
		r.fingerprintRule = ruleOf(r)
		for i := range r.Keys {
			r.Keys[i].mask = stateMask(r.Namespace, kinds[r.Keys[i].kind].makes)
		}
		for _, topic := range r.Topics {
			plan := rs.byTopic[topic]
			if plan == nil {
				plan = &topicPlan{topic: topic, name: []byte(topic), format: r.FormatOf(topic), tree: newPathTree()}
				rs.byTopic[topic] = plan
			}
			plan.routes = append(plan.routes, r)
			plan.form = plan.form || r.HTTP != nil && r.HTTP.Form
			r.eachPath(func(segments []segment, slot *int) {
				*slot = slotOf(segments)
				plan.tree.add(segments, *slot)
				if !slices.Contains(plan.wanted, *slot) {
					plan.wanted = append(plan.wanted, *slot)
				}
			})
		}
	}
	for _, plan := range rs.byTopic {
		plan.groups = groupMatches(plan.routes)
	}
	rs.slots = len(slots)
}

// topicPlan has the routes and payload paths of one input topic.
type topicPlan struct {
	topic  string
	name   []byte // topic as bytes
	format RecordFormat
	routes []*Route // in the file's order
	groups []matchGroup
	tree   *pathNode // every payload path that a route of the topic reads
	wanted []int     // the slots of these paths
	form   bool      // a record of the topic may be a form
}

// MaxNamespaces is the most namespaces of one routes file: a row has one byte for the namespace id, and 0 is
// unused.
const MaxNamespaces = 255

// Inputs returns the input topics, sorted, each once. routed are the topics that the router reads, including
// topics of outcomes; prepartitioned are all other input topics.
func (rs *Routes) Inputs() (routed, prepartitioned []string) {
	for topic, plan := range rs.byTopic {
		if plan.routes[0].Prepartitioned {
			prepartitioned = append(prepartitioned, topic)
		} else {
			routed = append(routed, topic)
		}
	}
	for _, r := range rs.Routes {
		if r.Mode == ClaimMode {
			routed = append(routed, r.Claim.Outcomes)
		}
	}
	slices.Sort(routed)
	slices.Sort(prepartitioned)
	return slices.Compact(routed), prepartitioned
}

// Route returns the route of that name, or nil.
func (rs *Routes) Route(name string) *Route {
	for _, r := range rs.Routes {
		if r.Name == name {
			return r
		}
	}
	return nil
}

// NeedsSecret reports whether any route hashes with the secret.
func (rs *Routes) NeedsSecret() bool {
	return slices.ContainsFunc(rs.Routes, func(r *Route) bool { return r.Secret })
}

// validate checks required fields and names, and that the routes agree with each other about topics,
// namespaces and paths.
func (d *decoder) validate(drafts []*draft) {
	if len(drafts) == 0 && len(d.mistakes) == 0 {
		d.failPlace(1, 1, "routes", "is required")
	}
	for _, r := range drafts {
		if r.nodes != nil {
			d.validateRoute(r)
			d.validateShadow(r, drafts)
		}
	}
	d.validateNames(drafts)
	d.validateNamespaces(drafts)
	d.validateInputs(drafts)
	d.validateOutputs(drafts)
	d.validatePaths(drafts)
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

// validateNamespaces allows routes to share a namespace only if their keys have the same meaning: a namespace
// has one window and one key rule. The state of a prepartitioned topic is kept separately, so its route cannot
// share a namespace with a route of other topics.
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
		d.validateShared(r, other)
	}
}

// validateShared checks two routes that share a namespace.
func (d *decoder) validateShared(r, other *draft) {
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
		d.failAt(r, field, "%s, which has another mode, or other outcomes, replies, answers, lease, executor_group, while_in_progress, max_waiting or result_limit", with)
	}
	if r.FailOpen != other.FailOpen {
		d.failAt(r, field, "%s, which has another on_state_failure", with)
	}
	if (r.Prepartitioned || other.Prepartitioned) && !slices.Equal(r.Topics, other.Topics) {
		d.failAt(r, field, "%s, but the state of a prepartitioned topic is separate: duplicates on two topics would not be found", with)
	}
}

// validateInputs refuses two routes of one topic if they contradict each other about the topic, or if the later
// route would get no record because the earlier route takes them all.
func (d *decoder) validateInputs(drafts []*draft) {
	byTopic := map[string][]*draft{}
	for _, r := range drafts {
		for _, topic := range slices.Compact(slices.Sorted(slices.Values(r.Topics))) {
			d.validateInput(topic, r, byTopic[topic])
			byTopic[topic] = append(byTopic[topic], r)
		}
	}
}

// validateInput checks a route against the earlier routes of a topic. It stops after a mistake, because the
// other routes would only cause the same mistake again.
func (d *decoder) validateInput(topic string, r *draft, earlier []*draft) {
	var left []string // texts of r's match that no earlier route takes
	if r.Match != nil {
		left = slices.Clone(r.Match.In)
	}
	for _, e := range earlier {
		before := len(d.mistakes)
		if e.Prepartitioned != r.Prepartitioned {
			d.failAt(r, "prepartitioned", "%s is prepartitioned in one route and not in another (line %d)", topic, e.node.Line)
		}
		if a, b := e.FormatOf(topic), r.FormatOf(topic); a != b {
			d.failAt(r, "format", "%s has the format %s here, and %s in the route in line %d: write the same in both", topic, b, a, e.node.Line)
		}
		left = slices.DeleteFunc(left, func(text string) bool { return e.takes(r.Match, text) })
		if e.takesAllOf(r) {
			d.failAt(r, "topics", "the route gets nothing of %s: the one in line %d takes every record before it; "+
				"give that one a match, or move it down", topic, e.node.Line)
		}
		if len(d.mistakes) > before {
			return
		}
	}
	if r.Match != nil && len(r.Match.In) > 0 && len(left) == 0 {
		d.warn(r.nodes["match"], join(r.at, "match"), "the route gets nothing of %s: the routes above take each of these values before it; move it up, or take the values from the others", topic)
	}
}

// takesAllOf reports whether r takes every record that the other route, later, matches.
func (r *draft) takesAllOf(later *draft) bool {
	if r.Match == nil {
		return true
	}
	return later.Match != nil && len(later.Match.In) > 0 && !slices.ContainsFunc(later.Match.In, func(text string) bool { return !r.takes(later.Match, text) })
}

// takes reports whether r takes every record that m matches because of text, one of the texts of m.
func (r *draft) takes(m *Match, text string) bool {
	a := r.Match
	if a == nil || m == nil || a.Field.Path.Text != m.Field.Path.Text || a.Header != m.Header {
		return a == nil
	}
	if !slices.Equal(a.Normalise, m.Normalise) {
		switch {
		case text == MatchAbsent: // an absent value has no other spellings
			return slices.Contains(a.In, text)
		case m.Normalise != nil:
			return false // m matches spellings that r may not know
		}
		var scratch Deriver
		normal, _ := scratch.normalise(scalar{text: []byte(text)}, a.Normalise) // changing the case never fails
		text = string(normal.text)
	}
	if r.matched == nil {
		r.matched = map[string]bool{}
		for _, known := range a.In {
			r.matched[known] = true
		}
	}
	return r.matched[text]
}

// validateOutputs refuses an output that is also an input, because the app would read its own records
// forever, and an output that also gets duplicates, dead letters or replies.
func (d *decoder) validateOutputs(drafts []*draft) {
	input, output := map[string]*draft{}, map[string]*draft{}
	for _, r := range drafts {
		for _, topic := range r.Topics {
			input[topic] = r
		}
		output[r.Output] = r
	}
	d.validateOutcomes(drafts, input)
	for _, r := range drafts {
		if r.Mode == ClaimMode && r.Claim.Outcomes != "" {
			input[r.Claim.Outcomes] = r
		}
	}
	for _, r := range drafts {
		for _, out := range []struct{ field, topic string }{
			{"output", r.Output}, {"duplicates", r.Duplicates.Topic}, {"dead_letter", r.DeadLetter}, {"replies", r.Claim.Replies}, {"answers", r.Claim.Answers},
		} {
			if out.topic == "" {
				continue
			}
			if in, ok := input[out.topic]; ok {
				d.refuseLoop(r, in, out.field, out.topic)
			}
			if other, ok := output[out.topic]; ok && out.field != "output" {
				d.failAt(r, out.field, "%s is the output of the route in line %d, which has every event once; "+
					"to have duplicates there, write duplicates: forward", out.topic, other.node.Line)
			}
		}
	}
}

// refuseLoop refuses a topic to which route r writes and from which route in reads.
func (d *decoder) refuseLoop(r, in *draft, field, topic string) {
	if r == in {
		d.failAt(r, field, "%s is an input topic of the route in line %d: the record would be processed again and again", topic, in.node.Line)
		return
	}
	d.failAt(r, field, "%s is an input topic of the route in line %d: an app reads nothing that it writes; "+
		"run the second step as an app of its own, with another ONCEBUS_APP_ID", topic, in.node.Line)
}

// validateOutcomes refuses a topic that has both events and outcomes.
func (d *decoder) validateOutcomes(drafts []*draft, input map[string]*draft) {
	for _, r := range drafts {
		if in, ok := input[r.Claim.Outcomes]; ok && r.Claim.Outcomes != "" {
			d.failAt(r, "outcomes", "%s is an input topic of the route in line %d: an outcome is not an event", r.Claim.Outcomes, in.node.Line)
		}
	}
}

// validatePaths allows routes of one topic to share a path. One path is one endpoint, and only the match
// condition selects a route for a request, so all routes of the path must have the same settings there.
func (d *decoder) validatePaths(drafts []*draft) {
	first := map[string]*draft{}
	for _, r := range drafts {
		if r.HTTP == nil || r.HTTP.Path == "" {
			continue
		}
		other, ok := first[r.HTTP.Path]
		if !ok {
			first[r.HTTP.Path] = r
			continue
		}
		line := other.node.Line
		if r.HTTP.Topic != other.HTTP.Topic {
			d.failHTTP(r, "path", "%s is the path of the route in line %d, whose events go to another topic: give the route a path of its own",
				r.HTTP.Path, line)
			continue
		}
		if fields := r.HTTP.differs(other.HTTP); len(fields) > 0 {
			d.failHTTP(r, "path", "%s is shared with the route in line %d, which has another %s: write the same in both",
				r.HTTP.Path, line, strings.Join(fields, ", "))
		}
		if a, b := r.HTTP.Outcomes, other.HTTP.Outcomes; a != nil && b != nil && *a != *b {
			d.failHTTP(r, "outcomes", "%s is shared with the route in line %d, whose outcomes are signed in another way: write the same in both",
				r.HTTP.Path+OutcomesSuffix, line)
		}
	}
	for _, r := range drafts {
		if r.HTTP == nil || r.HTTP.Events == nil {
			continue
		}
		if other, ok := first[r.HTTP.Path+EventsSuffix]; ok {
			d.failHTTP(r, "events", "%s is the path of the route in line %d: give one of them another path", r.HTTP.Path+EventsSuffix, other.node.Line)
		}
	}
}

// Off returns the names of the routes that are switched off.
func (rs *Routes) Off() (names []string) {
	for _, r := range rs.Routes {
		if r.Off {
			names = append(names, r.Name)
		}
	}
	return names
}
