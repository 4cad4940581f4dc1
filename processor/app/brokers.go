package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup/routesets"
)

// brokerFacts is what a diagnosis knows about a broker of the cluster's metadata.
type brokerFacts struct {
	id      int32
	addr    string
	err     error // set if the broker did not respond
	version string
	// keys has the highest version of each request that the broker supports, by request key.
	keys map[int16]int16
	// features has the finalized features of the cluster, as this broker knows them.
	features map[string]int16
}

// readBrokers reads the metadata of the cluster and of every topic that the app relies on. Of internal topics
// these are the topics of the app's current generation: the partitions to which its keys were moved last.
func (f *Facts) readBrokers(ctx context.Context, c Conn) error {
	resp, err := f.describe(ctx, c)
	if err != nil {
		return err
	}
	for _, b := range resp.Brokers {
		f.brokers = append(f.brokers, brokerFacts{id: b.NodeID, addr: b.Host + ":" + strconv.Itoa(int(b.Port))})
	}
	slices.SortFunc(f.brokers, func(a, b brokerFacts) int { return int(a.id) - int(b.id) })
	if _, ok := f.topology.Topics[f.topology.Manifest]; !ok {
		return nil
	}
	m, err := readManifest(ctx, c.Client, f.topology)
	if err != nil {
		return nil //nolint:nilerr // the check of the manifest reads it again, and reports the error
	}
	if f.manifest = m; !m.hasSets() && m.generation().number == 1 {
		return nil
	}
	f.topology = topologyOf(f.Config.AppID, f.Routes, f.followSets(), m.generation())
	_, err = f.describe(ctx, c)
	return err
}

// followSets replaces the facts' routes by the routes that a start would use, and returns the route sets that
// would be in force then. For an app with route sets, the routes file is only a proposal, see setup.join.
func (f *Facts) followSets() *Sets {
	sets := f.manifest.sets
	if !f.manifest.hasSets() {
		return sets
	}
	f.plan = f.manifest.plan(f.Routes, nil)
	if len(f.plan.Changes) > 0 && f.plan.Behind == 0 && f.plan.Worst() == routesets.Harmless {
		return sets.with(newRouteSet(f.plan.InForce+1, f.Routes, ""))
	}
	f.Routes = sets.current().routes
	return sets
}

// describe describes the cluster and the topics of the topology by one request, without the client's cache. It
// does not use kadm, which returns an error for all topics if the user may not describe one of them.
func (f *Facts) describe(ctx context.Context, c Conn) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, name := range append(f.topology.all(), offsetsTopic, transactionsTopic) {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, topic)
	}
	resp, err := req.RequestWith(ctx, c.Client)
	if err != nil {
		return nil, fmt.Errorf("read the metadata of the cluster: %w", err)
	}
	f.throttled = time.Duration(resp.ThrottleMillis) * time.Millisecond
	t := f.topology
	t.brokers = len(resp.Brokers)
	t.countBrokers(ctx, c.Client)
	if resp.ClusterID != nil {
		t.Cluster = *resp.ClusterID
	}
	for i := range resp.Topics {
		topic := &resp.Topics[i]
		switch {
		case topic.Topic == nil:
		case topic.ErrorCode == kerr.TopicAuthorizationFailed.Code:
			f.denied[*topic.Topic] = true
		case topic.ErrorCode == 0:
			f.allowed[*topic.Topic] = kadm.DecodeACLOperations(topic.AuthorizedOperations)
			t.Topics[*topic.Topic] = newTopicOf(detailOf(topic))
		}
	}
	return resp, nil
}

// detailOf converts a topic of a metadata response to the form in which the admin client returns it.
func detailOf(topic *kmsg.MetadataResponseTopic) kadm.TopicDetail {
	detail := kadm.TopicDetail{Topic: *topic.Topic, ID: topic.TopicID, Partitions: kadm.PartitionDetails{}}
	for _, p := range topic.Partitions {
		detail.Partitions[p.Partition] = kadm.PartitionDetail{Partition: p.Partition, Leader: p.Leader, Replicas: p.Replicas, ISR: p.ISR}
	}
	return detail
}

func (f *Facts) judgeBrokers() []Finding {
	text := fmt.Sprintf("cluster %s responds, %d of %d brokers are up", f.topology.Cluster, len(f.brokers), f.topology.brokers)
	if down := f.topology.brokers - len(f.brokers); down > 0 {
		return []Finding{{Level: AtRisk, Text: text, Action: "start the brokers that are down"}}
	}
	return []Finding{{Text: text}}
}

