package app

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
)

// Diagnosis is what a diagnosis of an app ('oncebus doctor') needs. A diagnosis writes nothing to the cluster.
type Diagnosis struct {
	Conn
	Config Config
	Routes *rules.Routes
	// SessionTimeout is the session timeout of the workers in their consumer groups.
	SessionTimeout time.Duration
	// Stages are the stages of the app. Each stage has a consumer group and transactional ids of its own.
	Stages []string
	// Clock is this machine's clock. Broker is the observed broker time; nil if it was not observed.
	Clock  func() time.Time
	Broker *BrokerClock
	Disk   Disk
	// Running says that a running process diagnoses itself. It then leaves out the checks of what a running
	// process proves: it uses the coordinators, and has created its topics.
	Running bool
}

// Facts are what a diagnosis has read once, so that the checks judge the same state of the cluster.
type Facts struct {
	Diagnosis
	topology *Topology
	brokers  []brokerFacts
	// brokerSettings has the settings of each broker that lists them.
	brokerSettings []map[string]string
	// throttled is how long the brokers delayed a response because of a quota.
	throttled time.Duration
	// allowed has the operations that the app's user may do on the existing topics; nil if the broker does not
	// list them. denied has the topics that the user may not describe.
	allowed map[string][]kadm.ACLOperation
	denied  map[string]bool
	// refused are the reasons for which a start with these topics and routes would fail.
	refused  []error
	creates  []string // missing topics that a start creates
	manifest *Manifest
	plan     Plan      // what the routes file changes for an app with route sets
	refusals []Refusal // what waits for a decision of an operator
	probes   []probe
	inputs   inputFacts
	twins    map[string]*twinFacts // by instance id
	hanging  hangingFacts
	clocks   clockFacts
	quotas   kadm.DescribedClientQuotas
	logDirs  kadm.DescribedAllLogDirs
	// unread has the errors of the reads, by the name of the check that failed to read.
	unread map[string]error
}

// check reads facts from the cluster and judges them. verdict is a pure function of the facts.
type check struct {
	name    string
	read    func(*Facts, context.Context, Conn) error
	verdict func(*Facts) []Finding
	// starts reports that a start makes the same check anyway, so that a running process leaves this check out.
	starts bool
}

// checks are in the order of the report. A check may use facts of the checks before it; all checks use the
// facts of the first one.
var checks = []check{
	{name: "brokers", read: (*Facts).readBrokers, verdict: (*Facts).judgeBrokers},
	{name: "versions", read: (*Facts).readVersions, verdict: (*Facts).judgeVersions},
	{name: "features", verdict: (*Facts).judgeFeatures, starts: true},
	{name: "coordinators", read: (*Facts).readCoordinators, verdict: (*Facts).judgeCoordinators, starts: true},
	{name: "rights", verdict: (*Facts).judgeRights},
	{name: "topics", read: (*Facts).readTopics, verdict: (*Facts).judgeTopics, starts: true},
	{name: "settings", read: (*Facts).readSettings, verdict: (*Facts).judgeSettings},
	{name: "replicas", verdict: (*Facts).judgeReplicas},
	{name: "manifest", read: (*Facts).readManifest, verdict: (*Facts).judgeManifest, starts: true},
	{name: "routes", verdict: (*Facts).judgeRoutes},
	{name: "decisions", read: (*Facts).readDecisions, verdict: (*Facts).judgeDecisions, starts: true},
	{name: "instances", read: (*Facts).readTwins, verdict: (*Facts).judgeTwins, starts: true},
	{name: "inputs", read: (*Facts).readInputs, verdict: (*Facts).judgeInputs, starts: true},
	{name: "time", read: (*Facts).readTime, verdict: (*Facts).judgeTime, starts: true},
	{name: "transactions", read: (*Facts).readTransactions, verdict: (*Facts).judgeTransactions, starts: true},
	{name: "clocks", read: (*Facts).readClocks, verdict: (*Facts).judgeClocks},
	{name: "quotas", read: (*Facts).readQuotas, verdict: (*Facts).judgeQuotas},
	{name: "disks", read: (*Facts).readLogDirs, verdict: (*Facts).judgeDisks},
}

// Read reads the facts of the app, check by check.
func (d Diagnosis) Read(ctx context.Context) *Facts {
	f := d.facts()
	for _, check := range checks {
		if check.read == nil || check.starts && d.Running {
			continue
		}
		if err := check.read(f, ctx, d.Conn); err != nil {
			f.unread[check.name] = security.ExplainCredentials(err, d.Config.SASL)
			if check.name == checks[0].name {
				break // no broker responds
			}
		}
	}
	return f
}

// facts returns Facts that have read nothing yet.
func (d Diagnosis) facts() *Facts {
	return &Facts{
		Diagnosis: d, topology: newTopology(d.Config.AppID, d.Routes), unread: map[string]error{},
		allowed: map[string][]kadm.ACLOperation{}, denied: map[string]bool{},
	}
}

// Judge judges the facts, in the order of the checks. If no broker responds, it returns that as the only
// finding.
func (f *Facts) Judge() []Finding {
	var findings []Finding
	for n, check := range checks {
		if check.starts && f.Running {
			continue
		}
		found := f.unreadable(check.name)
		if found == nil {
			found = check.verdict(f)
		} else if n == 0 {
			found[0].Level = Fails
		}
		for _, finding := range found {
			finding.Check = check.name
			findings = append(findings, finding)
		}
		if n == 0 && f.unread[check.name] != nil {
			break
		}
	}
	return findings
}

// unreadable returns the finding for a check whose facts could not be read; nil if they could.
func (f *Facts) unreadable(name string) []Finding {
	err := f.unread[name]
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return []Finding{{Level: Unchecked, Text: "no right to read them: " + err.Error(), Action: "oncebus runs without this right; a user with Describe and DescribeConfigs on the cluster sees more"}}
	case kafka.Classify(err) == kafka.Stop:
		return []Finding{{Level: Fails, Text: plain(err)}}
	}
	return []Finding{{Level: AtRisk, Text: "not readable: " + err.Error(), Action: "repeat the command; if the error remains, see the logs of the brokers"}}
}

// plain returns the text of an error without the prefix that marks an operator error.
func plain(err error) string { return strings.TrimPrefix(err.Error(), kafka.ErrOperator.Error()+": ") }

// failures returns a finding for each of the errors that err joins.
func failures(err error) (findings []Finding) {
	for _, err := range parts(err) {
		findings = append(findings, Finding{Level: Fails, Text: plain(err)})
	}
	return findings
}

// parts returns the errors that errors.Join joined, at any depth.
func parts(err error) []error {
	if err == nil {
		return nil
	}
	joined, ok := err.(interface{ Unwrap() []error }) // an error that wraps a join counts as one error
	if !ok {
		return []error{err}
	}
	var all []error
	var texts []string
	for _, e := range joined.Unwrap() {
		all, texts = append(all, parts(e)...), append(texts, e.Error())
	}
	if strings.Join(texts, "\n") != err.Error() { // an error of fmt.Errorf with several %w: its text has more than the joined errors
		return []error{err}
	}
	return all
}
