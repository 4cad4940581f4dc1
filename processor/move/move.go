package move

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/hanging"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
	"oncebus/processor/switchover"
	"oncebus/processor/wire"
)

// Mover moves the keys of an app to other partitions. It works on any machine that reaches the brokers.
type Mover struct {
	cfg     app.Config
	routes  *rules.Routes
	options []kgo.Opt // options that every client needs
	conn    app.Conn
	redact  *security.Redactor
	leaders *kafka.Leaders
	app     *app.App
}

// New connects to the brokers and finds the app. It changes nothing. A missing app, or an app at level 1, is an
// operator error.
func New(ctx context.Context, cfg app.Config, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*Mover, error) {
	if err := errors.Join(cfg.Validate(), cfg.CheckSecret(routes.NeedsSecret())); err != nil {
		return nil, err
	}
	cfg = cfg.WithBudget()
	redact := security.NewRedactor(cfg.Config)
	log = slog.New(redact.Handler(log.Handler()))
	opts, err := security.ClientOptions(cfg.Config, prometheus.NewRegistry(), log, redact)
	if err != nil {
		return nil, err
	}
	opts = append(opts, extra...)
	client, err := kgo.NewClient(append(append([]kgo.Opt{kgo.RecordPartitioner(kgo.ManualPartitioner())}, opts...), cfg.FetchOptions()...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	m := &Mover{
		cfg: cfg, routes: routes, options: opts, redact: redact, leaders: kafka.NewLeaders(client),
		conn: app.Conn{Client: client, Admin: kadm.NewClient(client), Options: opts, Log: log, MaxDecompressedBatchBytes: cfg.BatchBytesMax()},
	}
	if err := m.find(ctx); err != nil {
		m.Close()
		return nil, m.explain(err)
	}
	return m, nil
}

// Close ends the connections.
func (m *Mover) Close() { m.conn.Client.Close() }

func (m *Mover) explain(err error) error {
	return m.redact.Err(security.ExplainCredentials(err, m.cfg.SASL))
}

// find reads the app from Kafka, and returns an operator error unless the app has the newest level.
func (m *Mover) find(ctx context.Context) error {
	found, err := app.Find(ctx, m.conn.Client, m.cfg.AppID, m.routes)
	if err == nil {
		err = found.Ran()
	}
	if err != nil {
		return err
	}
	if m.app = found.App(); m.app.Level < wire.LevelNewest {
		return kafka.OperatorErrorf("app %s is at level %d, and a move needs level %d: run 'oncebus finalize' once all processes have this build", m.cfg.AppID, m.app.Level, wire.LevelNewest)
	}
	return nil
}

// Options are an operator's options of a move.
type Options struct {
	// Partitions is the number of partitions to move to. With ToRouted, 0 stands for the number that the app
	// has or, if the app has no repartition topic yet, for the number that a new app gets.
	Partitions int32
	// ToRouted moves the keys of prepartitioned topics: of the topics that have no `prepartitioned` in the
	// caller's routes file. LateOK permits the move even if some events of a partition become late by it.
	ToRouted, LateOK bool
	Limit            time.Duration // how long the input may be held before the move is undone
	By               string        // who moves, for people
	// Progress, if not nil, is called with the progress of the move, several times a second.
	Progress func(*State)
	// StopBefore makes the run end before it writes this phase, as if it was killed; for tests.
	StopBefore switchover.Phase
}

// State is the progress of a move.
type State struct {
	Switch app.Switch
	// Left is how many changelog offsets are still to be copied. NotHeld has the partitions that a process may
	// still read, Undrained the tasks that still have records to judge, and Open the tasks that have not
	// closed. Each is set only in the phases that need it.
	Left                     int64
	NotHeld, Undrained, Open []app.TaskID
	// HeldFor is how long the input has been held so far, or was held.
	HeldFor time.Duration
	// Already reports that the app already had what the options ask for, so that Move did nothing.
	Already bool
}

// run is a run of the command that leads the switch.
type run struct {
	*Mover

	o      *Options
	sw     *app.Switch
	writer *hanging.Writer // with which the copier writes
	copier *copier
	routes *rules.Routes // routes that the act puts in force; nil unless topics become routed
	act    *app.Act
	state  State
	reads  reading
	held   time.Time // when the hold began, by the clock of whoever began it; zero before
	saw    time.Time // when this run saw the hold for the first time; zero before that
	looked bool      // this run has looked for a hold at least once
	reason string    // why the switch is undone
}

// ErrStopped ends a run because of Options.StopBefore.
var ErrStopped = errors.New("stopped by a test")

// Move moves the keys to another number of partitions, or continues a move that has begun. It returns the state
// at the end.
func (m *Mover) Move(ctx context.Context, o Options) (*State, error) {
	s, err := m.move(ctx, &o)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: run it again, it goes on where it stopped, or undo it with 'oncebus abort': %w", err)
	}
	return s, m.explain(err)
}

// move fences the copier of an earlier run, makes this run the leader of the switch, and leads the switch to its
// end.
func (m *Mover) move(ctx context.Context, o *Options) (*State, error) {
	rows, err := app.ReadRows(ctx, m.conn.Client, m.app.Topology)
	if err != nil {
		return nil, err
	}
	want, err := m.wanted(rows, o)
	if err != nil {
		return nil, err
	}
	if want.Phase == switchover.Done {
		return &State{Switch: *want, Already: true}, nil
	}
	before, err := app.SwitchIn(rows)
	if err != nil {
		return nil, err
	}
	writer, err := m.openCopier(ctx, before)
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	var leader [8]byte
	_, _ = rand.Read(leader[:]) // never fails
	want.Leader = hex.EncodeToString(leader[:])
	r := &run{Mover: m, o: o, writer: writer}
	if len(want.Inputs) > 0 {
		r.routes = m.routes
	}
	if r.sw, err = want.Lead(ctx, m.conn, m.cfg, m.app.Topology); err != nil {
		return nil, err
	}
	return r.lead(ctx)
}

// wanted returns the switch that the options ask for: a new switch, the switch that has begun, or a switch that
// is already done, so that an operator can repeat the command. It refuses a switch that is not possible.
func (m *Mover) wanted(rows app.Rows, o *Options) (*app.Switch, error) {
	before, err := app.SwitchIn(rows)
	if err != nil {
		return nil, err
	}
	if before != nil && !before.Phase.IsOver() {
		return m.resumed(before, o)
	}
	if done := m.done(before, o); done != nil {
		return done, nil
	}
	t := m.app.Topology
	want := &app.Switch{
		Phase: switchover.Preparing, From: t.Topics[t.Repartition].Partitions, To: o.Partitions,
		LimitMS: o.Limit.Milliseconds(), By: o.By, At: time.Now().UTC().Truncate(time.Second),
	}
	if o.ToRouted {
		if want.Inputs, err = m.routedInputs(); err != nil {
			return nil, err
		}
		if want.To == 0 {
			want.To = cmp.Or(want.From, m.cfg.Partitions)
		}
	}
	return want, m.refuse(rows, want)
}

// done returns a finished switch if the app already has what the options ask for; nil if it does not.
func (m *Mover) done(before *app.Switch, o *Options) *app.Switch {
	t := m.app.Topology
	has := t.Topics[t.Repartition].Partitions
	isDone := before != nil && before.Phase == switchover.Done && before.To == has
	switch {
	case t.Repartition == "":
		return nil
	case o.ToRouted:
		asked := o.Partitions == 0 || o.Partitions == has
		if isDone && len(before.Inputs) > 0 && asked && len(routesets.Compare(m.app.InForce, m.routes, routesets.History{}, nil)) == 0 {
			return before
		}
		return nil
	case o.Partitions != has:
		return nil
	case isDone:
		return before
	}
	return &app.Switch{Phase: switchover.Done, From: has, To: has}
}

// leadPoll is the time between two checks of the facts by the leader.
const leadPoll = 50 * time.Millisecond

// lead takes the switch through its phases.
func (r *run) lead(ctx context.Context) (*State, error) {
	for {
		rows, err := r.look(ctx)
		if err != nil {
			return nil, err
		}
		switch r.sw.Phase {
		case switchover.Done:
			return &r.state, nil
		case switchover.Aborted:
			return &r.state, kafka.OperatorErrorf("the move was undone: %s; nothing has changed, run it again", r.sw.Reason)
		case switchover.None, switchover.Preparing, switchover.Holding, switchover.Closing, switchover.Acted:
		}
		facts, err := r.gather(ctx, rows)
		if err != nil {
			return nil, err
		}
		if r.o.Progress != nil {
			r.o.Progress(&r.state)
		}
		next, ok := switchover.Decide(r.sw.Phase, facts)
		if ok {
			err = r.write(ctx, next)
		} else {
			err = kafka.Pause(ctx, leadPoll)
		}
		if err != nil {
			return nil, err
		}
	}
}

// look reads the rows of the manifest topic, and checks that this run still leads the switch.
func (r *run) look(ctx context.Context) (app.Rows, error) {
	rows, err := app.ReadRows(ctx, r.conn.Client, r.app.Topology)
	if err != nil {
		return nil, err
	}
	now, err := app.SwitchIn(rows)
	switch {
	case err != nil:
		return nil, err
	case now == nil || now.Number != r.sw.Number || now.Leader != r.sw.Leader:
		return nil, app.ErrReplaced
	}
	r.sw, r.state.Switch = now, *now
	r.observeHold(rows)
	return rows, nil
}

// write writes the next phase.
func (r *run) write(ctx context.Context, next switchover.Phase) error {
	if next == r.o.StopBefore {
		return ErrStopped
	}
	if next == switchover.Aborted {
		_, err := app.EndSwitch(ctx, r.conn, r.cfg, r.app.Topology, r.reason)
		return err
	}
	err := r.sw.Advance(ctx, r.conn, r.cfg, r.app.Topology, next, r.act)
	if errors.Is(err, app.ErrSetChanged) {
		_, err = app.EndSwitch(ctx, r.conn, r.cfg, r.app.Topology, err.Error())
	}
	return err
}

// observeHold keeps track of how long the input is held. A hold that this run finds at its first look was begun
// by an earlier run.
func (r *run) observeHold(rows app.Rows) {
	if hold, err := app.HoldIn(rows); err == nil && hold != nil && hold.ID == r.sw.HoldID() && r.held.IsZero() {
		r.saw = time.Now()
		if r.held = r.saw; !r.looked && hold.At.Before(r.saw) {
			r.held = hold.At
		}
	}
	r.looked = true
	if !r.held.IsZero() {
		r.state.HeldFor = time.Since(r.held)
	}
}

// preparedMax is a limit for the duration of a pass of copies: only when a pass has taken less, the hold may
// begin, because the last copies will then be quick, too.
const preparedMax = 2 * time.Second

// gather gathers the facts that the next phase needs.
func (r *run) gather(ctx context.Context, rows app.Rows) (f switchover.Facts, err error) {
	if r.sw.Phase == switchover.Acted {
		return f, nil
	}
	topic, changelog, err := app.CreateGeneration(ctx, r.conn, r.cfg, r.app.Topology, r.sw.Number, r.sw.To)
	if err != nil {
		return f, err
	}
	if r.copier == nil {
		if r.copier, err = r.newCopier(r.writer, r.sw, rows); err != nil {
			return f, err
		}
	}
	f.Undo = r.undo()
	if r.sw.Phase == switchover.Closing {
		err = r.gatherClosing(ctx, &f, topic.ID, changelog.ID)
		return f, err
	}
	began := time.Now()
	if err := r.copier.pass(ctx, r.watch); err != nil {
		return f, err
	}
	f.Prepared = time.Since(began) < preparedMax && r.reads.ended(app.FollowedIn(rows, r.sw.Number), r.sw, time.Now())
	if r.sw.Phase != switchover.Holding {
		return f, nil
	}
	held, err := app.HeldIn(rows, r.sw.HoldID())
	if err != nil {
		return f, err
	}
	if r.state.NotHeld, err = app.NotHeld(ctx, r.conn.Admin, r.app.Topology, held); err != nil {
		return f, err
	}
	if f.Held = len(r.state.NotHeld) == 0; !f.Held {
		return f, nil
	}
	if r.app.Topology.Repartition == "" {
		f.Drained = true // the tasks of prepartitioned topics read the held topics themselves
		return f, nil
	}
	ends, err := app.Ends(ctx, r.conn, r.app.Topology.Repartition) // the ends are read after the last held row
	if err == nil {
		r.state.Undrained, err = app.Undrained(ctx, r.conn, r.app.Topology, r.app.Topology.Repartition, ends)
	}
	f.Drained = len(r.state.Undrained) == 0
	return f, err
}

// watch reports how much is still to be copied.
func (r *run) watch(left int64) {
	r.state.Left = left
	if r.o.Progress != nil {
		r.o.Progress(&r.state)
	}
}

// undo reports whether the limit of the hold has passed since this run first saw the input held, by the clock of
// this run. The time in the hold may come from another clock, so undo does not use it: if an earlier run began
// the hold, undo is late. The processes then end the hold in time, because they go by the broker time of the hold.
func (r *run) undo() bool {
	limit := time.Duration(r.sw.LimitMS) * time.Millisecond
	if r.saw.IsZero() || limit == 0 || time.Since(r.saw) < limit {
		return false
	}
	r.reason = fmt.Sprintf("the input was held for more than %v; %s", limit, r.state.waits())
	return true
}

// waits tells in words what a move waits for.
func (s *State) waits() string {
	for _, w := range []struct {
		ids  []app.TaskID
		what string
	}{
		{s.NotHeld, "not held yet, so no process has it, or it waits for a decision (oncebus accept)"},
		{s.Undrained, "has records to judge"},
		{s.Open, "has not closed, so no process has it, or it cannot use its local state"},
	} {
		if len(w.ids) > 0 {
			return fmt.Sprintf("%v and %d more: %s", w.ids[0], len(w.ids)-1, w.what)
		}
	}
	return "the rows were not copied in time"
}

// closedOf returns the closed checkpoint that source number n has written for this switch; nil if it has not
// closed.
func (r *run) closedOf(ctx context.Context, n int) (*wire.Checkpoint, error) {
	last, start, err := app.LastCheckpoint(ctx, r.copier.readers[n])
	if err != nil {
		return nil, err
	}
	c := last.Newest()
	if !last.IsWhole() || c.Closed != r.sw.Number {
		return nil, nil
	}
	if c.Incomplete || start > c.Floor {
		return nil, kafka.OperatorErrorf("the changelog of %v has lost rows, it begins at offset %d and states the floor %d: run oncebus abort, and see 'oncebus accept'", r.copier.sources[n], start, c.Floor)
	}
	return &c, nil
}

// gatherClosing finds out whether all old tasks have closed and all their rows are copied.
func (r *run) gatherClosing(ctx context.Context, f *switchover.Facts, topic, changelog [16]byte) error {
	act := &app.Act{Topic: topic, Changelog: changelog, Set: r.app.Set, Routes: r.routes, Inputs: map[string][]int64{}}
	var closed []wire.Checkpoint
	r.state.Open = nil
	for n, id := range r.copier.sources {
		c, err := r.closedOf(ctx, n)
		if err != nil {
			return err
		}
		if c == nil {
			r.state.Open = append(r.state.Open, id)
			continue
		}
		if c.Set != r.app.Set {
			f.Undo, r.reason = true, fmt.Sprintf("the routes were changed meanwhile, from set %d to %d", r.app.Set, c.Set)
		}
		closed = append(closed, *c)
		if id.Topic == r.app.Topology.Repartition {
			act.Starts = append(act.Starts, c.Next)
		} else {
			act.Inputs[id.Topic] = append(act.Inputs[id.Topic], c.Next)
		}
	}
	if err := r.copier.pass(ctx, r.watch); err != nil { // after the closed checkpoints were read
		return err
	}
	if f.Closed = len(r.state.Open) == 0; !f.Closed || f.Undo {
		return nil
	}
	if late, err := r.late(ctx, closed); err != nil || late != "" {
		f.Undo, r.reason = late != "", late
		return err
	}
	if !r.copier.p.First {
		if err := r.copier.writeFirst(closed); err != nil {
			return err
		}
	}
	f.Copied, r.act = true, act
	return nil
}

// refuse returns why a move cannot begin and what the operator can do; nil if it can begin.
func (m *Mover) refuse(rows app.Rows, want *app.Switch) error {
	switch t := m.app.Topology; {
	case t.Repartition == "" && len(want.Inputs) == 0:
		return kafka.OperatorErrorf("all routes are prepartitioned: their producers choose the partition of a key, so the app has no partitions of its own; to give it some: oncebus move --to-routed")
	case want.To < 1 || want.To > app.PartitionsMax:
		return kafka.OperatorErrorf("--partitions %d is out of range, want 1 to %d", want.To, app.PartitionsMax)
	}
	var homeless []string
	for _, route := range m.app.Routes {
		stays := route.Prepartitioned && !slices.ContainsFunc(want.Inputs, func(in app.SwitchInput) bool { return in.Topic == route.Topics[0] })
		if !stays && (route.HasOrder() || route.ForwardsCollisions()) {
			homeless = append(homeless, route.Name)
		}
	}
	if len(homeless) > 0 {
		return kafka.OperatorErrorf("the rows of an `order` key and those of second keys (collision: forward) do not say in which partition they belong, so these routes cannot move: %v; use another ONCEBUS_APP_ID for them", slices.Compact(homeless))
	}
	if err := m.app.InForce.RefuseShadows("their counts say in which partitions a shadow has begun"); err != nil {
		return kafka.OperatorErrorf("%v", err)
	}
	if seeds, err := app.OpenSeeds(rows); err != nil {
		return err
	} else if len(seeds) > 0 {
		return kafka.OperatorErrorf("seeds have begun and not ended (%v): let 'oncebus seed' end first", seeds)
	}
	hold, err := app.HoldIn(rows)
	if err == nil && hold != nil {
		err = kafka.OperatorErrorf("the app is held, since %s: %s; end that first: oncebus release", hold.At.Format(time.RFC3339), hold.Reason)
	}
	return err
}
