package transfer

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/portable"
	"oncebus/processor/wire"
)

// A Seed is a key that another system has seen, with the time at which that system first saw it.
type Seed struct {
	// Number is the number of the line, or of the row in an OBX1 file, counted from 1. If the id in a line may
	// be text or a number, the line has a seed for each of the two spellings.
	Number  int64
	Route   *app.Route
	Digest  dedup.Digest
	routing dedup.Digest
	First   int64 // ms
	// placed is the partition of the row, if the app was moved to this cluster with its partitions unchanged;
	// -1 if the partition is derived from routing.
	placed  int32
	details wire.Details
	value   []byte // an encoded row of claim mode; nil otherwise
}

// A Source yields seeds, beginning at its start.
type Source interface {
	// Next returns the seeds of the next line or row, and io.EOF after the last one. Any other error names the
	// line or row. The result is valid until the next call.
	Next() ([]Seed, error)
}

// A rowsSource yields the rows of an OBX1 file that routes of the app can take.
type rowsSource struct {
	next   func() (*portable.Row, error, bool)
	routes []*app.Route // by namespace id in the file; nil for a namespace that is left out
	number int64
	open   bool // open claims are left out
	header *portable.Header
	// arriving reports that the app was moved to this cluster with this file, so that the tasks of the app are
	// the tasks in the file.
	arriving bool
	seed     [1]Seed
}

// Rows returns the rows of an OBX1 file as seeds. route selects the rows of its namespace; nil selects the rows
// of all namespaces that the app has. The error says which of these namespaces the app cannot take, and why. If
// withoutOpen is true, claims without a result are left out; otherwise they are an error. stop ends the
// reading.
func (c *Client) Rows(from io.Reader, route *app.Route, withoutOpen bool) (source Source, stop func(), err error) {
	r, err := portable.NewReader(from)
	if err != nil {
		return nil, nil, err
	}
	arriving := c.cameWith(&r.Header)
	if arriving && route != nil {
		return nil, nil, kafka.OperatorErrorf("the app came with this file: all of its keys are seeded, so leave out --route")
	}
	routes, err := c.routesOf(&r.Header, route, arriving)
	if err != nil {
		return nil, nil, err
	}
	next, stop := iter.Pull2(r.Rows())
	return &rowsSource{next: next, routes: routes, open: withoutOpen, header: &r.Header, arriving: arriving}, stop, nil
}

// Next implements Source.
func (s *rowsSource) Next() ([]Seed, error) {
	for {
		row, err, ok := s.next()
		switch {
		case !ok:
			return nil, io.EOF
		case err != nil:
			return nil, err
		}
		s.number++
		route := s.routes[row.NamespaceID]
		if route == nil {
			continue
		}
		s.seed[0] = Seed{Number: s.number, Route: route, Digest: row.Digest, routing: row.Digest, First: row.First, placed: -1}
		one := &s.seed[0]
		if s.arriving {
			one.placed, one.details.Shift = s.header.Tasks[row.Task].Partition, row.Shift
		}
		if route.Mode != rules.ClaimMode {
			one.details.Fingerprint = row.Fingerprint
			return s.seed[:], nil
		}
		if _, err := row.SeedClaim(); err != nil {
			if s.open {
				continue
			}
			return nil, kafka.OperatorErrorf("row %d, key %v of namespace %s: its claim is %v, and its token names a place of the app that made it: "+
				"wait for the outcome and export again, or leave such claims out by --without-open-claims: their duplicates run again", s.number, row.Digest, route.Namespace, row.Status)
		}
		one.details.Fingerprint = row.Fingerprint
		one.value = row.AppendValue(nil)
		return s.seed[:], nil
	}
}

// routesOf returns a route of the app for each namespace of a file; nil for a namespace that is left out.
func (c *Client) routesOf(h *portable.Header, only *app.Route, arriving bool) ([]*app.Route, error) {
	routes := make([]*app.Route, len(h.Namespaces))
	var mistakes []error
	found := false
	for i := range h.Namespaces {
		n := &h.Namespaces[i]
		at := slices.IndexFunc(c.app.Routes, func(r *app.Route) bool {
			return r.Namespace == n.Name && (only == nil || r.NamespaceID == only.NamespaceID)
		})
		if at < 0 {
			continue
		}
		routes[i], found = c.app.Routes[at], true
		mistakes = append(mistakes, c.mayTake(h, n, routes[i], arriving))
	}
	if !found {
		mistakes = append(mistakes, kafka.OperatorErrorf("the file of app %s has no namespace of these routes: rename none, a key depends on the name of its namespace", h.App))
	}
	return routes, errors.Join(mistakes...)
}

