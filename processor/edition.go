package processor

import (
	"context"
	"errors"
	"slices"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/restore"
)

// An edition is the version of the app that a process runs: the routes in force, and the topics and numbers that
// belong to them. An edition never changes. If the app changes while the process runs, the process makes a new
// edition. Every worker takes the new edition between two of its transactions, with a new client.
type edition struct {
	rt     *app.App
	source *restore.Source // what all restores read from
	// superseded is closed once there is a newer edition.
	superseded chan struct{}
}

// newest returns the newest edition; nil before the setup.
func (s *shared) newest() *edition { return s.current.Load() }

// adopt makes e the newest edition. The workers then take it, one after the other. Only one goroutine of a
// process calls adopt.
func (s *shared) adopt(e *edition) {
	before := s.current.Swap(e)
	if before != nil {
		close(before.superseded)
	}
}

// errSuperseded ends a client whose edition is not the newest.
var errSuperseded = errors.New("the app has changed")

// renewMax bounds how long the other workers of a process wait for a worker that has taken a new edition: until
// the tasks of that worker run again.
const renewMax = 10 * time.Second

// subscribe makes the worker subscribe to the topics of its edition.
func (w *worker) subscribe() {
	w.member.subscribe(w.rt.Topology.StageTopics(w.stage))
}

// takeEdition takes the newest edition for the next client. If the worker has no topics to read in it,
// takeEdition waits for an edition in which it has. It returns false once ctx is done.
func (w *worker) takeEdition(ctx context.Context) bool {
	for {
		before, changed := w.member.subscribed(), w.edition != w.newest()
		w.edition = w.newest()
		w.subscribe()
		w.takes()
		if len(w.member.subscribed()) > 0 {
			if changed {
				w.targets = progressTargets{} // the new edition may have another repartition topic
				if !slices.Equal(before, w.member.subscribed()) {
					w.rejoin.Store(true) // the coordinator ignores a new subscription of a static member
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

// mayRenew reports whether the client has to end now because there is a newer edition. The workers of a process
// replace their clients one after the other, so that most tasks run meanwhile.
func (w *worker) mayRenew() bool {
	select {
	case <-w.superseded:
	default:
		return false
	}
	if w.newest().rt.Topology.Generation > w.rt.Topology.Generation {
		return true // the tasks of the worker are closed anyway, so there is no reason to wait for others
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

// endRenewalIfRunning lets the next worker take the edition once the tasks of this worker run, or after
// renewMax.
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

// endRenewal lets the next worker take the new edition.
func (w *worker) endRenewal() {
	if !w.renewsSince.IsZero() {
		w.renewsSince = time.Time{}
		<-w.renewing
		w.wakeAll() // the next worker sees that it may take the new edition
	}
}

// restoring reports whether any task cannot judge yet, because it restores or was not created yet.
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