// readVersions asks every broker for the requests that it supports. The request also shows whether this machine
// can connect to the broker.
func (f *Facts) readVersions(ctx context.Context, c Conn) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	versions, err := c.Admin.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("read the versions of the brokers: %w", err)
	}
	for i := range f.brokers {
		b := &f.brokers[i]
		v, ok := versions[b.id]
		if !ok {
			b.err = kerr.BrokerNotAvailable
			continue
		}
		if b.err = v.Err; b.err != nil {
			continue
		}
		b.keys, b.features = map[int16]int16{}, map[string]int16{}
		v.EachKeySorted(func(key, _, most int16) { b.keys[key] = most })
		b.version = cmp.Or(release(b.keys), "older than "+releases[0].name)
		for _, feature := range v.Raw().FinalizedFeatures {
			b.features[feature.Name] = feature.MaxVersionLevel
		}
	}
	return nil
}

// requests are the request versions without which oncebus cannot work, and why.
var requests = []struct {
	key, version int16
	why          string
}{
	{int16(kmsg.Metadata), 10, "topic ids (Kafka 2.8), by which a recreated topic is found"},
	{int16(kmsg.TxnOffsetCommit), 3, "offset commits that the group fences (Kafka 2.5)"},
	{int16(kmsg.OffsetFetch), 7, "stable offsets (Kafka 2.5)"},
	{int16(kmsg.JoinGroup), 5, "static members (Kafka 2.3)"},
}

// releases are the releases of Kafka that oncebus tells apart, each by a request version that the release
// added. The first one is the oldest release with which oncebus is tested.
var releases = []struct {
	name         string
	key, version int16
}{
	{"3.6", int16(kmsg.AddPartitionsToTxn), 4},
	{"3.7", int16(kmsg.Produce), 10},
	{"3.8", int16(kmsg.Produce), 11},
	{"3.9", int16(kmsg.Fetch), 17},
	{"4.0", int16(kmsg.Produce), 12},
	{"4.1", int16(kmsg.Produce), 13},
	{"4.2", int16(kmsg.ListOffsets), 11},
	{"4.3", int16(kmsg.DescribeLogDirs), 5},
	{"4.4", int16(kmsg.TxnOffsetCommit), 6},
}

// release returns the release of a broker by the requests that it supports; "" for a broker older than the
// first of releases.
func release(keys map[int16]int16) (name string) {
	for n, r := range releases {
		if most, ok := keys[r.key]; !ok || most < r.version {
			return name
		}
		if name = r.name; n == len(releases)-1 {
			name += " or later"
		}
	}
	return name
}

// judgeVersions finds brokers that do not respond, that lack a request which oncebus needs, or that are too old
// or of different releases.
func (f *Facts) judgeVersions() []Finding {
	var findings []Finding
	var versions []string
	for _, b := range f.brokers {
		if b.err != nil {
			findings = append(findings, Finding{
				Level: Fails, Text: fmt.Sprintf("broker %d at %s does not respond: %v", b.id, b.addr, b.err),
				Action: "open this address for this machine, or correct advertised.listeners of the broker",
			})
			continue
		}
		if !slices.Contains(versions, b.version) {
			versions = append(versions, b.version)
		}
		for _, need := range requests {
			if most, ok := b.keys[need.key]; !ok || most < need.version {
				findings = append(findings, Finding{Level: Fails, Text: fmt.Sprintf("broker %d (Kafka %s) lacks %s", b.id, b.version, need.why), Action: "upgrade Kafka"})
			}
		}
		if release(b.keys) == "" {
			findings = append(findings, Finding{Level: AtRisk, Text: fmt.Sprintf("broker %d has Kafka older than %s, the oldest that oncebus is tested with", b.id, releases[0].name), Action: "upgrade Kafka"})
		}
	}
	if len(versions) > 1 {
		findings = append(findings, Finding{Level: AtRisk, Text: "the brokers have different versions: Kafka " + strings.Join(versions, ", "), Action: "finish the upgrade of the cluster"})
	}
	if len(findings) == 0 {
		findings = append(findings, Finding{Text: fmt.Sprintf("Kafka %s, every broker responds to this machine", strings.Join(versions, ", "))})
	}
	return findings
}

// judgeFeatures judges the version of the transaction protocol, which is a finalized feature of the cluster.
func (f *Facts) judgeFeatures() []Finding {
	for _, b := range f.brokers {
		if b.err != nil {
			continue
		}
		version := b.features[transactionFeature]
		if version < EpochPerTransaction {
			return []Finding{{
				Level: Note, Text: fmt.Sprintf("%s is %d: a worker that gets no response to a commit replaces its client, which restores its tasks", transactionFeature, version),
				Action: fmt.Sprintf("from Kafka 4.0 on, kafka-features.sh upgrade --feature %s=%d ends that", transactionFeature, EpochPerTransaction),
			}}
		}
		return []Finding{{Text: fmt.Sprintf("%s is %d", transactionFeature, version)}}
	}
	return []Finding{{Level: Unchecked, Text: "no broker lists its features", Action: "see versions"}}
}
