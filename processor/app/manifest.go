package app

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// ManifestKey is the record key of the manifest in the topic <app>-manifest.
const ManifestKey = "manifest"

// Versions of the manifest. With version 2 claim tokens name the app. A build that cannot read such tokens would
// dead-letter their outcomes, so it must refuse the app: it does, because it cannot read the manifest's version.
// Version 3 added a level and route sets.
const manifestVersion, manifestVersionAppTokens, manifestVersionLevels = 1, 2, 3

// Manifest pins everything on which stored state depends (invariant 9): the partitioning hash, partition counts,
// key rules, encodings, and the numbers that rows use for topics and namespaces. It is a record of a compacted
// topic of its own. It cannot be a record of a changelog, because the app deletes records of changelogs by
// stream time.
type Manifest struct {
	Version int `json:"version"`
	// Level is the level of the encodings that processes write, see wire.LevelNewest. A manifest of version 1 or
	// 2 has no level, which means level 1.
	Level      int    `json:"level,omitempty"`
	Cluster    string `json:"cluster"`
	Hash       string `json:"hash"`
	HashSecret []byte `json:"hash_secret"`
	// RowVersion and EnvelopeVersion are the versions of these encodings at the app's first start.
	RowVersion      int `json:"row_version"`
	EnvelopeVersion int `json:"envelope_version"`
	// Topics has every topic that the app has ever used. The number of a topic is its index.
	Topics []manifestTopic `json:"topics"`
	// Namespaces has every namespace that the app has ever used. The id of a namespace is its index.
	Namespaces []manifestNamespace `json:"namespaces"`
	// SecretCheck is a digest that identifies ONCEBUS_KEY_SECRET without revealing it; empty while no route uses
	// the secret.
	SecretCheck string `json:"secret_check,omitempty"`

	sets *Sets // route sets, which are rows of their own; nil or empty at level 1
}

// Roles of a topic in the manifest.
const (
	roleRouted         = "routed"         // a raw topic that the router reads
	rolePrepartitioned = "prepartitioned" // a raw topic whose partitions are tasks
	roleRepartition    = "repartition"    // the repartition topic, whose partitions are tasks
	roleForwarded      = "forwarded"      // a repartition topic of an earlier generation, whose tasks are closed
	roleFinished       = "finished"       // the same, after the topic was deleted
)

// manifestTopic is a topic that the app uses or once used.
type manifestTopic struct {
	Name string `json:"name"`
	Role string `json:"role"`
	// Partitions, ID and ChangelogID are pinned for topics whose partitions are tasks. For a routed topic, ID is
	// the topic id when the topic was added. A prepartitioned topic that became routed keeps all three until its
	// changelog is deleted.
	Partitions  int32  `json:"partitions,omitempty"`
	ID          string `json:"id,omitempty"`
	ChangelogID string `json:"changelog_id,omitempty"`
	// Starts has, by partition, the first offset to read of an input topic, as of when the topic was added: its
	// end with ONCEBUS_START=latest, otherwise its start. A partition that was added later is read from offset
	// 0. A topic that was recreated since, which shows by its topic id, is read from its start.
	Starts []int64 `json:"starts,omitempty"`
	// StateLost reports that the changelog was recreated after tasks had run. So a task without a checkpoint may
	// have run before.
	StateLost bool `json:"state_lost,omitempty"`
	// Generation counts how often the input of the tasks was recreated. A task whose checkpoint belongs to an
	// earlier input begins at the start of the new one.
	Generation int64 `json:"generation,omitempty"`
}

// manifestNamespace is a namespace that the app uses or once used.
type manifestNamespace struct {
	Name    string `json:"name"`
	KeyRule string `json:"key_rule"`
	// Mode is the route's mode. Rows that were written in another mode have another meaning.
	Mode string `json:"mode"`
}

