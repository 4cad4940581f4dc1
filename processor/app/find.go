package app

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
)

// Found is what is there of an app. Nothing is made or changed to find it.
type Found struct {
	Topology *Topology
	Manifest *Manifest // nil if there is none
	routes   *rules.Routes
}

// Find looks at the topics and the manifest that an app with these routes has.
func Find(ctx context.Context, client *kgo.Client, app string, routes *rules.Routes) (*Found, error) {
	f := &Found{Topology: newTopology(app, routes), routes: routes}
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

// MissingTopics names those that the routes ask for and that are not there,
// apart from topics that only tasks write to.
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

// Unknown names the routes with which the app has never run.
func (f *Found) Unknown() []string { return f.Manifest.unknown(f.Topology, f.routes) }

// Check refuses routes and a secret that the app cannot have run with. It
// reports whether the app would have to note something new to run with them.
func (f *Found) Check(secret []byte) (changed bool, err error) {
	return f.Manifest.reconcile(f.Topology, f.routes, secret)
}

// App returns the app. Its clock does not move, and it has no limits of topics.
func (f *Found) App() *App { return newApp(f.Topology, f.Manifest, f.routes) }
