package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// App has the data that all workers share: topics, manifest, numbers and limits. It
// is immutable, except for the limits of topics, which are replaced as a whole.
type App struct {
	Topology *Topology
	Manifest *Manifest
	// Level is that of the encodings which the app writes, see wire.LevelNewest. Set is the
	// number of the route set in force; 0 at level 1.
	Level int
	Set   int64
	// FileBehind is the number of the older set that the routes file of this process is; 0 if
	// the file is the set in force, and at level 1.
	FileBehind int64
	// InForce are the routes of the set in force, or of the routes file at level 1. Events get
	// their keys by them. Routes has those of older sets too, whose records may still come.
	InForce *rules.Routes
	Hasher  hasher
	// TokenApp identifies the app in its claim tokens; TokensNameApp reports whether the
	// tokens that it makes have it.
	TokenApp      uint64
	TokensNameApp bool
	// WritesProgress reports that the routing stage writes progress records: the leases
	// of claims end by them. An app of an earlier build has them together with tokens
	// that name the app.
	WritesProgress bool
	Routes         []*Route          // by route index; those in force first
	ByName         map[string]*Route // also by the names in envelopes, those of older sets included
	// topicNames are by topic number. TopicNumbers has the inputs of the
	// routes and the repartition topic.
	topicNames []string
	Namespaces []string           // by namespace id
	RoutesOf   map[uint8][]string // names, by namespace id
	// Packed has the namespace ids whose rows are packed in the changelog: those of plain
	// deduplication without adjacent buckets. The manifest pins both for a namespace.
	Packed [256]bool
	// Earlier inputs are among them: rows and claim tokens name them.
	TopicNumbers map[string]uint16
	// Outcomes are the routes in claim mode by the topic of their outcomes.
	Outcomes map[string][]*Route
	// Sources has, by namespace id, the numbers of the topics from which routes in force get its
	// routed events, ascending. Its stream time follows the partitions of these topics. At level 1
	// there are none: stream time is then the highest event time that a task has met.
	Sources map[uint8][]uint16
	// GoesOn has the namespace ids whose stream time goes on without events, at the pace of broker
	// time: those of which every route in force says so, or takes the record's timestamp. Of a
	// namespace without one the routes of older sets say it.
	GoesOn [256]bool
	// RetiredUntil has, by the ids of namespaces without a route in force, the broker time in Unix ms
	// from which on their rows decide nothing: one retention after the set without the route.
	RetiredUntil map[uint8]int64
	// former has a route for each namespace whose key rule a promotion replaced, see Kept.
	former []*Route
	// FailOpen has, by the topic of a task, the namespace ids of its routes
	// with on_state_failure: fail_open.
	FailOpen map[string][]uint8
	// Waiting are the task topics without such routes. A worker fetches
	// nothing from them while their local state is unusable.
	Waiting []string
	Limits  atomic.Pointer[map[string]TopicLimits]
	Clock   *BrokerClock
	// ConnectHeaders reports that dead letters also have the headers of Kafka Connect.
	ConnectHeaders bool
	// DuplicateLog says how duplicates are logged.
	DuplicateLog DuplicateLog
}

// Route is a route with its numbers.
type Route struct {
	*rules.Route
	NamespaceID    uint8
	Span           dedup.Window
	AdjacentStepMS int64 // see rules.Route.AdjacentStep
	Rule           dedup.ClaimRule
	NameBytes      []byte
	WireName       []byte // in envelopes, see rules.Route.WireName
	bits           int64  // see routeBits
	// Shared reports that other routes in claim mode have the namespace too.
	Shared bool
	// Retired reports that the route is one of an older set.
	Retired bool
	// Shadow is the route of its shadow in force, which is a route of the app too; nil for none.
	Shadow *Route
}

