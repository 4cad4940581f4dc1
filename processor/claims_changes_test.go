package processor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// claimsBeforeChange are the routes before each change: one route of claim mode, and one that stays as it is.
var claimsBeforeChange = fmt.Sprintf(claimRoutes, "wait") + strings.TrimPrefix(benchRoutes, "routes:\n")

// claimChanges are the changes of these routes, each as text to replace.
var claimChanges = map[string]struct {
	old, new string
	removes  bool // the route of claim mode
	audited  bool // otherwise an audit begins at the change
}{
	"longer window":    {old: "window: 1h\n    output: ops.run", new: "window: 5h\n    output: ops.run", audited: true},
	"shorter window":   {old: "window: 1h\n    output: ops.run", new: "window: 15m\n    output: ops.run", audited: true},
	"no waiting":       {old: "while_in_progress: wait", new: "while_in_progress: reject"},
	"shorter lease":    {old: "lease: 10m", new: "lease: 5m"},
	"another outcomes": {old: "ops.outcomes", new: "ops.done"},
	"another output":   {old: "ops.run", new: "ops.queue"},
	"another replies":  {old: "ops.replies", new: "ops.answers"},
	"second route": {old: "routes:\n", new: "routes:\n" + strings.NewReplacer("routes:\n", "", "name: ops", "name: late", "ops.raw", "late.raw", "ops.run", "late.run").
		Replace(fmt.Sprintf(claimRoutes, "wait")) + "    namespace: ops\n"},
	"route removed": {old: fmt.Sprintf(claimRoutes, "wait"), new: "routes:\n", removes: true},
}

// A claimChange is an app whose routes change while claims are open.
type claimChange struct {
	*bench

	cfg  processor.Config
	i    *instance
	sent map[string]string // the id of the operation, by request
}

// send sends events, and waits until they are judged.
func (c *claimChange) send(requests ...string) {
	c.t.Helper()
	for _, request := range requests {
		id, _, _ := strings.Cut(request, "-")
		c.sent[request] = id
		c.produce(operation(id, request, 0)) // one partition keeps their order
	}
	c.drain(c.i, "ops.raw")
}

// runs returns the dispatched events by operation.
func (c *claimChange) runs() map[string][]*kgo.Record {
	c.t.Helper()
	all := map[string][]*kgo.Record{}
	for _, topic := range []string{"ops.run", "ops.queue"} {
		for _, r := range c.read(topic) {
			var event struct{ ID string }
			must(c.t, json.Unmarshal(r.Value, &event))
			all[event.ID] = append(all[event.ID], r)
		}
	}
	return all
}

// complete sends the outcomes of operations to a topic.
func (c *claimChange) complete(topic string, ids ...string) {
	c.t.Helper()
	runs := c.runs()
	for _, id := range ids {
		if len(runs[id]) != 1 {
			c.t.Fatalf("operation %s was dispatched %d times", id, len(runs[id]))
		}
		outcome := outcomeOf(runs[id][0], "completed", []byte("result of "+id))
		outcome.Topic = topic
		c.produce(outcome)
	}
	c.drain(c.i, topic)
}

// change puts routes in force. With rebuilt it does so while no process runs, and removes the local state before the
// next start.
func (c *claimChange) change(routes string, set int64, rebuilt bool) {
	c.t.Helper()
	if rebuilt {
		must(c.t, c.i.stop())
		must(c.t, os.RemoveAll(c.cfg.StateDir))
	}
	c.apply(routes)
	if rebuilt {
		c.i = c.ready(c.start(c.cfg))
	}
	c.taken(set, c.i)
}

// check compares the replies: each request has one, with the result of its own operation. The requests in inProgress
// have in_progress instead.
func (c *claimChange) check(inProgress ...string) {
	c.t.Helper()
	for id, runs := range c.runs() {
		if len(runs) != 1 {
			c.t.Errorf("operation %s was dispatched %d times", id, len(runs))
		}
	}
	got := map[string]string{}
	for _, topic := range []string{"ops.replies", "ops.answers"} {
		for _, r := range c.read(topic) {
			got[header(r, wire.HeaderRequestID)] += header(r, wire.HeaderClaimStatus) + " " + string(r.Value)
		}
	}
	for request, id := range c.sent {
		want := "completed result of " + id
		if slices.Contains(inProgress, request) {
			want = "in_progress "
		}
		if got[request] != want {
			c.t.Errorf("request %s got %q, want %q", request, got[request], want)
		}
	}
	for _, r := range c.read("dead") {
		c.t.Errorf("dead letter: %v", r.Headers)
	}
}

