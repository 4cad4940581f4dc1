package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// arrivalKey is the key of the row of the manifest topic that says that the app came from another cluster.
const arrivalKey = "arrival"

// Arrival is the row of the manifest topic about an app that came from another cluster by oncebus arrive.
type Arrival struct {
	// File is the SHA-256 of the file with which the app came, Cluster is the id of the cluster that it came
	// from, and Hold is the id of the hold in that cluster.
	File    string    `json:"file"`
	Cluster string    `json:"cluster"`
	Hold    string    `json:"hold"`
	By      string    `json:"by,omitempty"`
	At      time.Time `json:"at"`
	// Seeded reports whether the tasks have stored all keys and stream times of the file. Released reports
	// whether an operator has released the app in this cluster.
	Seeded   bool `json:"seeded,omitempty"`
	Released bool `json:"released,omitempty"`
}

// ArrivalIn returns the arrival of an app; nil for an app that began in this cluster.
func ArrivalIn(rows Rows) (*Arrival, error) {
	a, ok, err := decodeRow[Arrival](rows, arrivalKey)
	if err != nil || !ok {
		return nil, err
	}
	return &a, nil
}

// Seeded stores in the manifest topic that the tasks have stored everything that came with a file.
func Seeded(ctx context.Context, c Conn, cfg Config, t *Topology, file string) error {
	_, _, err := changeResidence(ctx, c, cfg, t, func(r Residence) (Residence, error) { return r.Seed(file) })
	return err
}

// Arriving is what Arrive needs to create an app that comes from another cluster.
type Arriving struct {
	Arrival
	HashSecret  []byte
	SecretCheck string // of the key secret; "" if no key rule uses one
	// Starts has the first offset to read of each partition of the routed topics, by topic.
	Starts map[string][]int64
}

// CheckArrival returns the arrival of an app that came with a file, and nil for an app that does not exist. If
// the app exists but did not come with this file, CheckArrival returns an operator error.
func CheckArrival(ctx context.Context, c Conn, app string, routes *rules.Routes, file string) (*Arrival, error) {
	t := newTopology(app, routes)
	topics, err := DescribeTopics(ctx, c.Admin, t.Manifest)
	if err != nil || topics[t.Manifest].Partitions == 0 {
		return nil, err
	}
	t.Topics[t.Manifest] = topics[t.Manifest]
	rows, err := ReadRows(ctx, c.Client, t)
	if err != nil {
		return nil, err
	}
	return arrivedWith(rows, app, file)
}

// arrivedWith returns the arrival with a file, as the rows of the manifest topic tell it, see CheckArrival.
func arrivedWith(rows Rows, app, file string) (*Arrival, error) {
	if len(rows[ManifestKey]) == 0 {
		return nil, nil
	}
	a, err := ArrivalIn(rows)
	switch {
	case err != nil:
		return nil, err
	case a == nil:
		return nil, kafka.OperatorErrorf("app %s has run in this cluster: its tasks may have judged events; stop its processes, delete its topics and groups, and run this again", app)
	case a.File != file:
		return nil, kafka.OperatorErrorf("app %s came to this cluster with another file, of hold %s at %s; to use this one, stop its processes, delete its topics and groups, and run this again", app, a.Hold, a.At.Format(time.RFC3339))
	}
	return a, nil
}

// Arrive creates an app that comes from another cluster: its topics, its manifest with the partitioning secret
// and the first offsets, and a hold. One transaction writes the row of the hold and the manifest, so that a
// process that finds the manifest also finds the hold and waits. If the app has already arrived with this file,
// Arrive changes nothing.
func Arrive(ctx context.Context, c Conn, cfg Config, routes *rules.Routes, a *Arriving) error {
	s := &setup{Conn: c, cfg: cfg, routes: routes}
	t, err := s.setUpTopics(ctx)
	if err != nil && !errors.Is(err, errSetsChanged) {
		return err
	}
	if err != nil { // another command was faster
		_, err := CheckArrival(ctx, c, cfg.AppID, routes, a.File)
		return err
	}
	return ChangeRows(ctx, c, cfg, t, func(before Rows) ([]*kgo.Record, error) { return s.arrivalRows(ctx, t, before, a) })
}

// arrivalRows returns the first rows of an app that arrives; no rows if it has already arrived.
func (s *setup) arrivalRows(ctx context.Context, t *Topology, before Rows, a *Arriving) ([]*kgo.Record, error) {
	if done, err := arrivedWith(before, t.App, a.File); err != nil || done != nil {
		return nil, err
	}
	if err := s.refuseOrphanedState(ctx, t); err != nil {
		return nil, err
	}
	m, err := newManifest(t.Cluster)
	if err != nil {
		return nil, err
	}
	m.HashSecret = bytes.Clone(a.HashSecret)
	set := newRouteSet(1, s.routes, a.By)
	m.sets = m.sets.with(set)
	if _, err := m.reconcile(t, s.routes, s.cfg.KeySecret.Bytes()); err != nil {
		return nil, err
	}
	if m.SecretCheck != a.SecretCheck {
		return nil, kafka.OperatorErrorf("the keys of the file have another ONCEBUS_KEY_SECRET: set that of the app in cluster %s", a.Cluster)
	}
	if err := m.startAt(t, a.Starts); err != nil {
		return nil, err
	}
	rows, err := setRows(set)
	if err != nil {
		return nil, err
	}
	hold := NewHold("arrival from cluster "+a.Cluster, a.By, 0)
	hold.Arriving = true
	for key, row := range map[string]any{holdKey: hold, arrivalKey: a.Arrival} {
		rec, err := encodeRow(key, row)
		if err != nil {
			return nil, err
		}
		rows = append(rows, rec)
	}
	return manifestRows(m, rows)
}

// startAt sets the first offsets to read of the routed topics' partitions.
func (m *Manifest) startAt(t *Topology, starts map[string][]int64) error {
	for _, name := range t.Routed {
		at := slices.IndexFunc(m.Topics, func(have manifestTopic) bool { return have.Name == name })
		if at < 0 || len(starts[name]) != int(t.Topics[name].Partitions) {
			return fmt.Errorf("topic %s has %d partitions and %d starts", name, t.Topics[name].Partitions, len(starts[name]))
		}
		m.Topics[at].Starts = starts[name]
	}
	return nil
}
