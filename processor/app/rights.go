package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
)

// CheckRights reads the authorized operations of the topics (KIP-430), and returns an operator error for each
// right that is missing. It ignores a topic for which the broker lists no operations. It cannot check groups
// and transactional ids: a group that does not exist has no list, and a transactional id never has one.
func (t *Topology) CheckRights(ctx context.Context, client *kgo.Client) error {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range append(t.internal(), t.external()...) {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return fmt.Errorf("read the rights on topics: %w", err)
	}
	var mistakes []error
	for i := range resp.Topics {
		topic := &resp.Topics[i]
		if topic.Topic == nil {
			continue
		}
		for _, op := range t.missing(*topic.Topic, topic.ErrorCode, kadm.DecodeACLOperations(topic.AuthorizedOperations)) {
			mistakes = append(mistakes, fmt.Errorf("%w: %w", kafka.ErrOperator, kafka.Denied(kerr.TopicAuthorizationFailed, op, kafka.ResourceTopic, *topic.Topic)))
		}
	}
	return errors.Join(mistakes...)
}

// missing returns the operations that oncebus needs on a topic and that its user may not do.
func (t *Topology) missing(topic string, code int16, allowed []kadm.ACLOperation) []string {
	needed := t.operations(topic)
	switch {
	case code == kerr.TopicAuthorizationFailed.Code:
		return needed // the user may not even describe the topic
	case code != 0, len(allowed) == 0:
		return nil // the topic does not exist yet, or the broker lists no operations
	}
	return slices.DeleteFunc(needed, func(op string) bool {
		return slices.ContainsFunc(allowed, func(have kadm.ACLOperation) bool { return sameOperation(op, have) })
	})
}

// operations returns the operations that oncebus needs on a topic, by Kafka's names.
func (t *Topology) operations(topic string) []string {
	switch {
	case slices.Contains(t.internal(), topic):
		return []string{"Read", "Write", "DescribeConfigs"}
	case slices.Contains(t.emissions, topic) && (slices.Contains(t.Routed, topic) || slices.Contains(t.Prepartitioned, topic) || t.isExecuted(topic)):
		return []string{"Read", "Write", "DescribeConfigs"}
	case slices.Contains(t.emissions, topic):
		return []string{"Write", "DescribeConfigs"}
	case slices.Contains(t.outcomes, topic):
		return []string{"Read", "DescribeConfigs"} // DescribeConfigs for the cleanup policy
	}
	return []string{"Read"}
}

// isExecuted reports whether a topic is read by an executor whose group a route names. The routing stage then
// reads the topic to find where its committed records end.
func (t *Topology) isExecuted(topic string) bool {
	for _, outputs := range t.executors {
		if slices.Contains(outputs, topic) {
			return true
		}
	}
	return false
}

// sameOperation compares Kafka's name of an operation with the protocol's name, such as DescribeConfigs with
// DESCRIBE_CONFIGS.
func sameOperation(name string, op kmsg.ACLOperation) bool {
	return strings.EqualFold(name, strings.ReplaceAll(op.String(), "_", ""))
}

// judgeRights returns a finding for each right that the app's user lacks.
func (f *Facts) judgeRights() []Finding {
	var findings []Finding
	lacks := func(operation, resource, name string) {
		findings = append(findings, Finding{
			Level: Fails, Text: fmt.Sprintf("no right to %s on %s %s", operation, resource, name), Action: kafka.Grant(operation, resource, name),
		})
	}
	listed := 0
	for _, name := range f.topology.all() {
		code := int16(0)
		if f.denied[name] {
			code = kerr.TopicAuthorizationFailed.Code
		}
		if len(f.allowed[name]) > 0 {
			listed++
		}
		for _, operation := range f.topology.missing(name, code, f.allowed[name]) {
			lacks(operation, kafka.ResourceTopic, name)
		}
	}
	for _, p := range f.probes {
		if p.isDenied() {
			lacks(p.operation, p.resource, p.name)
		}
	}
	if repartition := f.topology.Repartition; len(f.allowed[repartition]) > 0 && !slices.Contains(f.allowed[repartition], kmsg.ACLOperationDelete) {
		findings = append(findings, Finding{
			Level: AtRisk, Text: fmt.Sprintf("no right to Delete on topic %s: processed records stay, so it grows", repartition), Action: kafka.Grant("Delete", kafka.ResourceTopic, repartition),
		})
	}
	if len(findings) == 0 {
		findings = append(findings, Finding{Text: fmt.Sprintf("all rights on %d existing topics, %d groups and transactional ids", listed, len(f.probes))})
	}
	return findings
}
