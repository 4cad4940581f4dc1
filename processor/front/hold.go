package front

import (
	"context"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// HoldState is the progress of a hold.
type HoldState struct {
	Hold *app.Hold            // the hold in force; nil for none
	Held map[app.TaskID]int64 // the held partitions of the inputs, with the first offset that is held
	// NotHeld are the input partitions that a process may still read. Undrained are the tasks that have not yet
	// judged all routed records; they are only known once all partitions are held.
	NotHeld, Undrained []app.TaskID
}

// Complete reports whether all partitions are held and the tasks have judged all routed records.
func (s *HoldState) Complete() bool {
	return s.Hold != nil && len(s.NotHeld) == 0 && len(s.Undrained) == 0
}

// holdPoll is the time between two checks of a hold.
const holdPoll = 200 * time.Millisecond

// Hold begins a hold: the app stops reading its input.
func (d *Decider) Hold(ctx context.Context, hold *app.Hold) error {
	return hold.Begin(ctx, d.conn, d.cfg, d.topology)
}

// Release ends the hold in force, and returns it; nil if there was none.
func (d *Decider) Release(ctx context.Context) (*app.Hold, error) {
	return app.Release(ctx, d.conn, d.cfg, d.topology, "")
}

// TakeBack ends the hold of an app that leaves its cluster, see app.TakeBack.
func (d *Decider) TakeBack(ctx context.Context) (*app.Hold, error) {
	return app.TakeBack(ctx, d.conn, d.cfg, d.topology)
}

// Leave makes the hold of an app that leaves its cluster final, see app.Leave.
func (d *Decider) Leave(ctx context.Context) (*app.Hold, error) {
	return app.Leave(ctx, d.conn, d.cfg, d.topology)
}

// HoldState returns the progress of the hold in force.
func (d *Decider) HoldState(ctx context.Context) (*HoldState, error) {
	rows, err := app.ReadRows(ctx, d.conn.Client, d.topology)
	if err != nil {
		return nil, err
	}
	s := &HoldState{}
	if s.Hold, err = app.HoldIn(rows); err != nil || s.Hold == nil {
		return s, err
	}
	if s.Held, err = app.HeldIn(rows, s.Hold.ID); err != nil {
		return nil, err
	}
	if s.NotHeld, err = app.NotHeld(ctx, d.conn.Admin, d.topology, s.Held); err != nil || len(s.NotHeld) > 0 || d.topology.Repartition == "" {
		return s, err
	}
	ends, err := app.Ends(ctx, d.conn, d.topology.Repartition)
	if err == nil {
		s.Undrained, err = app.Undrained(ctx, d.conn, d.topology, d.topology.Repartition, ends)
	}
	return s, err
}

// AwaitHold waits until the hold in force is complete, and returns its last state. Unless progress is nil, it
// calls progress with each state. If ctx is done before the hold is complete, the error wraps the error of ctx.
func (d *Decider) AwaitHold(ctx context.Context, progress func(*HoldState)) (*HoldState, error) {
	last := &HoldState{}
	for {
		s, err := d.HoldState(ctx)
		if err != nil {
			return last, err
		}
		last = s
		if progress != nil {
			progress(s)
		}
		switch {
		case s.Hold == nil:
			return s, kafka.OperatorErrorf("the hold was released while it began")
		case s.Complete():
			return s, nil
		}
		if err := kafka.Pause(ctx, holdPoll); err != nil {
			return s, err
		}
	}
}