// newManifest returns the first manifest of an app, with a random secret for the partitioning hash.
func newManifest(cluster string) (*Manifest, error) {
	m := &Manifest{
		Version: manifestVersionLevels, Level: wire.LevelNewest, Cluster: cluster, Hash: HashName, HashSecret: make([]byte, 16),
		RowVersion: dedup.ChangelogVersion, EnvelopeVersion: wire.EnvelopeVersion, sets: new(Sets),
	}
	if _, err := rand.Read(m.HashSecret); err != nil {
		return nil, fmt.Errorf("generate the secret of the partitioning hash: %w", err)
	}
	return m, nil
}

// level returns the level of the app; a manifest without a level is of the oldest.
func (m *Manifest) level() int { return max(m.Level, wire.LevelOldest) }

// hasSets reports whether the app has route sets.
func (m *Manifest) hasSets() bool { return m != nil && m.sets.current() != nil }

func (m *Manifest) hasher(partitions int32) hasher {
	return newHasher([16]byte(m.HashSecret), partitions)
}

// TopicNumber returns the number of a topic, which must be in the manifest.
func (m *Manifest) TopicNumber(name string) uint16 {
	return uint16(slices.IndexFunc(m.Topics, func(t manifestTopic) bool { return t.Name == name }))
}

// Start returns the first offset to read in a partition of an input topic for which the group has no committed
// offset. id is the topic's present id. pinned reports whether the manifest knows the topic with this id. If so,
// the partition once had this offset, and records from this offset on that are missing now are lost.
func (m *Manifest) Start(topic string, id [16]byte, partition int32) (offset int64, pinned bool) {
	for _, t := range m.Topics {
		if t.Name != topic || t.ID != TopicIDText(id) || t.Starts == nil {
			continue
		}
		if int(partition) < len(t.Starts) {
			offset = t.Starts[partition]
		}
		return offset, true
	}
	return 0, false
}

// StateLost reports whether the changelog of a topic was recreated after the topic's tasks had run.
func (m *Manifest) StateLost(topic string) bool {
	return slices.ContainsFunc(m.Topics, func(t manifestTopic) bool { return t.Name == topic && t.StateLost })
}

// Generation returns how often the input of a topic's tasks was recreated.
func (m *Manifest) Generation(topic string) int64 {
	for _, t := range m.Topics {
		if t.Name == topic {
			return t.Generation
		}
	}
	return 0
}

// NamespaceID returns the id of a namespace, which must be in the manifest.
func (m *Manifest) NamespaceID(namespace string) uint8 {
	return uint8(slices.IndexFunc(m.Namespaces, func(n manifestNamespace) bool { return n.Name == namespace }))
}

// unknown returns the names of the routes that have stored nothing under this manifest, because it lacks their
// namespace or the topic of their tasks.
func (m *Manifest) unknown(t *Topology, routes *rules.Routes) (names []string) {
	for _, r := range routes.Routes {
		namespace := slices.ContainsFunc(m.Namespaces, func(n manifestNamespace) bool { return n.Name == r.Namespace })
		tasks := slices.ContainsFunc(m.Topics, func(have manifestTopic) bool { return have.Name == t.TaskTopicOf(r) })
		if !namespace || !tasks {
			names = append(names, r.Name)
		}
	}
	return names
}

// reconcileTopics adds new topics to the manifest, and returns the contradictions between the manifest and the
// other topics. It returns an error if a partition of a new topic has no leader, because the first offset to
// read in that partition cannot be listed.
func (m *Manifest) reconcileTopics(t *Topology) (changed bool, contradictions []error, err error) {
	m.limitToTasks(t)
	for _, want := range t.manifestTopics() {
		at := slices.IndexFunc(m.Topics, func(have manifestTopic) bool { return have.Name == want.Name })
		switch {
		case at >= 0:
			contradictions = append(contradictions, m.Topics[at].compare(want, ChangelogName(t.App, want.Name))...)
		case t.unlisted[want.Name] != nil:
			return false, nil, t.unlisted[want.Name]
		default:
			m.Topics, changed = append(m.Topics, want), true
		}
	}
	return changed, contradictions, nil
}

