package processor

import (
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// If two processes have the same ONCEBUS_INSTANCE_ID, their workers have the same names. Each time a worker of
// one process joins its group, the group fences the worker of the other process, and each new client fences the
// producer of the other process (A14).

// twinSaid is the time after which a process that is still being fenced writes that to the manifest topic again.
const twinSaid = time.Minute

// lostProducer reports whether err says that another client has registered the worker's transactional id. A
// broker sends the same codes after it has aborted a transaction, but it does that only after the transaction
// timeout.
func (w *worker) lostProducer(err error) bool {
	fenced := errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch)
	return fenced && w.txns != nil && time.Since(w.txns.began) < w.cfg.TransactionTimeout
}

// noteTwin counts and logs that another process has the same name as this worker.
func (w *worker) noteTwin(err error) {
	w.metrics.fenced.WithLabelValues(w.stage).Inc()
	w.log.Error("fenced by another process of the same name: give each process its own ONCEBUS_INSTANCE_ID",
		"instance", w.cfg.InstanceID, "error", err)
	w.twins.note(time.Now())
	w.readManifestNow() // the set follower then writes it to the topic
}

// twins holds the time at which a worker of the process was last fenced.
type twins struct {
	mu   sync.Mutex
	last time.Time
}

func (t *twins) note(at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last = at
}

// since returns the time at which a worker was last fenced, if that is at least twinSaid later than said, the
// time that the process wrote last; otherwise it returns said.
func (t *twins) since(said time.Time) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last.Sub(said) < twinSaid {
		return said
	}
	return t.last
}