// mayTake returns an operator error if events of the route would not find the rows of the namespace: because
// the key rule, the mode or the secret differs, or because the task of the rows is not known.
func (c *Client) mayTake(h *portable.Header, n *portable.Namespace, r *app.Route, arriving bool) error {
	switch {
	case n.KeyRule != r.KeyRule() && !r.Extends(n.KeyRule):
		return kafka.OperatorErrorf("namespace %s: the file has keys of another rule:\n  %s\nroute %s has\n  %s\nNo event would find them: use the same rule, or seed from events", n.Name, n.KeyRule, r.Name, r.KeyRule())
	case n.Mode != r.Mode.String():
		return kafka.OperatorErrorf("namespace %s: the file has rows of mode %s, route %s has mode %s: use the same mode", n.Name, n.Mode, r.Name, r.Mode)
	case r.Secret && h.SecretCheck != c.app.Manifest.SecretCheck:
		return kafka.OperatorErrorf("namespace %s: the keys of the file have another ONCEBUS_KEY_SECRET: set that of app %s", n.Name, h.App)
	case r.ForwardsCollisions() && !arriving:
		return kafka.OperatorErrorf("namespace %s: the second key of a collision is in the task of the first one, and the file does not say which: hold the app for a window of %v in place of a seed, or seed from events", n.Name, r.Window)
	case n.Adjacent && !arriving:
		return kafka.OperatorErrorf("namespace %s: keys of adjacent buckets are in one task, and the file does not say which: hold the app for a window of %v in place of a seed, or seed from events", n.Name, r.Window)
	}
	return nil
}

// levelOfSeeds is the lowest level at which an app reads seeds.
const levelOfSeeds = 2

// Seedable returns an operator error if the route cannot be seeded.
func (c *Client) Seedable(r *app.Route) error {
	if r.Prepartitioned {
		return kafka.OperatorErrorf("route %s is prepartitioned: its producers choose the partition of a key, and a seed does not know it; give the route another topic without prepartitioned, seed, and move the producers", r.Name)
	}
	return c.seedableLevel()
}

// seedableLevel returns an operator error if the app cannot read seeds.
func (c *Client) seedableLevel() error {
	if c.app.Level < levelOfSeeds {
		return kafka.OperatorErrorf("app %s is at level %d, and seeds need level %d: run 'oncebus finalize' once all processes have this build", c.cfg.AppID, c.app.Level, levelOfSeeds)
	}
	return nil
}

// RouteOf returns the route with this name.
func (c *Client) RouteOf(name string) (*app.Route, error) {
	if r := c.app.ByName[name]; r != nil {
		return r, nil
	}
	return nil, kafka.OperatorErrorf("the routes file has no route %q", name)
}

// runText returns a run in the spelling of the manifest topic.
func runText(run wire.SeedRun) string { return hex.EncodeToString(run[:]) }

// checkSource reads a source to its end, before Seed writes the first seed.
func (c *Client) checkSource(ctx context.Context, s Source, watch func(number int64)) (keys int64, err error) {
	routes := map[*app.Route]bool{}
	for {
		seeds, err := s.Next()
		if errors.Is(err, io.EOF) {
			return keys, nil
		}
		if err != nil {
			return keys, err
		}
		for i := range seeds {
			if !routes[seeds[i].Route] {
				if err := c.Seedable(seeds[i].Route); err != nil {
					return keys, err
				}
				routes[seeds[i].Route] = true
			}
		}
		if keys += int64(len(seeds)); keys%10_000 < int64(len(seeds)) {
			watch(seeds[0].Number)
			if ctx.Err() != nil {
				return keys, fmt.Errorf("check the file: %w", ctx.Err())
			}
		}
	}
}
