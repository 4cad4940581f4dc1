package processor

import (
	"context"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
)

// found is what is there of an app. Nothing is made or changed to find it.
type found struct {
	topology *topology
	manifest *manifest // nil if there is none
	routes   *rules.Routes
}

// findApp looks at the topics and the manifest that an app with these routes has.
func findApp(ctx context.Context, client *kgo.Client, app string, routes *rules.Routes) (*found, error) {
	f := &found{topology: newTopology(app, routes), routes: routes}
	if err := f.topology.describe(ctx, kadm.NewClient(client)); err != nil {
		return nil, err
	}
	if _, ok := f.topology.topics[f.topology.manifest]; !ok {
		return f, nil
	}
	var err error
	f.manifest, err = readManifest(ctx, client, f.topology)
	return f, err
}

// missingTopics names those that the routes ask for and that are not there,
// apart from topics that only tasks write to.
func (f *found) missingTopics() (names []string) {
	t := f.topology
	for _, topics := range [][]string{t.internal(), t.routed, t.prepartitioned} {
		for _, name := range topics {
			if _, ok := t.topics[name]; !ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// unknown names the routes with which the app has never run.
func (f *found) unknown() []string { return f.manifest.unknown(f.topology, f.routes) }

// check refuses routes and a secret that the app cannot have run with. It
// reports whether the app would have to note something new to run with them.
func (f *found) check(secret []byte) (changed bool, err error) {
	return f.manifest.reconcile(f.topology, f.routes, secret)
}

// runtime returns the app. Its clock stands still, and it has no limits of topics.
func (f *found) runtime() *runtime { return newRuntime(f.topology, f.manifest, f.routes) }
