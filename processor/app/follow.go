package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A Follower follows the route sets and generations of an app in the records of its manifest topic, so that a
// running process can change over to them without a restart.
type Follower struct {
	conn     Conn
	cfg      Config
	sets     *Sets
	manifest *kgo.Record
	changed  bool // manifest has not been compared with the app yet
}

// NewFollower returns a follower that has read no record.
func NewFollower(conn Conn, cfg Config) *Follower {
	return &Follower{conn: conn, cfg: cfg, sets: new(Sets)}
}

// Clear drops everything that was read, before the caller reads the topic from its start again.
func (f *Follower) Clear() { f.sets, f.manifest = new(Sets), nil }

// Take takes a record. A row that cannot be read counts as an error until a later row replaces it.
func (f *Follower) Take(rec *kgo.Record) {
	if string(rec.Key) == ManifestKey {
		f.manifest, f.changed = rec, true
		return
	}
	f.sets.note(rec)
}

// App returns the app with the set in force and the newest generation of partitions. If the app than has both
// already, App returns nil. It describes and checks topics as a start does, but creates and changes nothing.
func (f *Follower) App(ctx context.Context, than *App) (*App, error) {
	if err := f.sets.unread.first(); err != nil {
		return nil, err
	}
	if f.manifest == nil || f.sets.inForce <= than.Set && !f.changed {
		return nil, nil
	}
	m, err := decodeManifest(f.manifest, f.sets.clone())
	if err != nil {
		return nil, err
	}
	if err := m.refuseLater(f.cfg.AppID); err != nil {
		return nil, err
	}
	if f.sets.inForce <= than.Set && m.generation().number <= than.Topology.Generation && len(m.generation().forwarded) == len(than.Topology.Forwarded) {
		f.changed = false
		return nil, nil
	}
	s := m.setupBy(f.conn, f.cfg, m.sets, m.sets.current().routes)
	if err := s.cfg.CheckSecret(s.routes.NeedsSecret()); err != nil {
		return nil, errSetNeedsSecret(m.sets.inForce, err)
	}
	t, err := s.readTopology(ctx)
	if err != nil {
		return nil, err
	}
	changed, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes())
	if err != nil {
		return nil, err
	}
	if changed {
		return nil, fmt.Errorf("the manifest lacks topics or namespaces of route set %d", m.sets.inForce)
	}
	rt := newApp(t, m, s.routes)
	rt.Clock = than.Clock
	return rt, nil
}

// readTopology reads the topics of the set in force. All of them must exist.
func (s *setup) readTopology(ctx context.Context) (*Topology, error) {
	t := topologyOf(s.cfg.AppID, s.routes, s.sets, s.on)
	t.BatchMax = s.MaxDecompressedBatchBytes
	if err := t.CheckRights(ctx, s.Client); err != nil {
		return nil, err
	}
	if err := t.describe(ctx, s.Admin); err != nil {
		return nil, err
	}
	var missing []string
	for _, name := range t.all() {
		if _, ok := t.Topics[name]; !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("topics of the route set in force do not exist: %s", strings.Join(missing, ", "))
	}
	t.countBrokers(ctx, s.Client)
	if err := t.describeFormer(ctx, s.Admin, s.sets.retired()); err != nil {
		return nil, err
	}
	if err := t.readConfigs(ctx, s.Admin, t.Written()...); err != nil {
		return nil, err
	}
	err := t.listStarts(ctx, s.Admin, s.cfg.Start, slices.Concat(t.Routed, t.Prepartitioned))
	return t, err
}
