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
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// ManifestKey is the key of the one row that matters in <app>-manifest.
const ManifestKey = "manifest"

const manifestVersion = 1

// Manifest pins what must never change under stored state (invariant 9): the
// partitioning hash, partition counts, key rules and encodings, and the small
// numbers that rows use for topics and namespaces. It lives in a compacted
// topic of its own, because a changelog also deletes by age.
type Manifest struct {
	Version    int    `json:"version"`
	Cluster    string `json:"cluster"`
	Hash       string `json:"hash"`
	HashSecret []byte `json:"hash_secret"`
	// RowVersion and EnvelopeVersion are the encodings state was begun with.
	RowVersion      int `json:"row_version"`
	EnvelopeVersion int `json:"envelope_version"`
	// Topics lists every topic ever used; a topic's number is its place.
	Topics []manifestTopic `json:"topics"`
	// Namespaces lists every namespace ever used; its class is its place.
	Namespaces []manifestNamespace `json:"namespaces"`
	// SecretCheck recognises ONCEBUS_KEY_SECRET without telling it; empty
	// as long as no route uses it.
	SecretCheck string `json:"secret_check,omitempty"`
}

// The roles a topic can have for the app.
const (
	roleRouted         = "routed"         // a raw topic; its records go through the router
	rolePrepartitioned = "prepartitioned" // a raw topic whose partitions are tasks
	roleHop            = "hop"            // the repartition topic, whose partitions are tasks
)

type manifestTopic struct {
	Name string `json:"name"`
	Role string `json:"role"`
	// Partitions, ID and ChangelogID are pinned for topics whose partitions
	// are tasks.
	Partitions  int32  `json:"partitions,omitempty"`
	ID          string `json:"id,omitempty"`
	ChangelogID string `json:"changelog_id,omitempty"`
	// Starts is where an input topic that came in with ONCEBUS_START=latest
	// is read from, by partition; what is not listed starts at its beginning.
	Starts []int64 `json:"starts,omitempty"`
}

type manifestNamespace struct {
	Name    string `json:"name"`
	KeyRule string `json:"key_rule"`
	// Mode is the route's mode, which decides the meaning of its rows.
	Mode string `json:"mode"`
}

func newManifest(cluster string) (*Manifest, error) {
	m := &Manifest{
		Version: manifestVersion, Cluster: cluster, Hash: HashName, HashSecret: make([]byte, 16),
		RowVersion: dedup.RowVersion, EnvelopeVersion: wire.EnvelopeVersion,
	}
	if _, err := rand.Read(m.HashSecret); err != nil {
		return nil, fmt.Errorf("draw the secret of the partitioning hash: %w", err)
	}
	return m, nil
}

func (m *Manifest) hasher(partitions int32) hasher {
	return newHasher([16]byte(m.HashSecret), partitions)
}

// TopicNumber returns the number of a topic, which reconcile has put there.
func (m *Manifest) TopicNumber(name string) uint16 {
	return uint16(slices.IndexFunc(m.Topics, func(t manifestTopic) bool { return t.Name == name }))
}

// Start returns where a partition of an input topic is read from that the
// group has no offset for.
func (m *Manifest) Start(topic string, partition int32) int64 {
	for _, t := range m.Topics {
		if t.Name == topic && int(partition) < len(t.Starts) {
			return t.Starts[partition]
		}
	}
	return 0
}

// Class returns the class of a namespace, which reconcile has put there.
func (m *Manifest) Class(namespace string) uint8 {
	return uint8(slices.IndexFunc(m.Namespaces, func(n manifestNamespace) bool { return n.Name == namespace }))
}

// unknown names the routes of which nothing is recorded under this manifest:
// their namespace, or the topic of their tasks, is not in it.
func (m *Manifest) unknown(t *Topology, routes *rules.Routes) (names []string) {
	for _, r := range routes.Routes {
		namespace := slices.ContainsFunc(m.Namespaces, func(n manifestNamespace) bool { return n.Name == r.Namespace })
		tasks := slices.ContainsFunc(m.Topics, func(have manifestTopic) bool { return have.Name == t.taskTopicOf(r) })
		if !namespace || !tasks {
			names = append(names, r.Name)
		}
	}
	return names
}

