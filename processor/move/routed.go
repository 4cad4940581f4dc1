package move

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"oncebus/dedup/routesets"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// A move with ToRouted also closes the tasks of prepartitioned topics. The act puts the caller's routes file in
// force, in which these topics are routed, and which differs from the previous route set in nothing else. In
// each partition of these topics, the routing stage begins at the offset of the closed checkpoint of the
// partition's task. In a partition that was added since, it begins at the start.

// routedInputs returns the topics that are routed in the caller's routes file and prepartitioned in the app. It
// is an operator error if the file changes anything else.
func (m *Mover) routedInputs() (inputs []app.SwitchInput, err error) {
	for _, change := range routesets.Compare(m.app.InForce, m.routes, routesets.History{}, nil) {
		if change.Field != "prepartitioned" {
			return nil, kafka.OperatorErrorf("the routes file differs from the set in force in more than `prepartitioned`: route %s: %s; apply that first, or afterwards: oncebus plan", change.Route, change.What)
		}
		route := m.routes.Route(change.Route)
		if route.Prepartitioned {
			return nil, kafka.OperatorErrorf("route %s has `prepartitioned` in the routes file, and is routed: the way back is another ONCEBUS_APP_ID", route.Name)
		}
		topic := route.Topics[0]
		if !slices.ContainsFunc(inputs, func(in app.SwitchInput) bool { return in.Topic == topic }) {
			inputs = append(inputs, app.SwitchInput{Topic: topic, Partitions: m.app.Topology.Topics[topic].Partitions})
		}
	}
	if len(inputs) == 0 {
		return nil, kafka.OperatorErrorf("no route becomes routed: leave `prepartitioned` out of the routes that --to-routed has to move")
	}
	return inputs, nil
}

// resumed returns the switch that has begun, if the options ask for the same switch.
func (m *Mover) resumed(before *app.Switch, o *Options) (*app.Switch, error) {
	if o.ToRouted != (len(before.Inputs) > 0) || o.Partitions != before.To && !(o.ToRouted && o.Partitions == 0) {
		return nil, before.Other()
	}
	if o.ToRouted && !before.Phase.HasActed() {
		inputs, err := m.routedInputs()
		if err != nil {
			return nil, err
		}
		if !slices.Equal(inputs, before.Inputs) {
			return nil, before.Other()
		}
	}
	return before, nil
}

// late returns a text that tells which events of a prepartitioned topic would become late, because the new
// tasks begin with the stream time of the most advanced old task; "" if there are none. closed has the
// checkpoints of the sources. A task that has judged all records of its partition has no events that could
// become late.
func (r *run) late(ctx context.Context, closed []wire.Checkpoint) (string, error) {
	if r.o.LateOK {
		return "", nil
	}
	behind := map[app.TaskID]string{}
	for _, route := range r.app.Routes {
		if route.Prepartitioned && !route.Retired {
			r.findBehind(route, closed, behind)
		}
	}
	for _, in := range r.sw.Inputs {
		if !slices.ContainsFunc(r.copier.sources, func(id app.TaskID) bool { return id.Topic == in.Topic && behind[id] != "" }) {
			continue
		}
		ends, err := app.Ends(ctx, r.conn, in.Topic)
		if err != nil {
			return "", err
		}
		unread, err := app.Undrained(ctx, r.conn, r.app.Topology, in.Topic, ends)
		if err != nil {
			return "", err
		}
		for _, id := range unread {
			if behind[id] != "" {
				return behind[id], nil
			}
		}
	}
	return "", nil
}

// findBehind adds the tasks of a route's topic whose stream time is behind that of another task by more than
// the grace period.
func (r *run) findBehind(route *app.Route, closed []wire.Checkpoint, behind map[app.TaskID]string) {
	times := map[app.TaskID]int64{}
	for n, id := range r.copier.sources {
		if s := &closed[n].StreamTimes; id.Topic == route.Topics[0] && s.Has[route.NamespaceID] {
			times[id] = s.At[route.NamespaceID]
		}
	}
	if len(times) == 0 {
		return
	}
	newest := slices.Max(slices.Collect(maps.Values(times)))
	for id, at := range times {
		if by := time.Duration(newest-at) * time.Millisecond; by > route.Grace {
			behind[id] = fmt.Sprintf("%v is %v of event time behind, more than the grace period of route %s, so its unread records would be late: let it catch up, or permit that with --late-ok", id, by, route.Name)
		}
	}
}