// TestClaimsAreOpenAcrossChanges changes the window, policy, lease, topic or neighbour of a route while claims of it
// are open, or removes the route and puts it back. Each operation is dispatched once, outcomes are taken before and
// after the change, and every sender gets the result of its own operation. Each change runs with and without local
// state.
func TestClaimsAreOpenAcrossChanges(t *testing.T) {
	t.Parallel()
	for name, change := range claimChanges {
		for _, rebuilt := range []bool{false, true} {
			if rebuilt && testing.Short() {
				continue
			}
			t.Run(fmt.Sprintf("%s, rebuilt %v", name, rebuilt), func(t *testing.T) {
				t.Parallel()
				changed := strings.Replace(claimsBeforeChange, change.old, change.new, 1)
				if changed == claimsBeforeChange {
					t.Fatal("nothing changes")
				}
				c := newClaimChange(t)
				c.send("done-first", "open-first", "open-waits", "late-first", "late-waits")
				c.complete("ops.outcomes", "done")
				c.change(changed, 2, rebuilt)
				var inProgress []string
				if !change.removes {
					c.send("done-again", "open-again", "late-again", "fresh-first", "fresh-again")
				}
				if name == "no waiting" {
					inProgress = []string{"open-again", "late-again", "fresh-again"}
				}
				c.complete("ops.outcomes", "open") // its executor has the topic of before
				if !change.removes {
					c.send("open-replayed")
				}
				c.change(claimsBeforeChange, 3, rebuilt)
				c.send("done-back", "open-back", "late-back")
				c.complete("ops.outcomes", "late")
				if !change.removes {
					done := "ops.outcomes"
					if name == "another outcomes" {
						done = "ops.done"
					}
					c.complete(done, "fresh")
					c.send("fresh-back")
				}
				c.send("late-replayed")
				c.check(inProgress...)
				if change.audited {
					c.promiseHeld(c.cfg)
				}
			})
		}
	}
}

// applyCounting puts routes in force as 'oncebus apply' does, and expects the command to count open claims of
// namespace ops.
func (c *claimChange) applyCounting(routes string, open uint64) *app.Applied {
	c.t.Helper()
	c.useRoutes(routes)
	count := func(context.Context) (map[string]uint64, error) { return map[string]uint64{"ops": open}, nil }
	a, err := app.Apply(c.t.Context(), c.conn(), c.config("operator").Config, c.routes, app.ApplyOptions{Yes: true, By: "ada", OpenClaims: count})
	must(c.t, err)
	if !a.Written {
		c.t.Fatalf("not applied: %s", a.Text())
	}
	c.taken(a.Set, c.i)
	return a
}

func newClaimChange(t *testing.T) *claimChange {
	t.Helper()
	b := newBench(t, claimsBeforeChange)
	b.createTopic("signals.raw", 4)
	c := &claimChange{bench: b, cfg: b.config("one"), sent: map[string]string{}}
	c.i = b.ready(b.start(c.cfg))
	return c
}

// TestClaimOpenedAfterTheCountGetsItsOutcome removes a route while the command counts no open claim. An event that is
// judged after the count opens a claim, and its outcome is taken all the same. The outcomes topic is no longer read
// once a later command counts no open claim.
func TestClaimOpenedAfterTheCountGetsItsOutcome(t *testing.T) {
	t.Parallel()
	c := newClaimChange(t)
	c.send("one-first", "one-waits")
	if a := c.applyCounting(benchRoutes, 0); len(a.Former) != 1 || a.Former[0].Topic != "ops.outcomes" {
		t.Errorf("outcomes topics that are read on: %v", a.Former)
	}
	c.complete("ops.outcomes", "one")
	c.check()
	if a := c.applyCounting(benchRoutes, 0); len(a.Former) != 0 {
		t.Errorf("no claim is open, and these topics are read on: %v", a.Former)
	}
}

// TestOutcomesOfAnEarlierRemovalAreRead makes a second change after a removal, while a claim of the removed route is
// still open: its outcomes must be read after the second change, too.
func TestOutcomesOfAnEarlierRemovalAreRead(t *testing.T) {
	t.Parallel()
	c := newClaimChange(t)
	c.send("one-first", "one-waits")
	c.applyCounting(benchRoutes, 1)
	if a := c.applyCounting(bothRoutes, 1); len(a.Former) != 1 || a.Former[0].Topic != "ops.outcomes" {
		t.Fatalf("outcomes topics that are read on: %v", a.Former)
	}
	c.complete("ops.outcomes", "one")
	c.check()
}

// TestUnknownCountKeepsTheOutcomes covers a command that does not know how many claims are open, for example right
// after a move of the keys. The app then goes on reading the outcomes of a route that was removed before.
func TestUnknownCountKeepsTheOutcomes(t *testing.T) {
	t.Parallel()
	c := newClaimChange(t)
	c.send("one-first", "one-waits")
	c.applyCounting(benchRoutes, 1)
	must(t, c.i.stop())
	first := wire.FirstOf([]wire.Checkpoint{{Set: 2}})
	for p := range int32(4) { // as the copier of a move writes it
		c.produce(&kgo.Record{Topic: "app-repartition-changelog", Partition: p, Key: []byte(wire.CheckpointKey), Value: first.Append(nil)})
	}
	a, err := c.changer(bothRoutes).Apply(t.Context(), app.ApplyOptions{Yes: true, By: "ada"})
	must(t, err)
	if len(a.Former) != 1 || a.Former[0].Topic != "ops.outcomes" {
		t.Errorf("outcomes topics that are read on: %v", a.Former)
	}
}