// reconcile compares the manifest with what the routes and the broker say now.
// It adds what is new and returns whether it did; what changed is refused, all
// of it at once.
func (m *Manifest) reconcile(t *Topology, routes *rules.Routes, secret []byte) (changed bool, err error) {
	var mistakes []error
	refuse := func(format string, args ...any) { mistakes = append(mistakes, kafka.OperatorErrorf(format, args...)) }
	if m.Version != manifestVersion || m.Hash != HashName || len(m.HashSecret) != 16 ||
		m.RowVersion != dedup.RowVersion || m.EnvelopeVersion != wire.EnvelopeVersion {
		refuse("the manifest in %s has version %d, hash %q, row encoding %d, envelope %d; this build has %d, %q, %d, %d: run the build that wrote it, or use another ONCEBUS_APP_ID",
			t.Manifest, m.Version, m.Hash, m.RowVersion, m.EnvelopeVersion, manifestVersion, HashName, dedup.RowVersion, wire.EnvelopeVersion)
		return false, errors.Join(mistakes...)
	}
	if m.Cluster != t.Cluster {
		refuse("the manifest in %s was written for cluster %s, this is cluster %s: state and offsets of another cluster mean nothing here; use another ONCEBUS_APP_ID",
			t.Manifest, m.Cluster, t.Cluster)
	}
	for _, want := range t.manifestTopics() {
		at := slices.IndexFunc(m.Topics, func(have manifestTopic) bool { return have.Name == want.Name })
		if at < 0 {
			m.Topics, changed = append(m.Topics, want), true
			continue
		}
		mistakes = append(mistakes, m.Topics[at].compare(want)...)
	}
	for _, route := range routes.Routes {
		at := slices.IndexFunc(m.Namespaces, func(n manifestNamespace) bool { return n.Name == route.Namespace })
		if at < 0 {
			m.Namespaces, changed = append(m.Namespaces, manifestNamespace{route.Namespace, route.KeyRule(), route.Mode.String()}), true
			continue
		}
		have := &m.Namespaces[at]
		if have.KeyRule != route.KeyRule() {
			refuse("route %s: its key rule changed from\n  %s\nto\n  %s\nKeys recorded under the old rule would never be found: put the old rule back, or give the route a new namespace",
				route.Name, have.KeyRule, route.KeyRule())
		}
		if have.Mode != route.Mode.String() {
			refuse("route %s: its mode changed from %s to %s, but what namespace %s remembers was recorded in the old one: put it back, or give the route a new namespace",
				route.Name, have.Mode, route.Mode, route.Namespace)
		}
	}
	if len(m.Topics) > 1<<16 || len(m.Namespaces) > 256 {
		refuse("%d topics and %d namespaces were used over time; at most 65536 and 256 can be numbered: use another ONCEBUS_APP_ID", len(m.Topics), len(m.Namespaces))
	}
	if routes.NeedsSecret() {
		switch check := secretCheck(secret); m.SecretCheck {
		case check:
		case "":
			m.SecretCheck, changed = check, true
		default:
			refuse("ONCEBUS_KEY_SECRET is not the one the recorded keys were made with: set the old one, or use another ONCEBUS_APP_ID")
		}
	}
	return changed, errors.Join(mistakes...)
}

func (have manifestTopic) compare(want manifestTopic) []error {
	var mistakes []error
	if have.Role != want.Role {
		return []error{kafka.OperatorErrorf("topic %s was %s and is %s now: what was recorded about its keys stands in another changelog; put `prepartitioned` back, or use another topic or ONCEBUS_APP_ID",
			have.Name, have.Role, want.Role)}
	}
	if have.Role == roleRouted {
		return nil
	}
	if want.ID == "" || want.ChangelogID == "" {
		return []error{kafka.OperatorErrorf("topic %s or its changelog was deleted: offsets and state belonged to it; use another ONCEBUS_APP_ID to start anew", have.Name)}
	}
	if have.Partitions != want.Partitions {
		way := fmt.Sprintf("recreate the topic with %d partitions, or use another ONCEBUS_APP_ID", have.Partitions)
		if have.Role == roleHop {
			way = fmt.Sprintf("set ONCEBUS_PARTITIONS=%d if only the setting changed; else use another ONCEBUS_APP_ID", have.Partitions)
		}
		mistakes = append(mistakes, kafka.OperatorErrorf("topic %s has %d partitions in the manifest, not %d: keys would move away from their rows; %s",
			have.Name, have.Partitions, want.Partitions, way))
	}
	if have.ID != want.ID {
		mistakes = append(mistakes, kafka.OperatorErrorf("topic %s was deleted and recreated (id %s, was %s): offsets and state do not belong to it; use another ONCEBUS_APP_ID",
			have.Name, want.ID, have.ID))
	}
	if have.ChangelogID != want.ChangelogID {
		mistakes = append(mistakes, kafka.OperatorErrorf("the changelog of %s was deleted and recreated (id %s, was %s): what it knew is gone; use another ONCEBUS_APP_ID to start anew",
			have.Name, want.ChangelogID, have.ChangelogID))
	}
	return mistakes
}

