package processor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// runtime is what the workers share once topics and manifest are settled. It
// does not change, but for the limits of topics, which are swapped whole.
type runtime struct {
	topology *topology
	manifest *manifest
	hasher   hasher
	routes   []*routeInfo // by route index
	byName   map[string]*routeInfo
	// topicNames are by number; topicNumbers has the inputs of the routes
	// and the repartition topic.
	topicNames   []string
	namespaces   []string           // by class
	routesOf     map[uint8][]string // names, by class
	topicNumbers map[string]uint16
	// outcomes are the routes in claim mode by the topic of their outcomes.
	outcomes map[string][]*routeInfo
	// failOpen are, by the topic of a task, the classes of routes that do not
	// wait for local state.
	failOpen map[string][]uint8
	// waiting are the other topics of tasks: without local state nothing of
	// them is fetched.
	waiting []string
	limits  atomic.Pointer[map[string]topicLimits]
	clock   brokerClock
}

// routeInfo is a route with its numbers.
type routeInfo struct {
	*rules.Route
	class     uint8
	span      dedup.Window
	nearStep  int64 // see dedup.Route.NearStep
	rule      dedup.ClaimRule
	nameBytes []byte
}

// standing returns the row that was looked up if it still speaks for its key,
// so that an event's own would take its place; nil if the key is new.
func (r *routeInfo) standing(prior *dedup.Row, held bool, streamTime int64) *dedup.Row {
	if held && r.span.Stands(prior, streamTime) {
		return prior
	}
	return nil
}

func newRuntime(t *topology, m *manifest, routes *rules.Routes) *runtime {
	rt := &runtime{topology: t, manifest: m, topicNumbers: map[string]uint16{}, byName: map[string]*routeInfo{}, outcomes: map[string][]*routeInfo{}, failOpen: map[string][]uint8{}, routesOf: map[uint8][]string{}}
	if t.repartition != "" {
		rt.hasher = m.hasher(t.topics[t.repartition].partitions)
	}
	for _, r := range routes.Routes {
		info := &routeInfo{Route: r, class: m.class(r.Namespace), span: r.Span(), nearStep: r.AdjacentStep(), rule: r.ClaimRule(), nameBytes: []byte(r.Name)}
		if r.Mode == rules.ClaimMode {
			rt.outcomes[r.Claim.Outcomes] = append(rt.outcomes[r.Claim.Outcomes], info)
		}
		if topic := t.taskTopicOf(r); r.FailOpen && !slices.Contains(rt.failOpen[topic], info.class) {
			rt.failOpen[topic] = append(rt.failOpen[topic], info.class)
		}
		rt.routes = append(rt.routes, info)
		rt.byName[r.Name] = info
		rt.routesOf[info.class] = append(rt.routesOf[info.class], r.Name)
	}
	for _, topic := range t.taskTopics() {
		if len(rt.failOpen[topic]) == 0 {
			rt.waiting = append(rt.waiting, topic)
		}
	}
	for _, n := range m.Namespaces {
		rt.namespaces = append(rt.namespaces, n.Name)
	}
	for _, topic := range m.Topics {
		rt.topicNames = append(rt.topicNames, topic.Name)
	}
	for _, name := range slices.Concat(t.routed, t.prepartitioned) {
		rt.topicNumbers[name] = m.topicNumber(name)
	}
	if t.repartition != "" {
		rt.topicNumbers[t.repartition] = m.topicNumber(t.repartition)
	}
	rt.limits.Store(&t.limits)
	return rt
}

// rereadLimits reads the limits of topics again, and reports whether somebody
// changed them. The app then has those of these topics alone.
func (rt *runtime) rereadLimits(ctx context.Context, admin *kadm.Client, topics []string) (changed bool, err error) {
	fresh := *rt.topology
	if err := fresh.readConfigs(ctx, admin, topics...); err != nil {
		return false, err
	}
	before := rt.limits.Swap(&fresh.limits)
	return !maps.Equal(*before, fresh.limits), nil
}

func (rt *runtime) limit(topic string) topicLimits { return (*rt.limits.Load())[topic] }

// batchBytes is the largest batch a topic takes. Topics that are none of ours
// get Kafka's default; the client asks for them, nobody produces to them.
func (rt *runtime) batchBytes(topic string) int32 {
	if limits, ok := (*rt.limits.Load())[topic]; ok {
		return max(limits.maxBytes, 1<<10)
	}
	return 1 << 20
}

// internalTopics is the set for the partitioner.
func (rt *runtime) internalTopics() map[string]bool {
	set := map[string]bool{}
	for _, name := range rt.topology.internal() {
		set[name] = true
	}
	return set
}

// positionOf returns where an input record stands.
func (rt *runtime) positionOf(rec *kgo.Record) dedup.Position {
	return dedup.Position{Topic: rt.topicNumbers[rec.Topic], Partition: rec.Partition, Offset: rec.Offset}
}

// positionText writes a position as topic/partition/offset.
func (rt *runtime) positionText(at dedup.Position) []byte {
	name := fmt.Sprintf("topic#%d", at.Topic)
	if int(at.Topic) < len(rt.topicNames) {
		name = rt.topicNames[at.Topic]
	}
	b := make([]byte, 0, len(name)+24)
	b = append(append(b, name...), '/')
	b = append(strconv.AppendInt(b, int64(at.Partition), 10), '/')
	return strconv.AppendInt(b, at.Offset, 10)
}

// brokerClock tells the broker's time as it was observed, carried on by this
// machine's monotonic clock. It stands in where a record bears no stamp of a
// broker: in a prepartitioned topic with CreateTime.
type brokerClock struct {
	observed int64 // ms, the broker's stamp
	at       time.Time
}

func (c *brokerClock) now() int64 {
	return c.observed + time.Since(c.at).Milliseconds()
}