// reconcile compares the manifest with the routes and with the topics of the broker. It adds new topics and
// namespaces, and reports whether it added any. The error has all contradictions.
func (m *Manifest) reconcile(t *Topology, routes *rules.Routes, secret []byte) (changed bool, err error) {
	var mistakes []error
	refuse := func(format string, args ...any) { mistakes = append(mistakes, kafka.OperatorErrorf(format, args...)) }
	if m.Version < manifestVersion || m.Version > manifestVersionLevels || m.Hash != HashName || len(m.HashSecret) != 16 ||
		m.RowVersion != dedup.ChangelogVersion || m.EnvelopeVersion != wire.EnvelopeVersion {
		refuse("the manifest in %s has version %d, hash %q, row encoding %d, envelope %d; this build has up to %d, %q, %d, %d: run the build that wrote it, or use another ONCEBUS_APP_ID",
			t.Manifest, m.Version, m.Hash, m.RowVersion, m.EnvelopeVersion, manifestVersionLevels, HashName, dedup.ChangelogVersion, wire.EnvelopeVersion)
		return false, errors.Join(mistakes...)
	}
	if err := m.refuseLater(t.App); err != nil {
		return false, err
	}
	if err := errors.Join(refuseShadows(m, routes), refuseQuotas(m, routes)); err != nil {
		mistakes = append(mistakes, err)
	}
	if m.Cluster != t.Cluster {
		refuse("the manifest in %s was written for cluster %s, this is cluster %s: state and offsets of another cluster are not valid here; use another ONCEBUS_APP_ID",
			t.Manifest, m.Cluster, t.Cluster)
	}
	changed, contradictions, err := m.reconcileTopics(t)
	if err != nil {
		return false, err
	}
	mistakes = append(mistakes, contradictions...)
	for _, route := range withShadows(routes) {
		at := slices.IndexFunc(m.Namespaces, func(n manifestNamespace) bool { return n.Name == route.Namespace })
		if at < 0 {
			m.Namespaces, changed = append(m.Namespaces, manifestNamespace{route.Namespace, route.KeyRule(), route.Mode.String()}), true
			continue
		}
		have := &m.Namespaces[at]
		if have.KeyRule != route.KeyRule() {
			refuse("route %s: its key rule changed from\n  %s\nto\n  %s\nKeys stored under the old rule would never be found: restore the old rule, or give the route a new namespace",
				route.Name, have.KeyRule, route.KeyRule())
		}
		if have.Mode != route.Mode.String() {
			refuse("route %s: its mode changed from %s to %s, but the rows of namespace %s have the old mode: restore the old mode, or give the route a new namespace",
				route.Name, have.Mode, route.Mode, route.Namespace)
		}
	}
	if len(m.Topics) > dedup.SeedTopic || len(m.Namespaces) > 256 {
		refuse("%d topics and %d namespaces were used over time; at most 65535 and 256 can be numbered: use another ONCEBUS_APP_ID", len(m.Topics), len(m.Namespaces))
	}
	if routes.NeedsSecret() {
		switch check := secretCheck(secret); m.SecretCheck {
		case check:
		case "":
			m.SecretCheck, changed = check, true
		default:
			refuse("ONCEBUS_KEY_SECRET is not the secret of the stored keys: set the old secret, with the white space at its ends, or use another ONCEBUS_APP_ID")
		}
	}
	return changed, errors.Join(mistakes...)
}

// extendKeys changes the pinned key rules for routes that an operator puts in force, if a rule is the pinned
// rule with more sources after the pinned ones. Any other comparison of routes with the manifest refuses such a
// rule: a single process that started with the rule would store keys that the other processes do not derive.
func (m *Manifest) extendKeys(routes *rules.Routes) {
	for _, route := range routes.Routes {
		for i := range m.Namespaces {
			if n := &m.Namespaces[i]; n.Name == route.Namespace && route.Extends(n.KeyRule) {
				n.KeyRule = route.KeyRule()
			}
		}
	}
}

