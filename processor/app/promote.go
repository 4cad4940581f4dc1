package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/routesets"
	"oncebus/processor/kafka"
)

// A promotion puts the key rule of a shadow in force, in the steps below. If the command is killed, it leaves
// nothing that has to be repaired, and another run of the command can repeat every step:
//
//	hold  routers commit and pause, the ingress responds with 503; the hold has a limit
//	drain the tasks judge all that was routed, and then all that they sent to shadows
//	join  the checkpoint of every task names the set in force: every task has begun the shadow
//	act   one transaction writes the next set, and takes the limit from the hold
//	join  the checkpoint of every task names the new set; then the hold ends
//
// After the act, a task that has joined the new set judges no record with a key of the old rule. The record
// waits until the hold is over. The task then derives the key of the record again and forwards the record to the
// task of the new key. Records with new keys are first written when all tasks have joined. In the log of each
// task they therefore come after all shadow records, and so the task finds the rows of all emitted events when
// it judges them. The drain is not what prevents that an event is emitted twice: it only makes the pause short.
//
// After the act, any process ends the hold once all tasks have joined the new set.

// IsPromotion reports whether the hold is part of a promotion, which then ends it.
func (h *Hold) IsPromotion() bool { return h != nil && strings.HasPrefix(h.Switch, promotionPrefix) }

// promotionPrefix begins the field Switch of a promotion's hold. The hold of a move has another prefix there.
const promotionPrefix = "promote/"

// NewPromotionHold returns a hold for the promotion of a shadow's namespace.
func NewPromotionHold(namespace, by string, limit time.Duration) *Hold {
	h := NewHold("promotion of shadow "+namespace, by, limit)
	h.Switch = promotionPrefix + namespace
	return h
}

// PromotionOf returns the namespace of the shadow that a routes file puts in force. It returns an operator
// error if the file promotes no shadow or several, or changes anything else that is not harmless.
func (a *Applied) PromotionOf() (namespace string, err error) {
	for _, c := range a.Changes {
		switch {
		case c.Promotes != "" && namespace != "":
			return "", kafka.OperatorErrorf("the file promotes shadows %s and %s: promote one at a time", namespace, c.Promotes)
		case c.Promotes != "":
			namespace = c.Promotes
		case c.Kind != routesets.Harmless:
			return "", kafka.OperatorErrorf("the file also changes something else: route %s: %s; apply that before or after the promotion", c.Route, c.What)
		}
	}
	if namespace == "" {
		return "", kafka.OperatorErrorf("the file promotes no shadow: write its key as that of the route, and `namespace: NAME~SHADOW`, as oncebus shadow shows it; leave `shadow` out")
	}
	return namespace, nil
}

// Unjoined returns the tasks of the repartition topic whose newest checkpoint belongs to a route set older than
// set.
func Unjoined(ctx context.Context, c Conn, t *Topology, set int64) (left []TaskID, err error) {
	name := ChangelogName(t.App, t.Repartition)
	if t.Topics[t.Repartition].Partitions == 0 || t.Topics[name].Partitions == 0 {
		return nil, fmt.Errorf("%w: the partitions of %s and its changelog are not known", kafka.ErrIllegalState, t.Repartition)
	}
	for partition := range t.Topics[t.Repartition].Partitions {
		last, _, err := LastCheckpoint(ctx, kafka.NewReader(c.Client, name, t.Topics[name].ID, partition))
		if err != nil {
			return nil, err
		}
		if newest := last.Newest(); newest.Set < set {
			left = append(left, TaskID{Topic: t.Repartition, Partition: partition})
		}
	}
	return left, nil
}

