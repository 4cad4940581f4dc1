package front

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/routesets"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/security"
)

// A Changer changes the routes of an app while the app runs, for commands such as plan, apply and promote.
type Changer struct {
	cfg    app.Config
	routes *rules.Routes // routes of the file
	conn   app.Conn
	redact *security.Redactor
	extra  []kgo.Opt
}

// NewChanger returns a Changer to a routes file. It does not connect yet.
func NewChanger(cfg app.Config, routes *rules.Routes, log *slog.Logger, extra ...kgo.Opt) (*Changer, error) {
	conn, redact, err := connect(cfg, log, extra)
	if err != nil {
		return nil, err
	}
	return &Changer{cfg: cfg, routes: routes, conn: conn, redact: redact, extra: extra}, nil
}

// Close ends the connections.
func (c *Changer) Close() { c.conn.Client.Close() }

func (c *Changer) explain(err error) error {
	return c.redact.Err(security.ExplainCredentials(err, c.cfg.SASL))
}

// Plan returns what the file would change. forget are the namespaces whose stored keys the operator allows to
// be lost.
func (c *Changer) Plan(ctx context.Context, forget []string) (*app.Applied, error) {
	a, err := c.plan(ctx, forget)
	return a, c.explain(err)
}

func (c *Changer) plan(ctx context.Context, forget []string) (*app.Applied, error) {
	found, err := app.Find(ctx, c.conn.Client, c.cfg.AppID, c.routes)
	if err != nil {
		return nil, err
	}
	a, err := found.Plan(ctx, c.conn, c.cfg, c.options(app.ApplyOptions{Forget: forget}))
	if err != nil || a.Worst() == routesets.Refused {
		return a, err
	}
	rt := found.App()
	if len(rt.PlanWindows(nil, c.routes)) == 0 {
		return a, nil
	}
	tasks, err := readCheckpoints(ctx, c.conn.Client, rt, c.conn.Log, nil)
	a.Windows = rt.PlanWindows(tasks, c.routes)
	return a, err
}

// Shadows returns the states of the shadows in force, as of the tasks' last transactions.
func (c *Changer) Shadows(ctx context.Context) ([]app.ShadowState, error) {
	rt, tasks, err := c.readTasks(ctx)
	if err != nil {
		return nil, c.explain(err)
	}
	return rt.Shadows(tasks), nil
}

// readTasks reads the app's present manifest, and the newest checkpoints of its tasks.
func (c *Changer) readTasks(ctx context.Context) (*app.App, []app.TaskCheckpoint, error) {
	found, err := app.Find(ctx, c.conn.Client, c.cfg.AppID, c.routes)
	if err == nil {
		err = found.Ran()
	}
	if err != nil {
		return nil, nil, err
	}
	rt := found.App()
	tasks, err := readCheckpoints(ctx, c.conn.Client, rt, c.conn.Log, nil)
	return rt, tasks, err
}

// Apply makes the routes of the file the route set in force, see app.Apply.
func (c *Changer) Apply(ctx context.Context, o app.ApplyOptions) (*app.Applied, error) {
	a, err := app.Apply(ctx, c.conn, c.cfg, c.routes, c.options(o))
	return a, c.explain(err)
}

// Finalize raises the level of the app, see app.Finalize.
func (c *Changer) Finalize(ctx context.Context, by string) (*app.Finalized, error) {
	f, err := app.Finalize(ctx, c.conn, c.cfg, c.routes, by)
	return f, c.explain(err)
}

func (c *Changer) options(o app.ApplyOptions) app.ApplyOptions {
	o.OpenClaims = c.openClaims
	return o
}

// openClaims returns the number of claims without an outcome by namespace, as of the tasks' last transactions.
// It returns nil if a task has not counted its claims yet.
func (c *Changer) openClaims(ctx context.Context) (map[string]uint64, error) {
	inspector, err := NewInspector(ctx, c.cfg, c.routes, c.conn.Log, c.extra...)
	if err != nil {
		return nil, err
	}
	defer inspector.Close()
	tasks, err := inspector.readStats(ctx)
	open := map[string]uint64{}
	for _, t := range tasks {
		if t.uncounted {
			return nil, err
		}
		for _, k := range t.Keys {
			if k.Status == dedup.ClaimInProgress.String() || k.Status == dedup.Submitted.String() {
				open[k.Namespace] += k.Total
			}
		}
	}
	return open, err
}

// Taken says which of the live processes already use a route set.
type Taken struct {
	Live    []string `json:"live"` // instance ids
	Missing []string `json:"missing,omitempty"`
}

// awaitInterval is the time between two checks of the processes. silentMax is how long a command waits before
// it says what it is waiting for.
const awaitInterval, silentMax = 200 * time.Millisecond, 10 * time.Second

// Await waits until all live processes use a route set, or ctx is done. In the latter case it returns the
// result of the last check that was completed.
func (c *Changer) Await(ctx context.Context, set int64) (Taken, error) {
	var last *Taken
	for began, silent := time.Now(), true; ; {
		taken, err := c.taken(ctx, set)
		cut := ctx.Err() != nil
		if err == nil {
			last = &taken
			if len(taken.Missing) == 0 {
				return taken, nil
			}
			if silent && time.Since(began) > silentMax {
				silent = false
				c.conn.Log.Warn("waiting for processes to take the set: see their /readyz and /state", "set", set, "instances", taken.Missing)
			}
		}
		switch {
		case kafka.Pause(ctx, awaitInterval) == nil:
		case cut && last != nil:
			return *last, nil
		default:
			return taken, c.explain(err)
		}
	}
}

func (c *Changer) taken(ctx context.Context, set int64) (Taken, error) {
	live, err := app.LiveInstances(ctx, c.conn, c.cfg.AppID)
	if err != nil {
		return Taken{}, err
	}
	seen, err := app.ReadSeen(ctx, c.conn, c.cfg.AppID)
	if err != nil {
		return Taken{}, err
	}
	missing := slices.DeleteFunc(slices.Clone(live), func(i string) bool { return seen[i].Set >= set })
	return Taken{Live: live, Missing: missing}, nil
}
