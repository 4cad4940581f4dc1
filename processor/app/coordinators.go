package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor/kafka"
)

// probeTimeout is how long a coordinator may take to respond.
const probeTimeout = 5 * time.Second

// probe is a request to a coordinator that changes nothing: the coordinator responds that it does not know the
// member or producer, or that the user lacks a right. The response shows that the coordinator works.
type probe struct {
	resource, name, operation string
	err                       error
	// fresh reports that no group or transactional id has used such a coordinator yet. The first request would
	// make Kafka create the coordinator's topic, so the diagnosis does not send the probe.
	fresh bool
}

// readCoordinators probes the coordinators of the groups and transactional ids of this instance.
func (f *Facts) readCoordinators(ctx context.Context, c Conn) error {
	f.readBrokerSettings(ctx, c)
	groups, err := c.Admin.ListGroups(ctx)
	if err != nil {
		return fmt.Errorf("list the groups: %w", err)
	}
	// The embedded broker is the only one that has transactions without Kafka's topic for them.
	open, _ := c.Admin.ListTransactions(ctx, nil, nil)
	ids := []string{ManifestName(f.Config.AppID)}
	for _, stage := range f.Stages {
		ids = append(ids, TransactionalID(f.Config.AppID, stage, 0, f.Config.InstanceID))
		p := probe{resource: kafka.ResourceGroup, name: GroupName(f.Config.AppID, stage), operation: "Read", fresh: f.fresh(offsetsTopic) && len(groups) == 0}
		if !p.fresh {
			p.err = probeGroup(ctx, c, p.name)
		}
		f.probes = append(f.probes, p)
	}
	for _, group := range slices.Sorted(maps.Keys(f.topology.executors)) {
		p := probe{resource: kafka.ResourceGroup, name: group, operation: "Describe", fresh: f.fresh(offsetsTopic) && len(groups) == 0}
		if !p.fresh {
			_, p.err = kafka.CommittedOffsets(ctx, c.Client, group, map[string][]int32{f.topology.executors[group][0]: {0}})
		}
		f.probes = append(f.probes, p)
	}
	for _, id := range ids {
		p := probe{resource: kafka.ResourceTransactionalID, name: id, operation: "Write", fresh: f.fresh(transactionsTopic) && len(open) == 0}
		if !p.fresh {
			p.err = probeTransaction(ctx, c, id)
		}
		f.probes = append(f.probes, p)
	}
	return nil
}

// fresh reports whether a topic of Kafka does not exist yet. A topic that the user may not describe counts as
// existing.
func (f *Facts) fresh(topic string) bool {
	_, exists := f.topology.Topics[topic]
	return !exists && !f.denied[topic]
}

// probeGroup sends the heartbeat of a member that does not exist. The request needs the right Read on the
// group.
func probeGroup(ctx context.Context, c Conn, group string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group, req.Generation, req.MemberID = group, math.MaxInt32, "oncebus-doctor"
	resp, err := req.RequestWith(ctx, c.Client)
	if err != nil {
		return err
	}
	switch err := kerr.ErrorForCode(resp.ErrorCode); {
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.GroupIDNotFound), errors.Is(err, kerr.IllegalGeneration):
		return nil
	default:
		return err
	}
}

// probeTransaction tries to end the transaction of a producer that does not exist. The request needs the right
// Write on the transactional id. It cannot harm a transaction: the coordinator compares the producer id before
// anything else, and no producer ever gets this id.
func probeTransaction(ctx context.Context, c Conn, id string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = id, math.MaxInt64, 0, false
	resp, err := req.RequestWith(ctx, c.Client)
	if err != nil {
		return err
	}
	switch err := kerr.ErrorForCode(resp.ErrorCode); {
	case errors.Is(err, kerr.InvalidProducerIDMapping), errors.Is(err, kerr.UnknownProducerID), errors.Is(err, kerr.InvalidProducerEpoch), errors.Is(err, kerr.InvalidTxnState),
		errors.Is(err, kerr.ConcurrentTransactions): // the running service has a transaction that is just ending
		return nil
	default:
		return err
	}
}

// isDenied reports whether a probe failed because the user lacks a right.
func (p *probe) isDenied() bool {
	return errors.Is(p.err, kerr.GroupAuthorizationFailed) || errors.Is(p.err, kerr.TransactionalIDAuthorizationFailed)
}

// judgeCoordinators finds coordinators that do not respond to a probe, and broker settings that keep them from
// working.
func (f *Facts) judgeCoordinators() []Finding {
	findings := append(f.judgeCreation(), f.judgeSession()...)
	responds, fresh := 0, 0
	for _, p := range f.probes {
		switch {
		case p.fresh:
			fresh++
		case p.err == nil || p.isDenied():
			responds++
		default:
			findings = append(findings, Finding{
				Level: Fails, Text: fmt.Sprintf("the coordinator of %s %s does not work: %v", p.resource, p.name, p.err),
				Action: "see the logs of the brokers; topics " + offsetsTopic + " and " + transactionsTopic + " need a leader for every partition",
			})
		}
	}
	if responds > 0 {
		findings = append(findings, Finding{Text: fmt.Sprintf("the coordinators of %d groups and transactional ids respond", responds)})
	}
	if fresh > 0 && len(f.judgeCreation()) == 0 {
		findings = append(findings, Finding{Text: fmt.Sprintf("%d groups and transactional ids have no coordinator yet: Kafka creates its topics for them when it is first asked", fresh)})
	}
	return findings
}
