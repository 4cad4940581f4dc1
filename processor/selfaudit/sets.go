package selfaudit

import (
	"context"
	"fmt"
	"time"

	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/oracle"
)

// adoptMax is a time after a new route set comes into force. Processes take the new set over within seconds,
// and report that; only until adoptMax is over, a process that has not reported it is assumed to use the
// previous set. After that, such a process is assumed to have ended.
const adoptMax = 5 * time.Minute

// firstSet returns the route set with which an app at level 2 began; 0 at level 1.
func (a *Auditor) firstSet() int64 { return min(a.app.Set, 1) }

// setOfAll returns the number of the newest route set that all processes have taken.
func (a *Auditor) setOfAll(ctx context.Context) (int64, error) {
	number := a.app.Set
	if number == 0 {
		return 0, nil
	}
	seen, err := app.ReadSeen(ctx, app.Conn{Client: a.client, Admin: a.admin}, a.cfg.AppID)
	if err != nil {
		return 0, err
	}
	for _, process := range seen {
		for number > max(process.Set, 1) {
			if _, at := a.app.SetAt(number); time.Since(at) > adoptMax {
				break
			}
			number--
		}
	}
	return number, nil
}

// isBehind reports whether a task has judged by a route set that the auditor has not read.
func (a *Auditor) isBehind(p *Position) bool {
	for _, c := range p.checkpoints {
		if c.Set > a.app.Set {
			return true
		}
	}
	return false
}

// windowsSince returns the windows of all route sets from this number on.
func (a *Auditor) windowsSince(number int64) (sets []oracle.Set) {
	for ; number > 0 && number <= a.app.Set; number++ {
		set := oracle.Set{Number: number}
		for id := range a.app.Namespaces {
			if span, ok := a.app.SpanAt(number, uint8(id)); ok {
				set.Windows = append(set.Windows, oracle.NamespaceWindow{NamespaceID: uint8(id), Window: span.Size, Grace: span.Grace})
			}
		}
		sets = append(sets, set)
	}
	return sets
}

// skewsSince returns the shortest and the longest skew, in ms, that the route had in the route sets from this
// number on.
func (a *Auditor) skewsSince(number int64, r *rules.Route) (shortest, longest int64) {
	least, most := r.Skew, r.Skew
	for ; number > 0 && number < a.app.Set; number++ {
		if set, _ := a.app.SetAt(number); set != nil && set.Route(r.Name) != nil {
			skew := set.Route(r.Name).Skew
			least, most = min(least, skew), max(most, skew)
		}
	}
	return least.Milliseconds(), most.Milliseconds()
}

// changedSince returns the changes of the routes since a route set because of which the verdicts of a range
// across them cannot be checked. A changed window is not such a change, because the changelog says with which
// window a task has judged. An added route is not such a change either, because its records are separate.
func (a *Auditor) changedSince(number int64) (changes []string) {
	for ; number > 0 && number < a.app.Set; number++ {
		before, _ := a.app.SetAt(number)
		after, _ := a.app.SetAt(number + 1)
		if before == nil || after == nil {
			changes = append(changes, fmt.Sprintf("route set %d or %d is unknown", number, number+1))
			continue
		}
		for _, c := range routesets.Compare(before, after, routesets.History{}, nil) {
			if !isFollowed(&c) {
				changes = append(changes, fmt.Sprintf("route set %d: %s: %s", number+1, c.Route, c.What))
			}
		}
	}
	return changes
}

// movedSince returns a reason if the keys have moved to other partitions since a position: a range across the
// move cannot be checked, because the changelogs of the new partitions have only the rows that existed at the
// move.
func (a *Auditor) movedSince(p *Position) []string {
	topic := a.app.Topology.Repartition
	if _, known := p.Topics[topic]; known || topic == "" {
		return nil
	}
	for earlier := range p.Topics {
		if app.GenerationOf(a.cfg.AppID, earlier) > 0 {
			return []string{moved(topic)}
		}
	}
	return nil
}

func moved(topic string) string { return "the keys were moved to topic " + topic }

// isFollowed reports whether a range across this change can be checked.
func isFollowed(c *routesets.Change) bool {
	switch c.Field {
	case "window", "grace", "skew", "sender", "http":
		return true
	case "":
		return c.Kind == routesets.Harmless // a route that was added, with its own topics
	}
	return false
}
