package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// Facts are what the checks of a diagnosis judge. They are read once.
type Facts struct {
	cfg      Config
	routes   *rules.Routes
	topology *Topology
	// allowed has the operations of the app's user on the topics, by topic; none if
	// the broker does not list them.
	allowed map[string][]kadm.ACLOperation
	denied  map[string]bool // topics that the user may not even describe
	// unread has the errors of the reads, by the name of their check.
	unread map[string]error
}

// check reads facts and judges them. The verdict is a pure function.
type check struct {
	name    string
	read    func(*Facts, context.Context, Conn) error
	verdict func(*Facts) []Finding
}

// checks are in the order of the report. A later check may use the facts of an
// earlier one.
var checks = []check{
	{"brokers", (*Facts).readBrokers, (*Facts).judgeBrokers},
	{"replicas", (*Facts).readReplicas, (*Facts).judgeReplicas},
}

// ReadFacts reads the facts of an app. It writes nothing to the cluster.
func ReadFacts(ctx context.Context, c Conn, cfg Config, routes *rules.Routes) *Facts {
	f := &Facts{cfg: cfg, routes: routes, topology: newTopology(cfg.AppID, routes), allowed: map[string][]kadm.ACLOperation{}, denied: map[string]bool{}, unread: map[string]error{}}
	for _, check := range checks {
		if err := check.read(f, ctx, c); err != nil {
			f.unread[check.name] = err
		}
	}
	return f
}

// Diagnose judges facts. It returns at least one finding for each check, in the order
// of the checks.
func (f *Facts) Diagnose() []Finding {
	var findings []Finding
	for _, check := range checks {
		found := f.unreadable(check.name)
		if found == nil {
			found = check.verdict(f)
		}
		for _, finding := range found {
			finding.Check = check.name
			findings = append(findings, finding)
		}
	}
	return findings
}

// unreadable returns the finding for a check whose facts could not be read; nil if
// they were.
func (f *Facts) unreadable(name string) []Finding {
	err := f.unread[name]
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return []Finding{{Level: Unchecked, Text: fmt.Sprintf("not readable: %v", err), Action: "optional: grant Describe and DescribeConfigs on the cluster to the user of this command"}}
	case kafka.Classify(err) == kafka.Stop:
		return []Finding{{Level: Fails, Text: err.Error()}}
	}
	return []Finding{{Level: AtRisk, Text: fmt.Sprintf("not readable: %v", err), Action: "repeat the command; see the log of the brokers"}}
}