func newApp(t *Topology, m *Manifest, routes *rules.Routes) *App {
	rt := &App{Level: m.level(), InForce: routes, Topology: t, Manifest: m, TokenApp: m.tokenApp(t.App), TokensNameApp: m.Version >= manifestVersionAppTokens, WritesProgress: m.Version >= manifestVersionAppTokens, Clock: NewBrokerClock(), TopicNumbers: map[string]uint16{}, ByName: map[string]*Route{}, Outcomes: map[string][]*Route{}, Sources: map[uint8][]uint16{}, FailOpen: map[string][]uint8{}, RoutesOf: map[uint8][]string{}, RetiredUntil: map[uint8]int64{}}
	if t.Repartition != "" {
		rt.Hasher = m.hasher(t.Topics[t.Repartition].Partitions)
	}
	for _, r := range routes.Routes {
		rt.addRoute(r)
		info := rt.ByName[r.Name]
		if r.Mode == rules.ClaimMode {
			rt.Outcomes[r.Claim.Outcomes] = append(rt.Outcomes[r.Claim.Outcomes], info)
		}
		if topic := t.TaskTopicOf(r); r.FailOpen && !slices.Contains(rt.FailOpen[topic], info.NamespaceID) {
			rt.FailOpen[topic] = append(rt.FailOpen[topic], info.NamespaceID)
		}
	}
	for _, r := range routes.Routes {
		rt.addShadow(r)
	}
	rt.addRetired()
	rt.addKept()
	for _, route := range rt.Routes {
		route.Shared = route.Mode == rules.ClaimMode && len(rt.RoutesOf[route.NamespaceID]) > 1
	}
	for _, topic := range t.TaskTopics() {
		if len(rt.FailOpen[topic]) == 0 {
			rt.Waiting = append(rt.Waiting, topic)
		}
	}
	for _, n := range m.Namespaces {
		rt.Namespaces = append(rt.Namespaces, n.Name)
	}
	for number, topic := range m.Topics {
		rt.topicNames = append(rt.topicNames, topic.Name)
		rt.TopicNumbers[topic.Name] = uint16(number)
	}
	for _, name := range slices.Concat(t.Routed, t.Prepartitioned) {
		rt.TopicNumbers[name] = m.TopicNumber(name)
	}
	if t.Repartition != "" {
		rt.TopicNumbers[t.Repartition] = m.TopicNumber(t.Repartition)
	}
	for _, r := range rt.Routes[:len(routes.Routes)] {
		rt.addSources(r)
	}
	for _, r := range rt.Routes {
		rt.GoesOn[r.NamespaceID] = rt.goesOn(r.NamespaceID)
	}
	rt.Limits.Store(&t.limits)
	return rt
}

// goesOn returns GoesOn of a namespace.
func (rt *App) goesOn(namespaceID uint8) bool {
	_, retired := rt.RetiredUntil[namespaceID]
	return !slices.ContainsFunc(rt.Routes, func(r *Route) bool {
		return r.NamespaceID == namespaceID && r.Time != nil && !r.Time.GoesOn && (retired || !r.Retired)
	})
}

// addSources adds the topics of a route in force to those of its namespace.
func (rt *App) addSources(r *Route) {
	if r.Prepartitioned || rt.Level == wire.LevelOldest {
		return // a task of it is its own source
	}
	for _, topic := range r.Topics {
		numbers, number := rt.Sources[r.NamespaceID], rt.TopicNumbers[topic]
		if at, known := slices.BinarySearch(numbers, number); !known {
			rt.Sources[r.NamespaceID] = slices.Insert(numbers, at, number)
		}
	}
}

// addRoute adds a route with its numbers. The manifest must have its namespace.
func (rt *App) addRoute(r *rules.Route) {
	info := rt.numbered(r)
	rt.Routes = append(rt.Routes, info)
	rt.ByName[r.Name], rt.ByName[r.WireName()] = info, info
}

// numbered returns a route with its numbers, which is one of its namespace from now on.
func (rt *App) numbered(r *rules.Route) *Route {
	info := &Route{Route: r, NamespaceID: rt.Manifest.NamespaceID(r.Namespace), Span: r.Span(), AdjacentStepMS: r.AdjacentStep(), Rule: r.ClaimRule(), NameBytes: []byte(r.Name), WireName: []byte(r.WireName()), bits: routeBits(r.Name)}
	rt.RoutesOf[info.NamespaceID] = append(rt.RoutesOf[info.NamespaceID], r.Name)
	rt.Packed[info.NamespaceID] = r.Mode != rules.ClaimMode && info.AdjacentStepMS == 0
	return info
}

// addRetired adds the routes of older sets. One whose namespace is still in force, or which
// shares it with a route of a newer set, has the window of that set.
func (rt *App) addRetired() {
	sets := rt.Manifest.sets
	if sets.current() == nil {
		return
	}
	rt.Set = sets.inForce
	for _, r := range sets.retired() {
		former := *r
		former.Index = len(rt.Routes)
		rt.addRoute(&former)
		info := rt.ByName[r.Name]
		info.Retired = true
		info.Span, _ = sets.spanOf(rt.Set, r.Namespace)
	}
	rt.addWireNames(sets)
	for _, f := range sets.formerOutcomes() {
		if route := rt.ByName[f.Route]; route != nil && route.Mode == rules.ClaimMode && !slices.Contains(rt.Outcomes[f.Topic], route) {
			rt.Outcomes[f.Topic] = append(rt.Outcomes[f.Topic], route)
		}
	}
}