// compare returns the contradictions between a topic of the manifest and the same topic as the routes and the
// broker have it now.
func (have manifestTopic) compare(want manifestTopic, changelog string) []error {
	var mistakes []error
	if have.Role == roleForwarded && want.Role == roleForwarded {
		return have.compareForwarded(want)
	}
	if have.Role != want.Role {
		return []error{kafka.OperatorErrorf("topic %s was %s and is %s now: the rows of its keys are in another changelog; restore `prepartitioned`, or use another topic or ONCEBUS_APP_ID",
			have.Name, have.Role, want.Role)}
	}
	if have.Role == roleRouted {
		return nil
	}
	if want.ID == "" || want.ChangelogID == "" {
		return []error{kafka.OperatorErrorf("topic %s or its changelog was deleted: offsets and state belonged to it; recreate it, or use another ONCEBUS_APP_ID to start without state", have.Name)}
	}
	switch {
	case have.Partitions == want.Partitions && have.ID == want.ID:
	case have.Partitions == want.Partitions:
		mistakes = append(mistakes, kafka.OperatorErrorf("topic %s was deleted and recreated (id %s, was %s): offsets do not belong to it, and records that were not read are lost; to read the new topic from its start, stop all processes and run: oncebus accept --recreated %s",
			have.Name, want.ID, have.ID, have.Name))
	case have.ID == want.ID && have.Partitions < want.Partitions:
		mistakes = append(mistakes, ErrAddedPartition(have.Name, want.Partitions-1, have.Partitions))
	default:
		mistakes = append(mistakes, kafka.OperatorErrorf("topic %s was deleted and recreated with %d partitions, the app began with %d: keys would get other partitions than their rows; recreate it with %d partitions, and start again",
			have.Name, want.Partitions, have.Partitions, have.Partitions))
	}
	if have.ChangelogID != want.ChangelogID {
		mistakes = append(mistakes, kafka.OperatorErrorf("the changelog of %s was deleted and recreated (id %s, was %s): its rows are lost; to go on without them, stop all processes and run: oncebus accept --recreated %s",
			have.Name, want.ChangelogID, have.ChangelogID, changelog))
	}
	return mistakes
}

func secretCheck(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("oncebus manifest: which secret is this"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// readManifest returns the newest manifest with its route sets; nil before the app's first start.
func readManifest(ctx context.Context, client *kgo.Client, t *Topology) (*Manifest, error) {
	reader := kafka.NewReader(client, t.Manifest, t.Topics[t.Manifest].ID, 0)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	var newest *kgo.Record
	sets := new(Sets)
	err = reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if string(rec.Key) == ManifestKey {
				newest = rec
			}
			sets.note(rec)
		}
		return nil
	})
	if err != nil || newest == nil {
		return nil, err
	}
	return decodeManifest(newest, sets)
}

// decodeManifest decodes the row of the manifest, and decodes the rows of its route sets.
func decodeManifest(rec *kgo.Record, sets *Sets) (*Manifest, error) {
	m := &Manifest{sets: sets}
	if err := json.Unmarshal(rec.Value, m); err != nil {
		return nil, unreadableRow(rec, err)
	}
	if m.level() > wire.LevelNewest {
		m.sets = new(Sets) // this build cannot read them; reconcile refuses the manifest
		return m, nil
	}
	return m, sets.read()
}

// refuseLater returns an error if a later build has raised the level of the app.
func (m *Manifest) refuseLater(app string) error {
	if m.level() <= wire.LevelNewest {
		return nil
	}
	return kafka.OperatorErrorf("app %s is at level %d, this build knows levels up to %d: run the build that raised it, or a later one", app, m.Level, wire.LevelNewest)
}

// setUpManifest reads the manifest, adds new topics and namespaces of the routes, and writes the manifest if it
// changed. Processes that start at the same time use the same transactional id: the process that registers the
// id last fences the others. The fenced processes read the manifest that this process wrote, and try again.
func (s *setup) setUpManifest(ctx context.Context, t *Topology) (*Manifest, error) {
	for {
		m, err := readManifest(ctx, s.Client, t)
		if err != nil {
			return nil, err
		}
		if m.hasSets() {
			return nil, errSetsChanged
		}
		if m != nil {
			changed, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
			if err != nil || !(s.nameApp(ctx, m) || changed) {
				return m, err
			}
		} else if err := s.refuseOrphanedState(ctx, t); err != nil {
			return nil, err
		}
		m, err = s.writeManifest(ctx, t)
		switch {
		case err == nil:
			return m, nil
		case errors.Is(err, errSetsChanged):
			return nil, err
		case !isFenced(err):
			return nil, fmt.Errorf("write the manifest: %w", err)
		}
		s.Log.Info("manifest written by another process, retrying", "topic", t.Manifest)
		if err := kafka.Pause(ctx, fencedPause); err != nil {
			return nil, err
		}
	}
}

