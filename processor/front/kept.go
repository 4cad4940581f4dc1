package front

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
)

// keptDir is a directory in the process's state directory. It has, for each app, a directory with the app's
// kept events.
const keptDir = "ingress"

// keptRecords and keptBytes bound the kept events that are delivered at a time, so that they leave the buffers
// to live events.
const keptRecords, keptBytes = 256, 1 << 20

// kept has the events that wait on disk until Kafka is available again.
type kept struct {
	*shelf
	more bool // whether a route of the file keeps further events

	mu   sync.Mutex
	keys map[dedup.Digest]int // number of kept events by key
}

// KeepIn makes the client keep the events of routes with on_kafka_unavailable: keep in a file below dir. most
// limits the size of the file in bytes. The client also delivers events that an earlier run kept, even if no
// route has on_kafka_unavailable: keep any more. Call KeepIn before Run.
func (f *IngressClient) KeepIn(dir string, most int) error {
	keeps := slices.ContainsFunc(f.routes.Routes, func(r *rules.Route) bool { return r.HTTP != nil && r.HTTP.Keep })
	dir = filepath.Join(dir, keptDir, f.cfg.AppID)
	if _, err := os.Lstat(filepath.Join(dir, shelfName)); !keeps && errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	k := &kept{more: keeps, keys: map[dedup.Digest]int{}}
	var unreadable error
	shelf, found, err := openShelf(dir, int64(most), func(entry []byte) {
		var s Submission
		if err := json.Unmarshal(entry, &s); err != nil {
			unreadable = err
			return
		}
		d := f.derive(&s)
		k.count(&d, 1)
	})
	if err = errors.Join(err, unreadable); err != nil {
		return fmt.Errorf("open the kept events in %s: %w", dir, err)
	}
	k.shelf, f.kept = shelf, k
	if found != "" {
		f.log.Error("the file of kept events is not whole", "finding", found, "action", "look at the file: the senders of its events got a 202; delete it when they have sent them again")
	}
	if n, bytes, _ := shelf.left(); n > 0 {
		f.log.Info("events are kept from an earlier run", "events", n, "bytes", bytes)
	}
	return nil
}

// Keeps reports whether the client accepts an event by keeping it on disk although Kafka is unavailable.
func (f *IngressClient) Keeps() bool {
	if f.kept == nil || !f.kept.more || !f.reached.Load() {
		return false
	}
	_, bytes, failed := f.kept.left()
	return failed == nil && bytes < f.kept.most
}

// Kept is what a process shows about its kept events.
type Kept struct {
	Events int       `json:"events"`
	Bytes  int64     `json:"bytes"`            // size of the file
	Since  time.Time `json:"since,omitzero"`   // when the oldest kept event arrived
	Aside  []string  `json:"aside,omitempty"`  // files with damage, or with events that no topic takes
	Failed string    `json:"failed,omitempty"` // why no more events are kept
}

// Kept returns what the process keeps; nil if it keeps nothing.
func (f *IngressClient) Kept() *Kept {
	if f.kept == nil {
		return nil
	}
	events, bytes, failed := f.kept.left()
	shown := &Kept{Events: events, Bytes: bytes, Aside: f.kept.aside()}
	if failed != nil {
		shown.Failed = failed.Error()
	}
	var oldest Submission
	if entries, _, err := f.kept.peek(1, 1); err != nil {
		shown.Failed = err.Error()
	} else if len(entries) > 0 && json.Unmarshal(entries[0], &oldest) == nil {
		shown.Since = oldest.Time
	}
	return shown
}

// KeptEvents returns the number of kept events.
func (f *IngressClient) KeptEvents() int {
	if f == nil || f.kept == nil { // the metric of a server without a client, whose names a test reads
		return 0
	}
	events, _, _ := f.kept.left()
	return events
}

