package app

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// setKey is the record key of the row in the manifest topic that has the number of the route set in force. The
// keys of the sets' own rows begin with setPrefix.
const setKey, setPrefix = "set", "set/"

// A RouteSet is a routes file that an app at level 2 has in force, or once had.
type RouteSet struct {
	Number int64     `json:"number"` // from 1 on
	Text   string    `json:"text"`
	Digest string    `json:"digest"` // see rules.Routes.Digest
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
	// Outcomes are the outcomes topics of routes that the set no longer has but that may have open claims. The
	// app still reads them.
	Outcomes []FormerOutcomes `json:"outcomes,omitempty"`
	// Promoted are the shadows whose key rules this set put in force.
	Promoted []Promoted `json:"promoted,omitempty"`

	routes *rules.Routes
	// storedAt is when the broker stored the row, in Unix ms; 0 if the set was not read back yet.
	storedAt int64
}

// FormerOutcomes is an outcomes topic, with the former route whose executors write to it.
type FormerOutcomes struct {
	Topic string `json:"topic"`
	Route string `json:"route"`
}

// setInForce is the row that names the set in force.
type setInForce struct {
	Number int64     `json:"number"`
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
}

// Sets are the route sets of an app. A Sets value with a set in force is never changed: with returns a new one.
type Sets struct {
	inForce int64 // 0 at level 1
	all     map[int64]*RouteSet
	unread  unreadRows
}

// newRouteSet returns the route set of a routes file.
func newRouteSet(number int64, routes *rules.Routes, by string) *RouteSet {
	return &RouteSet{Number: number, Text: string(routes.Text), Digest: routes.Digest, By: by, At: time.Now().UTC().Truncate(time.Second), routes: routes}
}

// note takes a record. A row that cannot be read counts as an error until a later row replaces it.
func (s *Sets) note(rec *kgo.Record) {
	err := s.take(rec)
	if err != nil {
		err = unreadableRow(rec, err)
	}
	if s.unread == nil {
		s.unread = unreadRows{}
	}
	s.unread.note(rec, err)
}

// take adds the row of a set, or of the set in force; it ignores other records of the manifest topic.
func (s *Sets) take(rec *kgo.Record) error {
	key := string(rec.Key)
	number, isSet := strings.CutPrefix(key, setPrefix)
	if !isSet && key != setKey {
		return nil
	}
	if rec.Value == nil {
		return nil // no build writes a tombstone here
	}
	if key == setKey {
		var row setInForce
		if err := json.Unmarshal(rec.Value, &row); err != nil {
			return err
		}
		s.inForce = row.Number
		return nil
	}
	set := new(RouteSet)
	if err := json.Unmarshal(rec.Value, set); err != nil {
		return err
	}
	if strconv.FormatInt(set.Number, 10) != number {
		return fmt.Errorf("it has number %d", set.Number)
	}
	if s.all == nil {
		s.all = map[int64]*RouteSet{}
	}
	set.storedAt = rec.Timestamp.UnixMilli()
	s.all[set.Number] = set
	return nil
}

// read parses the texts of the sets. Its error names a set that this build cannot read.
func (s *Sets) read() error {
	if err := s.unread.first(); err != nil {
		return err
	}
	if s.inForce > 0 && s.all[s.inForce] == nil {
		return kafka.OperatorErrorf("route set %d is in force, but its row is gone from the manifest topic: restore it, or use another ONCEBUS_APP_ID", s.inForce)
	}
	for _, number := range slices.Sorted(maps.Keys(s.all)) {
		set := s.all[number]
		if set.routes != nil {
			continue
		}
		routes, err := rules.ParseRoutes(fmt.Sprintf("route set %d", number), []byte(set.Text))
		if err != nil {
			return kafka.OperatorErrorf("this build cannot read route set %d of the app: run the build that wrote it, or a later one\n%v", number, err)
		}
		set.routes = routes
	}
	return nil
}