func secretCheck(secret []byte) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte("oncebus manifest: which secret is this"))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

// readManifest reads the newest manifest; nil if there is none.
func readManifest(ctx context.Context, client *kgo.Client, t *Topology) (*Manifest, error) {
	reader := kafka.NewReader(client, t.Manifest, t.Topics[t.Manifest].ID, 0)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	var newest []byte
	err = reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if string(rec.Key) == ManifestKey {
				newest = rec.Value
			}
		}
		return nil
	})
	if err != nil || newest == nil {
		return nil, err
	}
	m := new(Manifest)
	if err := json.Unmarshal(newest, m); err != nil {
		return nil, kafka.OperatorErrorf("the manifest in %s cannot be read: %v", t.Manifest, err)
	}
	return m, nil
}

// settleManifest reads the manifest, adds what is new in the routes, and
// writes it back if that changed anything. Several processes may start at
// once: they share one transactional id, so the last to register fences the
// others, which then read what it wrote and begin again.
func (s *setup) settleManifest(ctx context.Context, t *Topology) (*Manifest, error) {
	for {
		m, err := readManifest(ctx, s.Client, t)
		if err != nil {
			return nil, err
		}
		if m != nil {
			changed, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
			if err != nil || !changed {
				return m, err
			}
		} else if err := s.refuseOrphanedState(ctx, t); err != nil {
			return nil, err
		}
		m, err = s.writeManifest(ctx, t)
		if err == nil {
			return m, nil
		}
		if !errors.Is(err, kerr.ProducerFenced) && !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ConcurrentTransactions) {
			return nil, fmt.Errorf("write the manifest: %w", err)
		}
		s.Log.Info("another process wrote the manifest at the same time", "topic", t.Manifest)
		if err := kafka.Pause(ctx, 50*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// writeManifest takes the manifest's transactional id, which ends whatever an
// earlier holder had begun, and only then reads what it will replace.
func (s *setup) writeManifest(ctx context.Context, t *Topology) (*Manifest, error) {
	opts := append(slices.Clone(s.Options), kgo.TransactionalID(s.cfg.AppID+"-manifest"), kgo.DefaultProduceTopic(t.Manifest),
		kgo.TransactionTimeout(s.cfg.TransactionTimeout))
	client, err := kgo.NewClient(opts...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, _, err := client.ProducerID(ctx); err != nil {
		return nil, kafka.Denied(err, "Write", kafka.ResourceTransactionalID, s.cfg.AppID+"-manifest")
	}
	m, err := readManifest(ctx, s.Client, t)
	if err != nil {
		return nil, err
	}
	if m == nil {
		if m, err = newManifest(t.Cluster); err != nil {
			return nil, err
		}
	}
	changed, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
	if err != nil || !changed {
		return m, err
	}
	value, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	if err := client.BeginTransaction(); err != nil {
		return nil, err
	}
	if err := client.ProduceSync(ctx, &kgo.Record{Key: []byte(ManifestKey), Value: value}).FirstErr(); err != nil {
		return nil, errors.Join(err, client.EndTransaction(ctx, kgo.TryAbort))
	}
	if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return nil, err
	}
	s.Log.Info("manifest written", "topic", t.Manifest, "topics", len(m.Topics), "namespaces", len(m.Namespaces))
	return m, nil
}

// refuseChanged compares the routes with the manifest before anything is
// created, so that a start that must be refused leaves nothing behind.
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
	_, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
	return err
}

// refuseOrphanedState refuses to begin a new manifest over changelogs that
// already hold rows: a new hash secret would send their keys elsewhere.
func (s *setup) refuseOrphanedState(ctx context.Context, t *Topology) error {
	for _, task := range t.TaskTopics() {
		if _, ok := t.Topics[ChangelogName(t.App, task)]; !ok {
			continue
		}
		ends, err := s.Admin.ListEndOffsets(ctx, ChangelogName(t.App, task))
		if err != nil {
			return fmt.Errorf("list the end of the changelog of %s: %w", task, err)
		}
		for _, o := range ends.Offsets().Sorted() {
			if o.At > 0 {
				// Unless another process wrote manifest and rows since we looked.
				if err := t.describe(ctx, s.Admin); err != nil {
					return err
				}
				if _, ok := t.Topics[t.Manifest]; ok {
					if m, err := readManifest(ctx, s.Client, t); err != nil || m != nil {
						return err
					}
				}
				return kafka.OperatorErrorf("%s holds rows but %s has no manifest: it was deleted or this is another app's changelog; use another ONCEBUS_APP_ID", o.Topic, t.Manifest)
			}
		}
	}
	return nil
}
