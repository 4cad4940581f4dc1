package app

import (
	"crypto/sha256"

	"oncebus/dedup/rules"
)

// OfflineSets is like Offline for an app at level 2, with one or more route sets. The last set is in force.
func OfflineSets(id string, partitions int32, sets ...*rules.Routes) (*App, error) {
	m, err := newManifest("")
	if err != nil {
		return nil, err
	}
	clear(m.HashSecret)
	var rt *App
	for n, routes := range sets {
		m.sets = m.sets.with(newRouteSet(int64(n)+1, routes, ""))
		if rt, err = Offline(id, partitions, m, routes); err != nil {
			return nil, err
		}
	}
	return rt, nil
}

// Offline returns an app without a broker, for tests that judge records. Each of its topics has the given
// number of partitions and Kafka's default limits. Offline adds to the manifest what is new in the routes. A
// nil manifest begins a new one, whose hash secret is zero so that a key has the same partition in every run.
func Offline(id string, partitions int32, m *Manifest, routes *rules.Routes) (*App, error) {
	var sets *Sets
	if m != nil {
		sets = m.sets
	}
	t := topologyOf(id, routes, sets, m.generation())
	for _, r := range sets.retired() {
		t.former = append(t.former, emissionsOf(r)...)
	}
	if err := t.checkNames(); err != nil {
		return nil, err
	}
	for _, name := range append(t.internal(), t.external()...) {
		sum := sha256.Sum256([]byte(name))
		t.Topics[name] = Topic{ID: [16]byte(sum[:16]), Partitions: partitions}
	}
	t.limits = map[string]TopicLimits{}
	for _, name := range t.Written() {
		t.limits[name] = TopicLimits{MaxBytes: defaultMaxBytes, BytesSetting: maxMessageSetting, BeforeMaxMS: Forever, AfterMaxMS: Forever}
	}
	for _, name := range t.internal() {
		limits := t.limits[name]
		limits.AppendTime = true
		t.limits[name] = limits
	}
	if m == nil {
		var err error
		if m, err = newManifest(t.Cluster); err != nil {
			return nil, err
		}
		clear(m.HashSecret)
		m.Version, m.Level = manifestVersionAppTokens, 0
	}
	if _, err := m.reconcile(t, routes, nil); err != nil {
		return nil, err
	}
	return newApp(t, m, routes), nil
}