// current returns the set in force; nil at level 1.
func (s *Sets) current() *RouteSet {
	if s == nil {
		return nil
	}
	return s.all[s.inForce]
}

// SetAt returns the routes of a route set, and when the set came in force; nil if the app has no set with the
// number.
func (rt *App) SetAt(number int64) (*rules.Routes, time.Time) {
	if rt.Manifest.sets == nil || rt.Manifest.sets.all[number] == nil {
		return nil, time.Time{}
	}
	set := rt.Manifest.sets.all[number]
	return set.routes, set.At
}

// olderThan returns the sets with smaller numbers, the newest set first.
func (s *Sets) olderThan(number int64) (older []*RouteSet) {
	if s == nil {
		return nil
	}
	for n := number - 1; n > 0; n-- {
		if set := s.all[n]; set != nil {
			older = append(older, set)
		}
	}
	return older
}

// with returns the sets with one more set, which is in force.
func (s *Sets) with(next *RouteSet) *Sets {
	all := maps.Clone(s.all)
	if all == nil {
		all = map[int64]*RouteSet{}
	}
	all[next.Number] = next
	return &Sets{inForce: next.Number, all: all}
}

// clone returns a copy that take may change.
func (s *Sets) clone() *Sets { return &Sets{inForce: s.inForce, all: maps.Clone(s.all)} }

// withShadows returns the routes of a set, followed by the routes of their shadows.
func withShadows(routes *rules.Routes) []*rules.Route {
	all := slices.Clone(routes.Routes)
	for _, r := range routes.Routes {
		if r.Shadow != nil {
			all = append(all, r.Shadow.Route)
		}
	}
	return all
}

// retired returns the routes of older sets whose names are not in the set in force, each as the newest older
// set has it. The app still needs them, because their records may still come.
func (s *Sets) retired() (routes []*rules.Route) {
	current := s.current()
	if current == nil {
		return nil
	}
	has := map[string]bool{}
	for _, r := range withShadows(current.routes) {
		has[r.Name], has[r.WireName()] = true, true
	}
	for _, set := range s.olderThan(current.Number) {
		for _, r := range withShadows(set.routes) {
			if !has[r.Name] {
				has[r.Name] = true
				routes = append(routes, r)
			}
			has[r.WireName()] = true // before the promotion the route was a shadow with this name, so do not add that
		}
	}
	return routes
}

// formerOutcomes returns the outcomes topics of former routes that the app still reads.
func (s *Sets) formerOutcomes() []FormerOutcomes {
	if current := s.current(); current != nil {
		return current.Outcomes
	}
	return nil
}

// spanOf returns the window of a namespace as of a set: the window in the newest set, up to that one, that has
// the namespace.
func (s *Sets) spanOf(number int64, namespace string) (dedup.Window, bool) {
	for _, set := range s.olderThan(number + 1) {
		for _, r := range withShadows(set.routes) {
			if r.Namespace == namespace {
				return r.Span(), true
			}
		}
	}
	return dedup.Window{}, false
}

// history returns the routes and namespaces that the app had before the set in force.
func (m *Manifest) history() routesets.History {
	h := routesets.History{Namespaces: map[string]routesets.Namespace{}}
	for _, set := range m.sets.olderThan(m.sets.inForce) {
		h.Former = append(h.Former, set.routes)
	}
	for _, n := range m.Namespaces {
		h.Namespaces[n.Name] = routesets.Namespace{KeyRule: n.KeyRule, Mode: n.Mode}
	}
	return h
}

// setRows returns the two rows that put a set in force: the set and its number.
func setRows(set *RouteSet) ([]*kgo.Record, error) {
	text, err := encodeRow(setPrefix+strconv.FormatInt(set.Number, 10), set)
	if err != nil {
		return nil, err
	}
	number, err := encodeRow(setKey, setInForce{Number: set.Number, By: set.By, At: set.At})
	return []*kgo.Record{text, number}, err
}