// Promote writes the route set that puts a shadow in force, and changes the hold so that it ends only when all
// tasks have joined this set. It returns an operator error if the hold has ended, or if another set was put in
// force meanwhile.
func Promote(ctx context.Context, c Conn, cfg Config, found *Found, state *ShadowState, hold *Hold, by string) (set int64, err error) {
	current := found.Manifest.sets.current()
	next := newRouteSet(current.Number+1, found.file, by)
	next.Outcomes = current.Outcomes
	next.Promoted = []Promoted{{Namespace: state.Namespace, LateBefore: state.lateBefore()}}
	s := found.Manifest.setupBy(c, cfg, found.Manifest.sets.with(next), found.file)
	t, err := s.setUpTopics(ctx)
	if err != nil {
		return 0, err
	}
	rows, err := setRows(next)
	if err != nil {
		return 0, err
	}
	acted := *hold
	acted.LimitMS, acted.Set, acted.At = 0, next.Number, time.Now().UTC().Truncate(time.Second)
	row, err := encodeRow(holdKey, &acted)
	if err != nil {
		return 0, err
	}
	err = s.editManifest(ctx, t, func(now *Manifest) error {
		if now.sets.inForce != current.Number || now.generation().number != t.Generation {
			return kafka.OperatorErrorf("route set %d or other partitions were put in force meanwhile: repeat the promotion", now.sets.inForce)
		}
		if err := s.checkHold(ctx, t, hold); err != nil {
			return err
		}
		_, err := now.reconcile(t, found.file, cfg.KeySecret.Bytes())
		return err
	}, append(rows, row)...)
	if isFenced(err) {
		err = kafka.OperatorErrorf("another command changed the app meanwhile: repeat the promotion")
	}
	return next.Number, err
}

// checkHold returns an operator error unless this hold is in force and its promotion has not acted yet.
func (s *setup) checkHold(ctx context.Context, t *Topology, hold *Hold) error {
	rows, err := ReadRows(ctx, s.Client, t)
	if err != nil {
		return err
	}
	h, err := HoldIn(rows)
	if err == nil && (h == nil || h.ID != hold.ID || h.Set != 0) {
		err = errHoldEnded
	}
	return err
}

var errHoldEnded = kafka.OperatorErrorf("the hold of the promotion has ended, its limit has passed: nothing has changed; repeat the promotion, with a longer --timeout")

// lateBefore returns the event time, in ms, before which an event is late by the promoted rule: such an event
// may be a copy of an event that was emitted before the shadow began.
func (s *ShadowState) lateBefore() int64 {
	if s.since == dedup.NoStreamTime {
		return math.MinInt64
	}
	return s.since + s.window.Size + 1
}

// EndPromotion ends the hold after the act of a promotion if all tasks have joined the promotion's set.
// Otherwise it returns the tasks that have not.
func EndPromotion(ctx context.Context, c Conn, cfg Config, t *Topology, hold *Hold) (left []TaskID, err error) {
	if left, err = Unjoined(ctx, c, t, hold.Set); err != nil || len(left) > 0 {
		return left, err
	}
	_, err = Release(ctx, c, cfg, t, hold.ID)
	return nil, err
}

// BeginPromotion puts the hold of a promotion in force and returns it. If an earlier command for the same
// shadow has already acted under its hold, it returns that hold.
func BeginPromotion(ctx context.Context, c Conn, cfg Config, t *Topology, hold *Hold) (*Hold, error) {
	in := hold
	err := ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		before, err := HoldIn(rows)
		switch {
		case err != nil:
			return nil, err
		case before != nil && before.Switch == hold.Switch && before.Set > 0:
			in = before
			return nil, nil
		case before != nil && before.Switch != hold.Switch:
			return nil, kafka.OperatorErrorf("the app is held already, since %s: %s; end that first", before.At.Format(time.RFC3339), before.Reason)
		}
		in = hold // the limit begins now, also if this hold replaces that of an earlier command
		rec, err := encodeRow(holdKey, hold)
		return []*kgo.Record{rec}, err
	})
	return in, err
}

// StateOf returns the state of the shadow with a namespace; false if no such shadow is in force.
func StateOf(states []ShadowState, namespace string) (*ShadowState, bool) {
	i := slices.IndexFunc(states, func(s ShadowState) bool { return s.Namespace == namespace })
	if i < 0 {
		return nil, false
	}
	return &states[i], true
}

// ErrNotPromotable is wrapped by the error about a shadow that cannot be promoted, either not yet or never.
var ErrNotPromotable = errors.New("cannot be promoted")

// Check returns an operator error if the shadow cannot be promoted.
func (s *ShadowState) Check() error {
	if s.Promotable {
		return nil
	}
	return kafka.OperatorErrorf("%w", fmt.Errorf("shadow %s of route %s %w: %s: %s", s.Namespace, s.Route, ErrNotPromotable, s.Reason, s.Text()))
}

// AbortPromotion ends the hold of a promotion that has not acted yet.
func AbortPromotion(ctx context.Context, c Conn, cfg Config, t *Topology, hold *Hold) error {
	return ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		h, err := HoldIn(rows)
		if err != nil || h == nil || h.ID != hold.ID || h.Set > 0 {
			return nil, err
		}
		rec, err := encodeRow(holdKey, nil)
		return []*kgo.Record{rec}, err
	})
}
