//go:build synctests

package processor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/oracle"
)

// commandMax is how long a command of the operator may take under faults. The manifest topic says whether the command
// has taken effect.
const commandMax = 30 * time.Second

// command runs a command of the operator, whose outcome may stay unknown.
func (s *sim) command(run func(ctx context.Context, cfg app.Config) error) bool {
	cfg := s.config("operator").Config
	cfg.Partitions = s.set.partitions
	ctx, cancel := context.WithTimeout(context.Background(), commandMax)
	defer cancel()
	err := run(ctx, cfg)
	if err != nil {
		s.note("the command failed: %v", err)
	}
	return err == nil
}

// finalize raises the level of an app that begins at level 1, unless a process does not answer.
func (s *sim) finalize() string {
	raised := false
	s.command(func(ctx context.Context, cfg app.Config) error {
		f, err := app.Finalize(ctx, s.conn(), cfg, s.routes, "operator")
		raised = err == nil && f.Raised
		return err
	})
	if !raised {
		return ""
	}
	return "level raised"
}

// changeRoutes puts another routes file in force: with another window or grace of a route, and sometimes with a route
// that comes or goes.
func (s *sim) changeRoutes() string {
	next := *s.set
	next.routes = slices.Clone(s.set.inForce)
	r := &next.routes[s.plan.IntN(len(next.routes))]
	r.Window = pick(s.plan, time.Minute, 5*time.Minute, time.Hour).Milliseconds()
	r.Grace = max(pick(s.plan, 0, 10*time.Second, 10*time.Minute).Milliseconds(), r.Skew-r.Window)
	next.extra = next.extra != (s.plan.IntN(3) == 0)
	file, err := rules.ParseRoutes("routes.yaml", []byte(next.routesFile()))
	if err != nil {
		s.t.Fatal(err)
	}
	written := false
	s.command(func(ctx context.Context, cfg app.Config) error {
		a, err := app.Apply(ctx, s.conn(), cfg, file, app.ApplyOptions{Yes: true, By: "operator"})
		written = err == nil && a.Written
		return err
	})
	if !written {
		return "" // at level 1, or it may yet have been written
	}
	what := "window changed"
	if next.extra != s.set.extra {
		what = "window changed, route comes or goes"
	}
	s.set.inForce, s.set.extra = next.routes, next.extra
	return what
}

// extraRoute is a route that comes and goes. Nothing is sent to it.
const extraRoute = `  - name: extra
    topics: [extra.raw]
    key: [{field: id}]
    window: 1m
    output: extra.unique
    dead_letter: dead
`

// sleepy reports whether the next life does not look for new route sets by itself. Such a life reads of a new set
// only once it meets a task that has gone over to that set.
func (s *sim) sleepy() bool { return s.set.changes && (s.seed+uint64(len(s.lives)))%3 == 0 }

// routeSets returns the windows of all route sets that were in force, from the manifest topic.
func (s *sim) routeSets(namespaceID func(string) uint8) (sets []oracle.Set) {
	for _, r := range s.read(manifestTopic) {
		if !strings.HasPrefix(string(r.Key), "set/") {
			continue
		}
		var row app.RouteSet
		if err := json.Unmarshal(r.Value, &row); err != nil {
			s.t.Fatal(err)
		}
		file, err := rules.ParseRoutes(fmt.Sprint("set ", row.Number), []byte(row.Text))
		if err != nil {
			s.t.Fatal(err)
		}
		set := oracle.Set{Number: row.Number}
		for _, route := range file.Routes {
			set.Windows = append(set.Windows, oracle.NamespaceWindow{NamespaceID: namespaceID(route.Namespace), Window: route.Window.Milliseconds(), Grace: route.Grace.Milliseconds()})
		}
		sets = append(sets, set)
	}
	return sets
}
