package processor

import (
	"context"
	"errors"
	"slices"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/restore"
)

// An edition is what a process runs: the routes in force, and the app's topics and numbers
// with them. It never changes. A change of the app while it runs makes a new edition, and
// every worker goes over to it between two transactions, with a new client.
type edition struct {
	rt     *app.App
	source *restore.Source // of all restores
	// superseded is closed once there is a newer edition.
	superseded chan struct{}
}

// newest returns the newest edition. Nil before the setup.
func (s *shared) newest() *edition { return s.current.Load() }

// adopt makes the workers go over to a new edition, one after the other. Only one goroutine
// of a process calls it.
func (s *shared) adopt(e *edition) {
	before := s.current.Swap(e)
	if before != nil {
		close(before.superseded)
	}
}

// errSuperseded ends a client whose edition is not the newest.
var errSuperseded = errors.New("the app has changed")

// renewMax bounds how long the other workers of a process wait for one that has gone over
// to a new edition, until its tasks run again.
const renewMax = 10 * time.Second

// subscribe takes the topics of the worker's edition.
func (w *worker) subscribe() {
	w.member.subscribe(w.rt.Topology.StageTopics(w.stage))
}

// takeEdition takes the newest edition for the next client, and waits for one in which
// the worker has topics to read. It returns false once ctx is done.
func (w *worker) takeEdition(ctx context.Context) bool {
	for {
		before, changed := w.member.subscribed(), w.edition != w.newest()
		w.edition = w.newest()
		w.subscribe()
		w.takes()
		if len(w.member.subscribed()) > 0 {
			if changed {
				w.targets = progressTargets{} // the repartition topic may be another one
				if !slices.Equal(before, w.member.subscribed()) {
					w.rejoin.Store(true) // a coordinator does not compare the topics of a static member
				}
			}
			return true
		}
		w.endRenewal()
		select {
		case <-w.superseded:
		case <-ctx.Done():
			return false
		}
	}
}

// mayRenew reports whether the client has to end because of a newer edition. The workers of
// a process go over one after the other, so that most tasks run meanwhile.
func (w *worker) mayRenew() bool {
	select {
	case <-w.superseded:
	default:
		return false
	}
	if w.newest().rt.Topology.Generation > w.rt.Topology.Generation {
		return true // no task of the worker judges any more
	}
	if w.renewsSince.IsZero() {
		select {
		case w.renewing <- struct{}{}:
			w.renewsSince = time.Now()
		default:
			return false
		}
	}
	return true
}

// endRenewalIfRunning lets the next worker go over once this one's tasks run.
func (w *worker) endRenewalIfRunning() {
	if w.renewsSince.IsZero() {
		return
	}
	if time.Since(w.renewsSince) < renewMax {
		if w.member.assigned() == nil {
			return
		}
		if _, unplaced := w.member.unplaced(); unplaced || w.txns.tasks != nil && w.txns.tasks.restoring() {
			return
		}
	}
	w.endRenewal()
}

func (w *worker) endRenewal() {
	if !w.renewsSince.IsZero() {
		w.renewsSince = time.Time{}
		<-w.renewing
		w.wakeAll() // the next one goes over
	}
}

// restoring reports whether a task is not judging yet.
func (s *taskSet) restoring() bool {
	for _, t := range s.tasks {
		if t.state == created || t.state == restoring {
			return true
		}
	}
	return len(s.tasks) == 0 && s.pendingAssignments()
}

func (s *taskSet) pendingAssignments() bool {
	s.inboxMu.Lock()
	defer s.inboxMu.Unlock()
	return len(s.inbox) > 0
}
