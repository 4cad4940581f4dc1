package processor

import (
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Two processes of one instance id have the same workers by name. Each join of one fences the
// member of the other, and each new client of one the producer of the other (A14).

// twinSaid is the time after which a process that is fenced again and again says so again in the
// manifest topic.
const twinSaid = time.Minute

// lostProducer reports whether another client has registered the transactional id of a worker. A
// broker sends the same codes once it has aborted a transaction, which it does after the timeout.
func (w *worker) lostProducer(err error) bool {
	fenced := errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
	return fenced && w.txns != nil && time.Since(w.txns.began) < w.cfg.TransactionTimeout
}

// noteTwin counts and logs that another process has the name of this worker.
func (w *worker) noteTwin(err error) {
	w.metrics.fenced.WithLabelValues(w.stage).Inc()
	w.log.Error("fenced by another process of the same name: give each process its own ONCEBUS_INSTANCE_ID",
		"instance", w.cfg.InstanceID, "error", err)
	w.twins.note(time.Now())
	w.readManifestNow() // the set follower writes it
}

// twins has when a worker of the process was fenced.
type twins struct {
	mu   sync.Mutex
	last time.Time
}

func (t *twins) note(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = at
}

// since returns when a worker was fenced, if the process has not said so since; else the time
// that it said so.
func (t *twins) since(said time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last.Sub(said) < twinSaid {
		return said
	}
	return t.last
}
