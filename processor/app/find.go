package app

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// Found has the existing topics of an app, and its manifest.
type Found struct {
	Topology *Topology
	Manifest *Manifest // nil before the app's first start
	routes   *rules.Routes
}

// newFound returns a Found without the topics that only tasks write to, because the
// caller may have no rights on them.
func newFound(app string, routes *rules.Routes) *Found {
	f := &Found{Topology: newTopology(app, routes), routes: routes}
	f.Topology.emissions = nil
	return f
}

// Find reads the topics and the manifest of an app with these routes. It creates and
// changes nothing.
func Find(ctx context.Context, client *kgo.Client, app string, routes *rules.Routes) (*Found, error) {
	f := newFound(app, routes)
	if err := f.Topology.describe(ctx, kadm.NewClient(client)); err != nil {
		return nil, err
	}
	if _, ok := f.Topology.Topics[f.Topology.Manifest]; !ok {
		return f, nil
	}
	var err error
	f.Manifest, err = readManifest(ctx, client, f.Topology)
	return f, err
}

// Ran returns an operator error for an app that has never run on the cluster.
func (f *Found) Ran() error {
	if f.Manifest == nil {
		return kafka.OperatorErrorf("no app %s has run on this cluster; check ONCEBUS_APP_ID and ONCEBUS_BROKERS", f.Topology.App)
	}
	return nil
}

// MissingTopics returns the names of missing internal and input topics.
func (f *Found) MissingTopics() (names []string) {
	t := f.Topology
	for _, topics := range [][]string{t.internal(), t.Routed, t.Prepartitioned} {
		for _, name := range topics {
			if _, ok := t.Topics[name]; !ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// Unknown returns the names of the routes with which the app has never run.
func (f *Found) Unknown() []string { return f.Manifest.unknown(f.Topology, f.routes) }

// Check returns an operator error if routes or secret contradict the manifest. changed
// reports whether a start with them would add to the manifest.
func (f *Found) Check(secret []byte) (changed bool, err error) {
	return f.Manifest.reconcile(f.Topology, f.routes, secret)
}

// App returns the app without a broker clock and without limits of topics.
func (f *Found) App() *App { return newApp(f.Topology, f.Manifest, f.routes) }
