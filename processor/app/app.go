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

// App has the data that all workers of a process share: topics, manifest, numbers of topics and namespaces,
// routes and limits. It is immutable, except for the limits of topics: RereadLimits replaces all of them at
// once.
type App struct {
	Topology *Topology
	Manifest *Manifest
	// Level is the level of the encodings that the app writes, see wire.LevelNewest. Set is the number of the
	// route set in force; 0 at level 1, where there are no route sets.
	Level int
	Set   int64
	// FileBehind is set if the routes file of this process equals an older route set: it is the number of that
	// set. It is 0 if the file equals the set in force, and at level 1.
	FileBehind int64
	// InForce are the routes of the set in force, or of the routes file at level 1. Keys of new events are
	// derived by these routes. Routes also has the routes of older sets, because records of these may still
	// come.
	InForce *rules.Routes
	Hasher  hasher
	// TokenApp identifies the app in its claim tokens. TokensNameApp reports whether the tokens that the app
	// makes contain TokenApp.
	TokenApp      uint64
	TokensNameApp bool
	// WritesProgress reports whether the routing stage writes progress records, by which the leases of claims
	// end. An app that an earlier build created writes progress records only once its tokens name the app, see
	// nameApp.
	WritesProgress bool
	Routes         []*Route // by route index; the routes in force come first
	// ByName has each route by its name and by its name in envelopes, routes of older sets included.
	ByName map[string]*Route
	// topicNames has the names of topics by topic number. TopicNumbers has the numbers of the routes' inputs and
	// of the repartition topic.
	topicNames []string
	Namespaces []string           // by namespace id
	RoutesOf   map[uint8][]string // names of the routes, by namespace id
	// Packed has the namespace ids whose rows are packed in the changelog: the namespaces of plain deduplication
	// (no claims) without adjacent buckets. The manifest pins both properties of a namespace.
	Packed [256]bool
	// TopicNumbers also has former inputs, because stored rows and claim tokens refer to them by number.
	TopicNumbers map[string]uint16
	// Outcomes has the routes in claim mode by the topic of their outcomes.
	Outcomes map[string][]*Route
	// Sources has, by namespace id, the numbers of the topics from which routes in force get the namespace's
	// routed events, in ascending order. The namespace's stream time follows the partitions of these topics. At
	// level 1 Sources is empty: stream time is then the highest event time that a task has seen.
	Sources map[uint8][]uint16
	// GoesOn has the namespace ids whose stream time advances without events, at the pace of broker time. These
	// are the namespaces of which every route in force either says so in its time part or takes the record's
	// timestamp as event time. For a namespace without a route in force, the routes of older sets decide.
	GoesOn [256]bool
	// RetiredUntil has a time for each namespace id without a route in force: the broker time in Unix ms from
	// which on the namespace's rows decide nothing. That is one retention after the first set without the route.
	RetiredUntil map[uint8]int64
	// former has a route for each namespace whose key rule a promotion replaced, see Kept.
	former []*Route
	// FailOpen has, for each topic of tasks, the namespace ids of its routes with on_state_failure: fail_open.
	FailOpen map[string][]uint8
	// Waiting has the topics of tasks without any route that fails open (see FailOpen). A worker fetches
	// nothing from these topics while its local state is unusable.
	Waiting []string
	Limits  atomic.Pointer[map[string]TopicLimits]
	Clock   *BrokerClock
	// ConnectHeaders reports whether dead letters also get the headers that Kafka Connect gives to dead letters.
	ConnectHeaders bool
	// DuplicateLog says how duplicates are logged.
	DuplicateLog DuplicateLog
}

// Route is a route with the numbers and encoded names that workers need for each record.
type Route struct {
	*rules.Route
	NamespaceID    uint8
	Span           dedup.Window
	AdjacentStepMS int64 // see rules.Route.AdjacentStep
	Rule           dedup.ClaimRule
	NameBytes      []byte
	WireName       []byte // its name in envelopes, see rules.Route.WireName
	bits           int64  // see routeBits
	// Shared reports whether other routes in claim mode use the same namespace.
	Shared bool
	// Retired reports whether the route belongs to an older set and not to the set in force.
	Retired bool
	// Shadow is the route of the shadow that this route has in force; nil without a shadow. The route of a
	// shadow is a route of the app, too.
	Shadow *Route
}

// newApp returns the App of a manifest and routes. It numbers the routes, and adds shadows, routes of older
// sets and former key rules.
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

// goesOn returns the value of GoesOn for a namespace.
func (rt *App) goesOn(namespaceID uint8) bool {
	_, retired := rt.RetiredUntil[namespaceID]
	return !slices.ContainsFunc(rt.Routes, func(r *Route) bool {
		return r.NamespaceID == namespaceID && r.Time != nil && !r.Time.GoesOn && (retired || !r.Retired)
	})
}

