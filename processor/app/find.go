package app

import (
	"context"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// Found has the existing topics of an app and its manifest, as Find has read them.
type Found struct {
	Topology *Topology
	Manifest *Manifest // nil before the app's first start
	// routes are the routes of the app, file those of the caller. For an app without route sets the two are the
	// same.
	routes, file *rules.Routes
}

// newFound returns a Found without the topics to which only tasks write, because the caller may have no rights
// on them.
func newFound(app string, routes *rules.Routes) *Found {
	f := &Found{Topology: newTopology(app, routes), routes: routes, file: routes}
	f.Topology.emissions = nil
	return f
}

// Find reads the topics and the manifest of an app. The app's routes are those of the set in force, or the
// given routes for an app without route sets. Find creates and changes nothing.
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
	if err == nil && f.Manifest != nil {
		f.Manifest.limitToTasks(f.Topology)
	}
	if err != nil || !f.Manifest.hasSets() {
		return f, err
	}
	current := f.Manifest.sets.current()
	f.routes = current.routes
	f.Topology = topologyOf(app, f.routes, f.Manifest.sets, f.Manifest.generation())
	f.Topology.emissions = nil
	err = f.Topology.describe(ctx, kadm.NewClient(client))
	f.Manifest.limitToTasks(f.Topology)
	return f, err
}

// Routes returns the routes of the app, which may differ from the caller's.
func (f *Found) Routes() *rules.Routes { return f.routes }

// EverRead returns the inputs of the caller's routes and of all route sets that the app has had, including
// outcomes.
func (f *Found) EverRead() []string {
	all := inputsOf(f.file)
	if f.Manifest.hasSets() {
		for _, set := range f.Manifest.sets.all {
			all = append(all, inputsOf(set.routes)...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func inputsOf(routes *rules.Routes) []string {
	routed, prepartitioned := routes.Inputs()
	return slices.Concat(routed, prepartitioned)
}

// Ran returns an operator error for an app that has never run on the cluster.
func (f *Found) Ran() error {
	if f.Manifest == nil {
		return errNeverRan(f.Topology.App)
	}
	return nil
}

// errNeverRan returns the operator error for an app that has no manifest.
func errNeverRan(app string) error {
	return kafka.OperatorErrorf("no app %s has run on this cluster; check ONCEBUS_APP_ID and ONCEBUS_BROKERS", app)
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

// Unknown returns the names of the caller's routes that the app has never run.
func (f *Found) Unknown() []string {
	names := f.Manifest.unknown(f.Topology, f.file)
	if !f.Manifest.hasSets() {
		return names
	}
	for _, r := range f.file.Routes {
		if f.Manifest.route(r.Name) == nil && !slices.Contains(names, r.Name) {
			names = append(names, r.Name)
		}
	}
	return names
}

// Check returns an operator error if the caller's routes or secret contradict the manifest.
func (f *Found) Check(secret []byte) error {
	m := f.Manifest
	if m.hasSets() { // the manifest must not give numbers to what only the caller's file has: change a copy
		compared := *m
		compared.Topics, compared.Namespaces = slices.Clone(m.Topics), slices.Clone(m.Namespaces)
		m = &compared
	}
	_, err := m.reconcile(f.Topology, f.file, secret)
	return err
}

// CheckInForce returns an operator error if the routes of the app or the secret contradict the manifest.
// changed reports whether a start with the routes and the secret would add to the manifest.
func (f *Found) CheckInForce(secret []byte) (changed bool, err error) {
	return f.Manifest.reconcile(f.Topology, f.routes, secret)
}

// App returns the app, with a broker clock that has observed nothing and without limits of topics.
func (f *Found) App() *App { return newApp(f.Topology, f.Manifest, f.routes) }
