package rules

import (
	"slices"
	"strconv"
	"strings"
)

// topicPlan is what key derivation needs to know of one input topic.
type topicPlan struct {
	routes []*Route  // in the file's order
	tree   *pathNode // every payload path that one of them reads
	wanted []int     // their slots
}

// index gives every payload path of the file a slot and every topic its plan.
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
		for _, topic := range r.Topics {
			plan := rs.byTopic[topic]
			if plan == nil {
				plan = &topicPlan{tree: newPathTree()}
				rs.byTopic[topic] = plan
			}
			plan.routes = append(plan.routes, r)
			r.eachPath(func(segments []segment, slot *int) {
				*slot = slotOf(segments)
				plan.tree.add(segments, *slot)
				if !slices.Contains(plan.wanted, *slot) {
					plan.wanted = append(plan.wanted, *slot)
				}
			})
		}
	}
	rs.slots = len(slots)
}

// eachPath calls f for every payload path that the route reads, with the place
// where its slot is kept.
func (r *Route) eachPath(f func(segments []segment, slot *int)) {
	field := func(x *Field) { f(x.Path.segments, &x.slot) }
	if r.Match != nil && r.Match.Header == "" {
		field(&r.Match.Field)
	}
	if r.Time != nil {
		field(&r.Time.Field)
	}
	for i := range r.Fingerprint {
		field(&r.Fingerprint[i])
	}
	if x := r.Claim.Request; x != nil && x.Header == "" {
		field(&x.Field)
	}
	for i := range r.Keys {
		for _, x := range r.Keys[i].payloadFields() {
			field(x)
		}
	}
}
