package app

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// ReadOutcome returns the route of an outcome's claim, and the outcome's kind and token. If the outcome is
// invalid, it returns the reason, and the route that the token names or, without such a route, the first route
// of the topic.
func (rt *App) ReadOutcome(rec *kgo.Record) (route *Route, read wire.OutcomeEnvelope, reason string) {
	headers := wire.Headers(rec.Headers)
	kind, hasKind := headers.Own(wire.HeaderOutcome)
	text, hasToken := headers.Own(wire.HeaderClaimToken)
	token, err := dedup.ParseToken(text)
	route, ok := rt.Outcomes[rec.Topic][0], false
	if err == nil {
		read.Token = token
		route, ok = rt.routeOfToken(&token, rt.Outcomes[rec.Topic])
	}
	outcome, known := dedup.ParseOutcomeKind(kind)
	read.Kind = outcome
	switch {
	case !hasKind:
		reason = "header " + wire.HeaderOutcome + " is missing"
	case !known:
		reason = fmt.Sprintf("header %s: %.40q is unknown, want one of %v", wire.HeaderOutcome, kind, dedup.OutcomeKinds)
	case !hasToken:
		reason = "header " + wire.HeaderClaimToken + " is missing: copy it from the event"
	case err != nil:
		reason = fmt.Sprintf("header %s: %v", wire.HeaderClaimToken, err)
	case !ok:
		reason = fmt.Sprintf("header %s: its route takes no outcomes from topic %s", wire.HeaderClaimToken, rec.Topic)
	default:
		if reason = rt.refuseToken(&read); reason == "" && outcome.Asks() {
			reason = rt.readQuestion(rec, route, &read)
		}
	}
	return route, read, reason
}

// ReadUnclaimed reads the outcome of an event without a claim. In place of a token such an outcome has the
// address of the request that waits for it, copied from the event. unclaimed is false for an outcome with a
// token, or with neither token nor address. reason says why the outcome cannot be sent to the request; "" if it
// can.
func ReadUnclaimed(rec *kgo.Record) (to dedup.Address, kind dedup.OutcomeKind, reason string, unclaimed bool) {
	headers := wire.Headers(rec.Headers)
	_, claimed := headers.Own(wire.HeaderClaimToken)
	text, addressed := headers.Own(wire.HeaderReplyTo)
	if claimed || !addressed {
		return to, kind, "", false
	}
	to, ok := dedup.ParseAddress(text)
	name, _ := headers.Own(wire.HeaderOutcome)
	kind, known := dedup.ParseOutcomeKind(name)
	switch {
	case !ok:
		reason = fmt.Sprintf("header %s: %.64q is no address: copy it from the event", wire.HeaderReplyTo, text)
	case !known || kind != dedup.OutcomeCompleted && kind != dedup.OutcomeFailed && kind != dedup.OutcomeRejected:
		reason = fmt.Sprintf("header %s: %.40q: an event without a claim ends with completed, failed or rejected", wire.HeaderOutcome, name)
	}
	return to, kind, reason, true
}

// readQuestion reads the start id of a start or renewal. It returns the reason why the question gets no answer;
// "" if it gets one.
func (rt *App) readQuestion(rec *kgo.Record, route *Route, read *wire.OutcomeEnvelope) string {
	headers := wire.Headers(rec.Headers)
	id, _ := headers.Own(wire.HeaderStartID)
	switch {
	case !rt.TokensNameApp:
		return fmt.Sprintf("outcome %v: processes of an earlier build may run, which cannot read it: stop all processes of the app once, then send it again", read.Kind)
	case len(id) > dedup.StartIDMax:
		return fmt.Sprintf("header %s: %d bytes, want at most %d", wire.HeaderStartID, len(id), dedup.StartIDMax)
	case read.Kind != dedup.OutcomeStart:
	case len(id) == 0:
		return "header " + wire.HeaderStartID + " is missing: name the process that runs the attempt"
	case route.Claim.Answers == "" && !rt.QuestionAddress(rec).IsSet():
		return fmt.Sprintf("outcome start has no answer: add `answers: TOPIC` to route %s, or send it by HTTP", route.Name)
	}
	if len(id) > 0 {
		read.StartID = id
	}
	return ""
}

// refuseToken returns the reason why a token whose namespace has outcomes is invalid; "" if the token is valid.
func (rt *App) refuseToken(read *wire.OutcomeEnvelope) string {
	if read.Token.App != 0 && read.Token.App != rt.TokenApp {
		return fmt.Sprintf("header %s: the token is of another app: give each app outcomes topics of its own, or send it the outcomes of its own events only", wire.HeaderClaimToken)
	}
	if partitions := rt.Topology.Topics[rt.Topology.Repartition].Partitions; rt.Topology.Generation == 1 && read.Token.Partition >= partitions {
		return fmt.Sprintf("header %s: names partition %d of %d: the token is of another app", wire.HeaderClaimToken, read.Token.Partition, partitions)
	}
	if read.Token.Attempt == 0 { // the command 'oncebus forget' of an older build named no attempt
		return fmt.Sprintf("header %s: names no attempt: copy the header from the event, or repeat the command 'oncebus forget' of this build", wire.HeaderClaimToken)
	}
	return ""
}

// OutcomePartition returns the partition of the task that has a claim. In the first generation this is the
// partition in the token. A token of an earlier generation names a partition of that generation, so from the
// second generation on the partition is computed from the key. The claim of an order in the present generation
// is in the partition that its token names, because an app with orders cannot move.
func (rt *App) OutcomePartition(route *Route, token *dedup.Token) int32 {
	if rt.Topology.Generation == 1 || route.HasOrder() && token.Partition < rt.Topology.Topics[rt.Topology.Repartition].Partitions {
		return token.Partition
	}
	return rt.Hasher.Partition(&token.Digest)
}

// routeOfToken returns the route of the token's namespace. If several routes share the namespace, it returns
// the first one that reads the topic of the event that made the claim; the claim's row has the exact route. If
// no route has the namespace, it returns the first route, and false.
func (rt *App) routeOfToken(token *dedup.Token, routes []*Route) (route *Route, ok bool) {
	for _, r := range routes {
		switch {
		case r.NamespaceID != token.NamespaceID:
		case slices.ContainsFunc(r.Topics, func(topic string) bool { return rt.TopicNumbers[topic] == token.At.Topic }):
			return r, true
		case !ok:
			route, ok = r, true
		}
	}
	if !ok {
		return routes[0], false
	}
	return route, true
}
