package processor

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// manifestInterval is the time between two readings of the manifest topic.
const manifestInterval = time.Second

// A manifestFollower follows the rows of one kind in the manifest topic, for example the hold or requests
// to erase rows.
type manifestFollower interface {
	// take takes a record of the topic, and reports whether the workers have to act on it. It ignores rows
	// of other kinds.
	take(rec *kgo.Record) (act bool)
	// clear drops all records taken, before the topic is read from its start again.
	clear()
	// caughtUp runs after each reading, when all records up to the topic's end were taken.
	caughtUp(ctx context.Context) error
}

// A manifestWatch reads the manifest topic while the process runs, and gives each record to
// all followers.
type manifestWatch struct {
	*shared

	workers   []*worker
	followers []manifestFollower
	reader    *kafka.Reader
	position  int64 // of the manifest topic
}

func newManifestWatch(s *shared, client *kgo.Client, workers []*worker, followers ...manifestFollower) *manifestWatch {
	t := s.newest().rt.Topology
	return &manifestWatch{shared: s, workers: workers, followers: followers, reader: kafka.NewReader(client, t.Manifest, t.Topics[t.Manifest].ID, 0)}
}

func (w *manifestWatch) run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := w.read(ctx); err != nil && ctx.Err() == nil {
			w.log.Debug("read the manifest topic failed, retrying", "error", err)
		}
		pauseUntilDue(ctx, w.interval(), w.manifestDue)
	}
}

// pauseUntilDue waits for d, or until ctx is done, or until it receives a value from due.
func pauseUntilDue(ctx context.Context, d time.Duration, due <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-due:
	case <-ctx.Done():
	}
}

// interval returns the time until the next reading. It is shorter while a switch holds the input, because each
// step of the switch waits until the processes have read the step before in the manifest topic.
func (w *manifestWatch) interval() time.Duration {
	if w.holds.Switch().Phase.Holds() {
		return w.manifestInterval / 10
	}
	return w.manifestInterval
}

// readManifestNow makes the manifest watch read at once, for example because a task has met something that
// its process does not know.
func (s *shared) readManifestNow() {
	select {
	case s.manifestDue <- struct{}{}:
	default: // a reading is due already
	}
}

// read reads the records of the topic since the last call.
func (w *manifestWatch) read(ctx context.Context) error {
	start, end, err := w.reader.ListBounds(ctx)
	if err != nil {
		return err
	}
	if start > w.position && w.position > 0 {
		w.clear() // somebody deleted records, and the followers may have taken some of them
	}
	act := false
	err = w.reader.Read(ctx, max(start, w.position), end, func(records []*kgo.Record, position int64) error {
		for _, rec := range records {
			for _, f := range w.followers {
				act = f.take(rec) || act
			}
		}
		w.position = position
		return nil
	})
	if errors.Is(err, kerr.OffsetOutOfRange) {
		w.clear()
		w.position = 0
	}
	if act {
		for _, worker := range w.workers {
			worker.wake()
		}
	}
	for _, f := range w.followers {
		if err != nil {
			return err
		}
		err = f.caughtUp(ctx)
	}
	return err
}

func (w *manifestWatch) clear() {
	for _, f := range w.followers {
		f.clear()
	}
}
