package front

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// Promoted is the result of a promotion.
type Promoted struct {
	Route     string `json:"route"`
	Namespace string `json:"namespace"`
	Set       int64  `json:"set"` // the route set in force
	// HeldMS is how long the input was held, in ms; 0 if an earlier command held it.
	HeldMS int64 `json:"held_ms"`
}

// PromotionStep is a step of a promotion, for the operator who watches it. Package app describes the steps.
type PromotionStep string

// Steps of a promotion, in their order.
const (
	StepHeld   PromotionStep = "held"   // the hold is in force
	StepJudged PromotionStep = "judged" // the tasks have judged all that was routed
	StepJoined PromotionStep = "joined" // all tasks have begun the shadow
	StepActed  PromotionStep = "acted"  // the new set is in force
	StepDone   PromotionStep = "done"   // the hold has ended
)

// Promote makes the shadow of the file's route the key rule of the route. For this it holds the input. If the
// promotion cannot put the new route set in force (the act) within the limit, Promote ends the hold and leaves
// the old set in force. It calls did after each step; if the file is already in force, it takes no step.
func (c *Changer) Promote(ctx context.Context, by string, limit time.Duration, did func(PromotionStep)) (*Promoted, error) {
	p, err := c.promote(ctx, by, limit, did)
	return p, c.explain(err)
}

func (c *Changer) promote(ctx context.Context, by string, limit time.Duration, did func(PromotionStep)) (*Promoted, error) {
	found, err := app.Find(ctx, c.conn.Client, c.cfg.AppID, c.routes)
	if err == nil {
		err = found.Ran()
	}
	if err != nil {
		return nil, err
	}
	d := &Decider{cfg: c.cfg, routes: c.routes, conn: c.conn, topology: found.Topology}
	plan, err := found.Plan(ctx, c.conn, c.cfg, c.options(app.ApplyOptions{}))
	if err != nil {
		return nil, err
	}
	if len(plan.Changes) == 0 {
		return c.finish(ctx, d, plan.Set, did)
	}
	namespace, err := plan.PromotionOf()
	if err != nil {
		return nil, err
	}
	if _, err := c.promotable(ctx, namespace); err != nil {
		return nil, err
	}
	began := time.Now()
	hold, err := app.BeginPromotion(ctx, c.conn, c.cfg, d.topology, app.NewPromotionHold(namespace, by, limit))
	if err != nil {
		return nil, err
	}
	did(StepHeld)
	state, set, err := c.act(ctx, d, namespace, hold, limit, by, did)
	if err != nil {
		return nil, errors.Join(err, c.giveUp(ctx, d, hold))
	}
	did(StepActed)
	hold.Set = set
	p := &Promoted{Route: state.Route, Namespace: namespace, Set: set}
	if err := c.end(ctx, d, hold); err != nil {
		return nil, err
	}
	p.HeldMS = time.Since(began).Milliseconds()
	did(StepDone)
	return p, nil
}

// promotable returns the state of a shadow that can be promoted, as of the tasks' last transactions.
func (c *Changer) promotable(ctx context.Context, namespace string) (*app.ShadowState, error) {
	rt, tasks, err := c.readTasks(ctx)
	if err != nil {
		return nil, err
	}
	state, ok := app.StateOf(rt.Shadows(tasks), namespace)
	if !ok {
		return nil, kafka.OperatorErrorf("no shadow %s is in force", namespace)
	}
	err = state.Check()
	return state, err
}

// act takes the steps of a promotion up to and including the one that puts the new set in force.
func (c *Changer) act(ctx context.Context, d *Decider, namespace string, hold *app.Hold, limit time.Duration, by string, did func(PromotionStep)) (*app.ShadowState, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for range 2 { // twice, because the tasks send their last records to shadows when they judge the last events
		if _, err := d.AwaitHold(ctx, nil); err != nil {
			return nil, 0, fmt.Errorf("wait until all input is held and judged: %w", err)
		}
	}
	did(StepJudged)
	found, err := app.Find(ctx, c.conn.Client, c.cfg.AppID, c.routes)
	if err != nil {
		return nil, 0, err
	}
	if err := c.joined(ctx, d, found.App().Set); err != nil {
		return nil, 0, err
	}
	did(StepJoined)
	state, err := c.promotable(ctx, namespace)
	if err != nil {
		return nil, 0, err
	}
	set, err := app.Promote(ctx, c.conn, c.cfg, found, state, hold, by)
	return state, set, err
}

// joined waits until the newest checkpoints of all tasks name a set.
func (c *Changer) joined(ctx context.Context, d *Decider, set int64) error {
	for {
		left, err := app.Unjoined(ctx, c.conn, d.topology, set)
		if err != nil || len(left) == 0 {
			return err
		}
		if err := kafka.Pause(ctx, holdPoll); err != nil {
			return fmt.Errorf("wait until task %v and %d others judge by route set %d: %w", left[0], len(left)-1, set, err)
		}
	}
}

// end waits until all tasks have joined the new set, and then ends the hold.
func (c *Changer) end(ctx context.Context, d *Decider, hold *app.Hold) error {
	for {
		left, err := app.EndPromotion(ctx, c.conn, c.cfg, d.topology, hold)
		if err != nil || len(left) == 0 {
			return err
		}
		if err := kafka.Pause(ctx, holdPoll); err != nil {
			return fmt.Errorf("the promotion has acted, and the processes end it by themselves; task %v and %d others have not joined route set %d: %w", left[0], len(left)-1, hold.Set, err)
		}
	}
}

// finish ends the hold of a promotion whose new set is already in force, if the processes have not ended the
// hold yet.
func (c *Changer) finish(ctx context.Context, d *Decider, set int64, did func(PromotionStep)) (*Promoted, error) {
	rows, err := app.ReadRows(ctx, c.conn.Client, d.topology)
	if err != nil {
		return nil, err
	}
	hold, err := app.HoldIn(rows)
	if err != nil {
		return nil, err
	}
	if hold.IsPromotion() && hold.Set > 0 {
		if err := c.end(ctx, d, hold); err != nil {
			return nil, err
		}
		did(StepDone)
	}
	return &Promoted{Set: set}, nil
}

// giveUp ends the hold of a promotion whose new set is not in force.
func (c *Changer) giveUp(ctx context.Context, d *Decider, hold *app.Hold) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return app.AbortPromotion(ctx, c.conn, c.cfg, d.topology, hold)
}
