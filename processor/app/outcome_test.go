package app

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// TestQuestionsWaitForTheUpgrade: processes of an earlier build cannot read a start, so it is
// refused until none of them runs. Other outcomes are read.
func TestQuestionsWaitForTheUpgrade(t *testing.T) {
	route := &Route{Route: &rules.Route{Name: "ops", Claim: rules.Claims{Outcomes: "outcomes", Answers: "answers"}}, NamespaceID: 2}
	for _, upgraded := range []bool{false, true} {
		rt := &App{
			TokensNameApp: upgraded, Outcomes: map[string][]*Route{"outcomes": {route}},
			Topology: &Topology{Repartition: "repartition", Topics: map[string]Topic{"repartition": {Partitions: 4}}},
		}
		token := dedup.Token{NamespaceID: 2, Attempt: 1}
		for _, kind := range dedup.OutcomeKinds {
			_, read, reason := rt.ReadOutcome(&kgo.Record{Topic: "outcomes", Headers: []kgo.RecordHeader{
				{Key: wire.HeaderClaimToken, Value: token.Append(nil)}, {Key: wire.HeaderOutcome, Value: []byte(kind.String())}, {Key: wire.HeaderStartID, Value: []byte("a")},
			}})
			if refused := kind.Asks() && !upgraded; (reason != "") != refused || refused && !strings.Contains(reason, "stop all processes of the app once") {
				t.Errorf("upgraded %t: %v is refused for %q", upgraded, kind, reason)
			}
			if string(read.StartID) != "a" && reason == "" && kind.Asks() || read.StartID != nil && !kind.Asks() {
				t.Errorf("%v has start id %q", kind, read.StartID)
			}
		}
	}
}
