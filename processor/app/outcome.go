package app

import (
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// ReadOutcome returns the route of an outcome's claim, its kind and token. If the
// outcome is invalid it returns the reason, and the first route of its topic unless
// the token names another.
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

// ReadUnclaimed reads the outcome of an event without a claim: the address of the request that
// waits for it, as the event had it, takes the place of a token. It returns false for an outcome
// with a token, or without either. reason says why it cannot be sent.
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

// readQuestion reads the start id of a start or renewal. It returns why the question has no
// answer; "" if it has one.
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

// refuseToken returns why the token of a namespace with outcomes is invalid; "" if it is
// valid.
func (rt *App) refuseToken(read *wire.OutcomeEnvelope) string {
	if read.Token.App != 0 && read.Token.App != rt.TokenApp {
		return fmt.Sprintf("header %s: the token is of another app: give each app outcomes topics of its own, or send it the outcomes of its own events only", wire.HeaderClaimToken)
	}
	if partitions := rt.Topology.Topics[rt.Topology.Repartition].Partitions; rt.Topology.Generation == 1 && read.Token.Partition >= partitions {
		return fmt.Sprintf("header %s: names partition %d of %d: the token is of another app", wire.HeaderClaimToken, read.Token.Partition, partitions)
	}
	if read.Token.Attempt == 0 { // of the command forget, before it named one
		return fmt.Sprintf("header %s: names no attempt: copy the header from the event, or repeat the command 'oncebus forget' of this build", wire.HeaderClaimToken)
	}
	return ""
}

// OutcomePartition returns the partition of the task that has a claim. A token of an earlier
// generation names another one, so from the second generation on the key decides. An order of
// the present generation has its claim where the token says: an app with orders does not move.
func (rt *App) OutcomePartition(route *Route, token *dedup.Token) int32 {
	if rt.Topology.Generation == 1 || route.HasOrder() && token.Partition < rt.Topology.Topics[rt.Topology.Repartition].Partitions {
		return token.Partition
	}
	return rt.Hasher.Partition(&token.Digest)
}

// routeOfToken returns the route of the token's namespace. Of several it is the first one
// that reads the topic of the event that made the claim; the row of the claim has the exact
// one. Without a route of the namespace it returns the first one, and false.
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
