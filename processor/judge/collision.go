package judge

import (
	"context"
	"log/slog"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// applyCollisionPolicy applies the route's policy to an event with the key of another
// event.
func (t *Judge) applyCollisionPolicy(j *Judging, ev *event, stored *dedup.Row) {
	t.markCollision(j, ev, stored)
	j.byPolicy(ev, ev.route.Collision)
}

// markCollision makes an event a collision with the stored one. It logs it, because the key
// derivation may be wrong. A collision that only its sender has to know is no alarm: it is one
// client that used a key again.
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