// writeManifest writes the manifest. It first registers the manifest's transactional id, which fences an earlier
// writer, and then reads the manifest that it is about to replace. In this order no other process can change the
// manifest between the read and the write.
func (s *setup) writeManifest(ctx context.Context, t *Topology) (*Manifest, error) {
	var m *Manifest
	written := false
	err := s.writeFenced(ctx, t, func() (rows []*kgo.Record, err error) {
		if m, err = readManifest(ctx, s.Client, t); err != nil {
			return nil, err
		}
		if m.hasSets() {
			return nil, errSetsChanged
		}
		if m == nil {
			if m, err = newManifest(t.Cluster); err != nil {
				return nil, err
			}
			set := newRouteSet(1, s.routes, s.cfg.InstanceID)
			m.sets = m.sets.with(set)
			if rows, err = setRows(set); err != nil {
				return nil, err
			}
		}
		changed, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
		if err != nil || !(s.nameApp(ctx, m) || changed) {
			return nil, err
		}
		written = true
		return manifestRows(m, rows)
	})
	if err != nil {
		return nil, err
	}
	if written {
		s.Log.Info("manifest written", "topic", t.Manifest, "topics", len(m.Topics), "namespaces", len(m.Namespaces))
	}
	return m, nil
}

// refuseChanged compares the routes with the manifest before SetUp creates the first topic, so that a refused
// start creates no topic.
func (s *setup) refuseChanged(ctx context.Context, t *Topology) error {
	var m *Manifest
	if _, ok := t.Topics[t.Manifest]; ok {
		var err error
		if m, err = readManifest(ctx, s.Client, t); err != nil {
			return err
		}
	}
	if m == nil {
		return s.refuseOrphanedState(ctx, t)
	}
	switch {
	case !m.hasSets():
	case s.sets == nil || s.sets.inForce < m.sets.inForce:
		return errSetsChanged
	case s.sets.inForce > m.sets.inForce:
		m.extendKeys(s.routes)
	}
	_, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
	return err
}

// refuseOrphanedState returns an error if a changelog has rows but no manifest exists. A new manifest would
// have a new hash secret, and the keys of these rows would belong to other partitions.
func (s *setup) refuseOrphanedState(ctx context.Context, t *Topology) error {
	changelog, err := s.filledChangelog(ctx, t)
	if err != nil || changelog == "" {
		return err
	}
	// Since the topics were described, another process may have written the manifest and rows.
	if err := t.describe(ctx, s.Admin); err != nil {
		return err
	}
	if _, ok := t.Topics[t.Manifest]; ok {
		if m, err := readManifest(ctx, s.Client, t); err != nil || m != nil {
			return err
		}
	}
	return kafka.OperatorErrorf("changelog %s has rows but %s has no manifest: it was deleted, or the changelog is of another app; use another ONCEBUS_APP_ID", changelog, t.Manifest)
}

// filledChangelog returns the name of a changelog that has, or once had, a record; "" if there is none.
func (s *setup) filledChangelog(ctx context.Context, t *Topology) (string, error) {
	for _, task := range t.TaskTopics() {
		name := ChangelogName(t.App, task)
		if _, ok := t.Topics[name]; !ok {
			continue
		}
		ends, err := s.Admin.ListEndOffsets(ctx, name)
		if err != nil {
			return "", fmt.Errorf("list the end of the changelog of %s: %w", task, err)
		}
		for _, o := range ends.Offsets().Sorted() {
			if o.At > 0 {
				return name, nil
			}
		}
	}
	return "", nil
}
