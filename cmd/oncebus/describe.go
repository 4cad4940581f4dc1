package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
)

// describe returns what a route does, as a list of facts for people.
func describe(r *rules.Route) []fact {
	path := "through the repartition topic"
	if r.Prepartitioned {
		path = "prepartitioned by the dedup key"
	}
	hash := "SHA-256"
	if r.Secret {
		hash = "HMAC-SHA-256 with the secret"
	}
	namespace, match, eventTime := "", "", "the record's timestamp"
	if r.Namespace != r.Name {
		namespace = r.Namespace
	}
	if r.Match != nil {
		match = describeMatch(r.Match)
	}
	if r.Time != nil {
		eventTime = fmt.Sprintf("field %s (%s)", r.Time.Field.Path.Text, r.Time.Format)
		if r.Time.GoesOn {
			eventTime += ", goes on without events"
		}
	}
	output := r.Output
	if names := r.Headers.Names(); len(names) > 0 {
		output += "; unique events with the headers oncebus-" + strings.Join(names, ", oncebus-")
	}
	duplicates := describePolicy(r.Duplicates.Policy, r)
	if r.Mode == rules.ClaimMode {
		duplicates = "" // duplicates get a reply
	}
	limits := ""
	if n := r.Limits.LiveKeys; n > 0 {
		limits = fmt.Sprintf("%d live keys in a partition; further new keys: %s", n, describePolicy(r.Limits.OnLimit, r))
	}
	failing := "" // the route fails closed: events wait in Kafka
	if r.FailOpen {
		failing = "events are forwarded to " + r.Output + " as bypassed, and stored afterwards"
	}
	sender := ""
	if r.Sender != nil {
		sender = r.Sender.String()
	}
	facts := []fact{
		{"switched off", describeOff(r)},
		{"namespace", namespace},
		{"topics", strings.Join(r.Topics, ", ") + ", " + path},
		{"match", match},
		{"format", describeFormat(r)},
		{"key", describeKeys(r.Keys)},
		{"hash", hash},
		{"window", fmt.Sprintf("%s by %s; grace %s, skew %s", routesets.Short(r.Window), eventTime, routesets.Short(r.Grace), routesets.Short(r.Skew))},
		{"output", output},
		{"duplicates", duplicates},
		{"counted by sender", sender},
		{"after window", describeAfterWindow(r)},
		{"collision", describeCollision(r)},
		{"missing key", describePolicy(r.OnMissingKey, r)},
		{"late", describePolicy(r.OnLate, r)},
		{"far future", describePolicy(r.OnFuture, r)},
		{"dead letter", r.DeadLetter},
		{"limits", limits},
		{"on state failure", failing},
		{"shadow", describeShadow(r.Shadow)},
	}
	return slices.Concat(facts, describeTenants(r), describeClaims(r), describeHTTP(r))
}

// describeKeys writes the key sources of a route in their order.
func describeKeys(sources []rules.Source) string {
	keys := make([]string, len(sources))
	for i := range sources {
		keys[i] = sources[i].Described()
	}
	return strings.Join(keys, "; else ")
}

// describeFormat writes the record formats of a route's topics; "" if all topics have JSON.
func describeFormat(r *rules.Route) string {
	var all []string
	for _, topic := range r.Topics {
		if f := r.FormatOf(topic); f != (rules.RecordFormat{}) {
			all = append(all, topic+": "+f.String())
		}
	}
	return strings.Join(all, "; ")
}

// describeShadow writes the key rule of the route's shadow; "" if the route has no shadow.
func describeShadow(s *rules.Shadow) string {
	if s == nil {
		return ""
	}
	return fmt.Sprintf("%s: key %s; window %s, grace %s; %s %% of the keys", s.Name, describeKeys(s.Keys), routesets.Short(s.Route.Window), routesets.Short(s.Route.Grace), strconv.FormatFloat(100*s.Sample, 'g', -1, 64))
}

// describeOff writes what a route that is switched off does with its events; "" if the route is not switched
// off.
func describeOff(r *rules.Route) string {
	if !r.Off {
		return ""
	}
	return "each event is forwarded to " + r.Output + " as bypassed, with its copies, and nothing is stored"
}

// describeAfterWindow writes what happens to an event after its window; "" if such an event is forwarded.
func describeAfterWindow(r *rules.Route) string {
	if !r.RejectsAfterWindow {
		return ""
	}
	return "a duplicate, refused, while its row is kept: two windows and the grace"
}

// describeCollision writes in which details two events with the same key must agree.
func describeCollision(r *rules.Route) string {
	if r.Fingerprint == nil {
		return ""
	}
	var fields []string
	for i := range r.Fingerprint {
		fields = append(fields, r.Fingerprint[i].Describe())
	}
	return "where " + strings.Join(fields, ", ") + " differ: " + describePolicy(r.Collision, r)
}

// describeClaims lists the facts of claim mode.
func describeClaims(r *rules.Route) []fact {
	if r.Mode != rules.ClaimMode {
		return nil
	}
	c := r.Claim
	inProgress, request := "duplicates are rejected immediately", ""
	if c.Wait {
		inProgress = fmt.Sprintf("duplicates wait for the outcome, at most %d per event", c.MaxWaiting)
	}
	if x := c.Request; x != nil {
		request = "field " + x.Field.Path.Text
		if x.Header != "" {
			request = "header " + x.Header
		}
	}
	lease := routesets.Short(c.Lease) + " from the dispatch: an executor that is away for longer gets further attempts; name its consumer group in executor_group"
	if c.Group != "" {
		lease = fmt.Sprintf("%s from when group %s has committed the event", routesets.Short(c.Lease), c.Group)
	}
	return []fact{
		{"outcomes", c.Outcomes},
		{"replies", c.Replies},
		{"answers", c.Answers},
		{"lease", lease},
		{"while in progress", inProgress},
		{"result limit", plural(c.ResultBytes, "byte")},
		{"request id", request},
	}
}

// describeMatch writes the condition under which an event belongs to a route.
func describeMatch(m *rules.Match) string {
	what := "field " + m.Field.Path.Text
	if m.Header != "" {
		what = "header " + m.Header
	}
	quoted := make([]string, len(m.In))
	for i, v := range m.In {
		quoted[i] = strconv.Quote(v)
		if v == rules.MatchAbsent {
			quoted[i] = "absent"
		}
	}
	if m.Normalise != nil {
		what += " (" + rules.StepsText(m.Normalise) + ")"
	}
	return what + " is " + strings.Join(quoted, " or ")
}

// describePolicy writes what a policy does to an event of route r.
func describePolicy(p rules.Policy, r *rules.Route) string {
	switch p {
	case rules.DeadLetter:
		return "to " + r.DeadLetter
	case rules.ToTopic:
		return "to " + r.Duplicates.Topic
	case rules.Forward:
		return "forwarded to " + r.Output + ", marked"
	case rules.Drop:
		return "dropped and counted"
	case rules.Reject:
		return "refused in the reply to its sender alone"
	case rules.Clamp:
		return "event time set to broker time plus skew"
	default:
		return p.String()
	}
}