// has reports whether an event of the same key is kept on disk. A new event of the key must then be kept, too,
// so that it is delivered after that event.
func (k *kept) has(d *rules.Derived) bool {
	if k == nil || d.Finding != rules.Keyed {
		return false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[d.Digest] > 0
}

func (k *kept) count(d *rules.Derived, n int) {
	if d.Finding != rules.Keyed {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.keys[d.Digest] += n; k.keys[d.Digest] <= 0 {
		delete(k.keys, d.Digest)
	}
}

// close closes the file of kept events, and logs how many events stay in it.
func (k *kept) close(log *slog.Logger) {
	if k == nil {
		return
	}
	if n, bytes, _ := k.left(); n > 0 {
		log.Warn("events stay kept in the state directory: the next start delivers them", "events", n, "bytes", bytes)
	}
	k.shelf.close()
}

// keep stores an event on disk and returns ErrKept. If it cannot store the event, it returns the error why,
// because of which the event was to be kept. The event is stored as it arrived: its key is derived again when
// it is delivered, because the app and its routes may have changed by then.
func (f *IngressClient) keep(s *Submission, d *rules.Derived, why error) error {
	if f.kept == nil || !f.reached.Load() { // before Kafka was reached once, this is no outage
		return why
	}
	at := f.at.Load()
	if err := fits(at, f.record(at, s, d, addresses{}), s, d); err != nil {
		return err
	}
	entry, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	f.kept.count(d, 1)
	if err := f.kept.add(entry); err != nil {
		f.kept.count(d, -1)
		return fmt.Errorf("%w: the event is not kept: %w", why, err)
	}
	return ErrKept
}

// deliverKept produces the kept events whenever Kafka is available, until ctx is done.
func (f *IngressClient) deliverKept(ctx context.Context, at *clientState) {
	for ctx.Err() == nil {
		delivered := 0
		err := f.kept.heal()
		if err == nil && f.Ready() == nil && f.holds.InForce() == nil {
			delivered, err = f.deliverSome(ctx, at)
		}
		if err != nil && ctx.Err() == nil {
			f.log.Warn("kept events are not delivered, retrying", "error", err)
		}
		if delivered == 0 || err != nil {
			_ = kafka.Pause(ctx, probeInterval) // the loop checks ctx
		}
	}
}

// deliverSome produces the next kept events in their order, and removes from the file the events that all
// in-sync replicas have. An event whose acknowledgement is lost is produced again, and is then a duplicate. If
// Kafka refuses an event, the other events do not wait for it.
func (f *IngressClient) deliverSome(ctx context.Context, at *clientState) (delivered int, err error) {
	entries, places, err := f.kept.peek(keptRecords, keptBytes)
	if err != nil {
		return 0, err
	}
	if len(entries) == 0 {
		f.kept.recall()
	}
	all := make([]*delivery, 0, len(entries))
	for n, entry := range entries {
		d := &delivery{entry: entry, place: places[n]}
		if err = f.beginKept(at, d); err != nil {
			break
		}
		all = append(all, d)
	}
	ctx, end := outlast(ctx, probeTimeout)
	defer end()
	var done, passed []span
	for _, d := range all { // an event that was begun may be in Kafka, so its result counts even after a failure
		failed := d.await(ctx, f)
		if kafka.RefusesRecord(failed) {
			failed = f.deliverAlone(ctx, at, d)
		}
		switch {
		case failed == nil:
			f.kept.count(&d.derived, -1)
			done = append(done, d.place)
		case refusesTopic(failed):
			passed = append(passed, d.place)
			fallthrough
		default:
			err = cmp.Or(err, failed)
		}
	}
	f.kept.pass(passed)
	return len(done) + len(passed), errors.Join(err, f.kept.take(done))
}

// outlast returns a context that is done some time (bound) after ctx is done. When the client stops, brokers
// acknowledge most of the sent events within this time, so that the next process need not send them again.
func outlast(ctx context.Context, bound time.Duration) (context.Context, context.CancelFunc) {
	longer, end := context.WithCancel(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(bound, end) })
	return longer, func() {
		unhook()
		end()
	}
}

// refusesTopic reports whether an error concerns only the event's topic: events of other topics may still be
// delivered.
func refusesTopic(err error) bool {
	return errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.TopicAuthorizationFailed)
}

// deliverAlone produces a kept event again, alone, after Kafka refused it in a batch: any event of the batch
// may have been the reason. If Kafka refuses the event again, it is quarantined.
func (f *IngressClient) deliverAlone(ctx context.Context, at *clientState, d *delivery) error {
	if err := f.beginKept(at, d); err != nil {
		return err
	}
	err := d.await(ctx, f)
	if kafka.RefusesRecord(err) {
		return f.quarantine(d.entry, err)
	}
	return err
}

// quarantine moves a kept event that no topic takes to a separate file.
func (f *IngressClient) quarantine(entry []byte, why error) error {
	path, err := f.kept.refuse(entry)
	f.log.Error("a kept event is quarantined: no topic takes it", "error", why, "file", path,
		"action", "find out why no topic takes it, stop the ingress, append the file to "+shelfName+" (cat "+refusedName+" >> "+shelfName+"), and remove it")
	return err
}

// delivery is a kept event that is being produced.
type delivery struct {
	entry   []byte
	place   span
	derived rules.Derived
	await   func(context.Context, *IngressClient) error
}

// beginKept produces a kept event, with the time at which it arrived. It quarantines an event that no topic
// takes any more.
func (f *IngressClient) beginKept(at *clientState, d *delivery) error {
	var s Submission
	if err := json.Unmarshal(d.entry, &s); err != nil {
		return err
	}
	d.derived = f.derive(&s)
	if d.derived.Finding == rules.Keyed {
		d.derived.Time = judgedAt(d.derived.Route, d.derived.Time, s.Time, time.Now())
	}
	rec := f.record(at, &s, &d.derived, addresses{})
	if err := fits(at, rec, &s, &d.derived); err != nil {
		failed := f.quarantine(d.entry, err)
		d.await = func(context.Context, *IngressClient) error { return failed }
		return failed
	}
	sender, sent, err := f.begin(at, s.Path, rec)
	d.await = func(ctx context.Context, f *IngressClient) error {
		select {
		case err := <-sent:
			return f.sent(sender, rec, err)
		case <-ctx.Done():
		}
		select {
		case err := <-sent: // the result of this event has already arrived
			return f.sent(sender, rec, err)
		default:
			return ctx.Err()
		}
	}
	return err
}

// judgedAt returns the time, in ms, with which a kept event is judged; own is the event's own time. Events that
// came after Kafka was back may have moved stream time on. If the event was in time when it arrived, judgedAt
// returns a time of at least now minus the window and half of the grace. With an earlier time the event would
// soon be late, and the row of its key might already be evicted.
func judgedAt(route *rules.Route, own int64, arrived, now time.Time) int64 {
	if own < arrived.Add(-route.Window-route.Grace).UnixMilli() {
		return own // the event would be late without the outage, too
	}
	return max(own, now.Add(-route.Window-route.Grace/2).UnixMilli())
}
