package app

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// ReadOutcome returns the route of an outcome's claim, its kind and token. If the
// outcome is invalid it returns the reason, and the first route of its topic unless
// the token names another.
func (rt *App) ReadOutcome(rec *kgo.Record) (route *Route, read wire.OutcomeEnvelope, reason string) {
	routes := rt.Outcomes[rec.Topic]
	headers := wire.Headers(rec.Headers)
	kind, ok := headers.Header(wire.HeaderOutcome)
	if !ok {
		return routes[0], read, "header " + wire.HeaderOutcome + " is missing"
	}
	if read.Kind, ok = dedup.ParseOutcomeKind(kind); !ok {
		return routes[0], read, fmt.Sprintf("header %s: %.40q is unknown, want one of %v", wire.HeaderOutcome, kind, dedup.OutcomeKinds)
	}
	text, ok := headers.Header(wire.HeaderClaimToken)
	if !ok {
		return routes[0], read, "header " + wire.HeaderClaimToken + " is missing: copy it from the event"
	}
	var err error
	if read.Token, err = dedup.ParseToken(text); err != nil {
		return routes[0], read, fmt.Sprintf("header %s: %v", wire.HeaderClaimToken, err)
	}
	for _, route := range routes {
		if route.NamespaceID != read.Token.NamespaceID {
			continue
		}
		if partitions := rt.Topology.Topics[rt.Topology.Repartition].Partitions; read.Token.Partition >= partitions {
			return route, read, fmt.Sprintf("header %s: names partition %d of %d: the token is of another app", wire.HeaderClaimToken, read.Token.Partition, partitions)
		}
		if read.Token.Attempt == 0 && read.Kind != dedup.OutcomeForget {
			return route, read, fmt.Sprintf("header %s: names no attempt, which only forget may", wire.HeaderClaimToken)
		}
		return route, read, ""
	}
	return routes[0], read, fmt.Sprintf("header %s: its route takes no outcomes from topic %s", wire.HeaderClaimToken, rec.Topic)
}