// SpanAt returns the window of a namespace id as of a route set, by which a task judged whose
// checkpoint names it. It returns false for a namespace that no set up to it has.
func (rt *App) SpanAt(set int64, namespaceID uint8) (dedup.Window, bool) {
	if int(namespaceID) >= len(rt.Namespaces) {
		return dedup.Window{}, false
	}
	return rt.Manifest.sets.spanOf(set, rt.Namespaces[namespaceID])
}

// ClaimRoute returns the route with the name if it still shares the namespace of one of
// its routes, and that route otherwise. A claim has no name if only one route existed.
func (rt *App) ClaimRoute(name []byte, of *Route) *Route {
	if route := rt.ByName[string(name)]; route != nil && route.Mode == rules.ClaimMode && route.NamespaceID == of.NamespaceID {
		return route
	}
	return of
}

// RereadLimits reads the limits of topics again, and reports whether they changed.
// Afterwards the app has the limits of these topics only.
func (rt *App) RereadLimits(ctx context.Context, admin *kadm.Client, topics []string) (changed bool, err error) {
	fresh := *rt.Topology
	if err := fresh.readConfigs(ctx, admin, topics...); err != nil {
		return false, err
	}
	before := rt.Limits.Swap(&fresh.limits)
	return !maps.Equal(*before, fresh.limits), nil
}

// Limit returns the limits of a topic; the zero value for an unknown topic.
func (rt *App) Limit(topic string) TopicLimits { return (*rt.Limits.Load())[topic] }

// BatchBytes returns the most bytes of a batch that a topic accepts. For an unknown
// topic it returns Kafka's default, because franz-go also calls it for topics that
// the client does not produce to.
func (rt *App) BatchBytes(topic string) int32 {
	if limits, ok := (*rt.Limits.Load())[topic]; ok {
		return max(limits.MaxBytes, 1<<10)
	}
	return 1 << 20
}

// InternalTopics returns the names of all internal topics, for NewPartitioner.
func (rt *App) InternalTopics() map[string]bool {
	set := map[string]bool{}
	for _, name := range rt.Topology.internal() {
		set[name] = true
	}
	return set
}

// PositionOf returns the position of an input record.
func (rt *App) PositionOf(rec *kgo.Record) dedup.Position {
	return dedup.Position{Topic: rt.TopicNumbers[rec.Topic], Partition: rec.Partition, Offset: rec.Offset}
}

// seedTopicName is what stands for the topic in the position of a row that a seed made. No
// topic has the name, as it has a space.
const seedTopicName = "seeded key"

// TopicName returns the name of a topic number.
func (rt *App) TopicName(number uint16) string {
	if number == dedup.SeedTopic {
		return seedTopicName
	}
	if int(number) < len(rt.topicNames) {
		return rt.topicNames[number]
	}
	return fmt.Sprintf("topic#%d", number)
}

// PositionText returns a position as topic/partition/offset.
func (rt *App) PositionText(at dedup.Position) []byte {
	name := rt.TopicName(at.Topic)
	b := make([]byte, 0, len(name)+24)
	b = append(append(b, name...), '/')
	b = append(strconv.AppendInt(b, int64(at.Partition), 10), '/')
	return strconv.AppendInt(b, at.Offset, 10)
}

// ReplyAddress returns the address of the request that gets the verdict on a record. It
// is zero if the route has no http part, or the record no valid address.
func (r *Route) ReplyAddress(rec *kgo.Record) dedup.Address {
	if r.HTTP == nil {
		return dedup.Address{}
	}
	return addressOf(rec)
}

// QuestionAddress returns the address of the request that gets the answer to a start or
// renewal; zero if the app has no http part, or the record no valid address. Any route of the
// namespace may have the http part.
func (rt *App) QuestionAddress(rec *kgo.Record) dedup.Address {
	if rt.Topology.Verdicts == "" {
		return dedup.Address{}
	}
	return addressOf(rec)
}

func addressOf(rec *kgo.Record) dedup.Address {
	text, _ := (*wire.Headers)(&rec.Headers).Header(wire.HeaderReplyTo)
	address, ok := dedup.ParseAddress(text)
	if !ok {
		return dedup.Address{}
	}
	return address
}

// ChangelogOf returns the name of the changelog of a topic's tasks.
func (rt *App) ChangelogOf(topic string) string { return ChangelogName(rt.Topology.App, topic) }
