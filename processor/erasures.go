package processor

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// erasuresMax bounds the requests that one transaction applies to a task.
const erasuresMax = 8

// erasures holds the requests of the command forget that are in the manifest topic and that no task has applied
// yet. If a process dies between the commit of an erasure and the removal of its request, the request is applied
// a second time, which changes nothing.
type erasures struct {
	mu      sync.Mutex
	pending map[app.TaskID][]*app.ErasureRequest // in the order of the manifest topic
	applied []string                             // names of requests to remove from the manifest topic
	count   atomic.Int64                         // number of pending requests, so that a worker without any takes no lock
}

func newErasures() *erasures { return &erasures{pending: map[app.TaskID][]*app.ErasureRequest{}} }

// of returns the requests for a task that its next transaction applies, at most erasuresMax.
func (e *erasures) of(id app.TaskID) []*app.ErasureRequest {
	if e.count.Load() == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	all := e.pending[id]
	return slices.Clone(all[:min(len(all), erasuresMax)])
}

func (e *erasures) add(r *app.ErasureRequest) {
	e.remove(r)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.pending[r.Task] = append(e.pending[r.Task], r)
	e.count.Add(1)
}

func (e *erasures) remove(r *app.ErasureRequest) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drop(r)
}

func (e *erasures) drop(r *app.ErasureRequest) {
	before := len(e.pending[r.Task])
	e.pending[r.Task] = slices.DeleteFunc(e.pending[r.Task], func(p *app.ErasureRequest) bool { return p.Name == r.Name })
	e.count.Add(int64(len(e.pending[r.Task]) - before))
	if len(e.pending[r.Task]) == 0 {
		delete(e.pending, r.Task)
	}
}

// committed moves requests whose transaction has committed from pending to applied. After its next reading
// the manifest watch removes them from the topic.
func (e *erasures) committed(requests []*app.ErasureRequest) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range requests {
		e.drop(r)
		e.applied = append(e.applied, r.Name)
	}
}

// takeApplied returns the names to remove from the topic.
func (e *erasures) takeApplied() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	names := e.applied
	e.applied = nil
	return names
}

// clear drops all requests before the manifest topic is read from its start again.
func (e *erasures) clear() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.pending)
	e.count.Store(0)
}

// erasureFollower reads the requests of the command forget in the manifest topic, and removes those that
// were applied.
type erasureFollower struct {
	*shared

	client *kgo.Client
}

func (w *erasureFollower) clear() { w.erasures.clear() }

// take takes a record of the manifest topic, and reports whether it is a request that a task has to apply.
func (w *erasureFollower) take(rec *kgo.Record) bool {
	r, is, removed, err := app.ReadErasure(rec)
	switch {
	case !is:
		return false
	case err != nil:
		w.log.Error("request to erase rows cannot be read, skipped: repeat 'oncebus forget'", "error", err)
		return false
	case removed:
		w.erasures.remove(r)
		return false
	case !slices.ContainsFunc(w.newest().rt.Routes, func(route *app.Route) bool { return route.NamespaceID == r.NamespaceID }):
		return false // the namespace's route is in another process, or in this one after its restart
	}
	w.erasures.add(r)
	return true
}

// caughtUp removes the applied requests from the topic.
func (w *erasureFollower) caughtUp(ctx context.Context) error {
	names := w.erasures.takeApplied()
	for n, name := range names {
		if err := app.RemoveErasure(ctx, w.client, w.newest().rt.Topology, name); err != nil {
			w.erasures.mu.Lock()
			w.erasures.applied = append(w.erasures.applied, names[n:]...)
			w.erasures.mu.Unlock()
			return err
		}
	}
	return nil
}

// erasing reports whether a task has requests to apply.
func (s *taskSet) erasing() bool {
	if s.erasures.count.Load() == 0 {
		return false
	}
	for _, t := range s.tasks {
		if t.judges() && len(s.erasures.of(t.ID)) > 0 {
			return true
		}
	}
	return false
}

// joinErasures applies the requested erasures in the open transaction, and adds idle tasks to it if they
// have any.
func (s *taskSet) joinErasures() error {
	if s.erasures.count.Load() == 0 {
		return nil
	}
	for _, t := range s.sorted() {
		if !t.judges() {
			continue // the task applies them after its restore
		}
		t.erased = s.erasures.of(t.ID)
		for _, r := range t.erased {
			t.JoinTransaction()
			n, err := t.Erase(s.judging, r)
			if err != nil {
				return s.storeFailed(t, err)
			}
			t.erasedRows += n
		}
	}
	return nil
}

// erasuresCommitted runs after the commit of a transaction in which a task has applied erasures.
func (s *taskSet) erasuresCommitted(t *task) {
	if len(t.erased) == 0 {
		return
	}
	rows, by := 0, ""
	for _, r := range t.erased {
		rows += len(r.Rows)
		by = cmp.Or(by, r.By)
	}
	t.Log.Info("rows erased", "rows", t.erasedRows, "superseded", rows-t.erasedRows, "by", by)
	s.erasures.committed(t.erased)
	t.dropErasures()
}

// dropErasures forgets the erasures of a transaction that has ended.
func (t *task) dropErasures() { t.erased, t.erasedRows = nil, 0 }
