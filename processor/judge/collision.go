package judge

import (
	"context"
	"log/slog"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// lookUpCollision looks up the row of the event's second key (its key combined with its fingerprint),
// in a route that forwards collisions. own is the row of the event's first key; nil for none.
func (t *Judge) lookUpCollision(ev *event, c *candidate, own *dedup.Row) error {
	second, found, err := t.Store.Get(dedup.CollisionDigest(c.event.Digest, ev.Fingerprint))
	if err != nil {
		return err
	}
	if own != nil && c.event.Collides(own, c.window, c.streamTime) {
		c.collided = own
	}
	c.prior, c.hasPrior = c.event.PriorOfCollision(c.prior, c.hasPrior, second, found, c.collided != nil, c.window, c.streamTime)
	return nil
}

// applyCollisionPolicy applies the route's collision policy to an event that has the key of another
// event.
func (t *Judge) applyCollisionPolicy(j *Judging, ev *event, stored *dedup.Row) {
	t.markCollision(j, ev, stored)
	j.byPolicy(ev, ev.route.Collision)
}

// markCollision gives an event the verdict collision with the stored row. It logs the collision as an
// error, because the key derivation of the route may be wrong. If the policy is reject, only the sender
// has to know: it used a key again, which is no alarm for the operator.
func (t *Judge) markCollision(j *Judging, ev *event, stored *dedup.Row) {
	level := slog.LevelInfo
	if ev.route.Collision != rules.Reject {
		level = slog.LevelError
		j.count(ev.route, collisions)
	}
	ev.verdict, ev.first = dedup.Collision, stored
	ev.reason = "the key of another event, whose details differ: the fields of fingerprint do not agree"
	if !t.mayLog(lineCollision) {
		return
	}
	t.Log.LogAttrs(context.Background(), level, "collision: two events with one key and different details",
		slog.String("route", ev.route.Name), slog.String("key", wire.KeyText(ev.dedupKey())),
		slog.String("event", string(t.App.PositionText(ev.from))), slog.String("first", string(t.App.PositionText(stored.At))))
}