// addSources adds the topics of a route in force to the sources of its namespace.
func (rt *App) addSources(r *Route) {
	if r.Prepartitioned || rt.Level == wire.LevelOldest {
		// A task of such a route is its own source, so no other topic determines its stream time.
		return
	}
	for _, topic := range r.Topics {
		numbers, number := rt.Sources[r.NamespaceID], rt.TopicNumbers[topic]
		if at, known := slices.BinarySearch(numbers, number); !known {
			rt.Sources[r.NamespaceID] = slices.Insert(numbers, at, number)
		}
	}
}

// addRoute adds a route with its numbers. The manifest must already have the route's namespace.
func (rt *App) addRoute(r *rules.Route) {
	info := rt.numbered(r)
	rt.Routes = append(rt.Routes, info)
	rt.ByName[r.Name], rt.ByName[r.WireName()] = info, info
}

// numbered returns a route with its numbers, and adds its name to the routes of its namespace.
func (rt *App) numbered(r *rules.Route) *Route {
	info := &Route{Route: r, NamespaceID: rt.Manifest.NamespaceID(r.Namespace), Span: r.Span(), AdjacentStepMS: r.AdjacentStep(), Rule: r.ClaimRule(), NameBytes: []byte(r.Name), WireName: []byte(r.WireName()), bits: routeBits(r.Name)}
	rt.RoutesOf[info.NamespaceID] = append(rt.RoutesOf[info.NamespaceID], r.Name)
	rt.Packed[info.NamespaceID] = r.Mode != rules.ClaimMode && info.AdjacentStepMS == 0
	return info
}

// addRetired adds the routes of older sets. If a newer set has a route of the same namespace, or if the
// namespace is still in force, the older route gets the window of the newest set that has the namespace.
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

// SpanAt returns the window that a namespace id had in a route set. A task whose checkpoint names that set
// judged by this window. SpanAt returns false if neither this set nor an older one has the namespace.
func (rt *App) SpanAt(set int64, namespaceID uint8) (dedup.Window, bool) {
	if int(namespaceID) >= len(rt.Namespaces) {
		return dedup.Window{}, false
	}
	return rt.Manifest.sets.spanOf(set, rt.Namespaces[namespaceID])
}

// ClaimRoute returns the route of a claim: the route with the name, if that route still has the same namespace
// as the route of; otherwise it returns of. A claim stores no name if its namespace had only one route when the
// claim was made.
func (rt *App) ClaimRoute(name []byte, of *Route) *Route {
	if route := rt.ByName[string(name)]; route != nil && route.Mode == rules.ClaimMode && route.NamespaceID == of.NamespaceID {
		return route
	}
	return of
}

// RereadLimits reads the limits of these topics again, and reports whether they changed: an operator may alter
// them while the app runs. Afterwards the app has the limits of these topics only.
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

// BatchBytes returns the size in bytes of the largest batch that a topic accepts. franz-go also calls it for
// topics to which the client does not produce. For such an unknown topic it returns Kafka's default (1 MiB).
func (rt *App) BatchBytes(topic string) int32 {
	if limits, ok := (*rt.Limits.Load())[topic]; ok {
		return max(limits.MaxBytes, 1<<10)
	}
	return 1 << 20
}

// InternalTopics returns the names of all internal topics, as NewPartitioner needs them.
func (rt *App) InternalTopics() map[string]bool {
	set := map[string]bool{}
	for _, name := range rt.Topology.internal() {
		set[name] = true
	}
	return set
}

// PositionOf returns the position (topic number, partition, offset) of an input record.
func (rt *App) PositionOf(rec *kgo.Record) dedup.Position {
	return dedup.Position{Topic: rt.TopicNumbers[rec.Topic], Partition: rec.Partition, Offset: rec.Offset}
}

// seedTopicName is shown in place of the topic in the position of a row that a seed made. It cannot be the name
// of a topic, because it contains a space.
const seedTopicName = "seeded key"

// TopicName returns the name of a topic by its number; for an unknown number, a text that shows the number.
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

// ReplyAddress returns the address of the HTTP request that waits for the verdict on a record. It is zero if
// the route has no http part, or if the record has no valid address.
func (r *Route) ReplyAddress(rec *kgo.Record) dedup.Address {
	if r.HTTP == nil {
		return dedup.Address{}
	}
	return addressOf(rec)
}

// QuestionAddress returns the address of the HTTP request that waits for the answer to a start or renewal of a
// claim. It is zero if the app has no http part, or if the record has no valid address. It does not matter which
// route has the http part, because any route of the namespace may have it.
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
