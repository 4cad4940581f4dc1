package state

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
	"github.com/prometheus/client_golang/prometheus"
)

// Host is what the stores of one process share: the memory budget, the places
// for background work, the metrics. Its methods are safe from any goroutine.
type Host struct {
	cfg     Config
	log     *slog.Logger
	seed    hashSeed
	tiers   tiers
	metrics *metrics
	reg     prometheus.Registerer

	// One scratch for each flush, and each merge, that may run at a time.
	flushing chan *scratch
	merging  chan *scratch

	open atomic.Int64 // number of stores
	held atomic.Bool  // no merges, see Hold
	boot string       // id of this boot; tests make the host restart

	mu     sync.Mutex
	stores map[*Store]bool
	tables []*table // to be reused

	// Tests make files smaller, stop stores at their writes and wait for
	// keepers that have nothing left to do.
	valueLogBytes int64
	beforeWrite   func(dir string) error
	rested        func()
}

// NewHost validates cfg and registers the metrics.
func NewHost(cfg Config, reg prometheus.Registerer, log *slog.Logger) (*Host, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("state config: %w", err)
	}
	h := &Host{
		cfg:           cfg,
		log:           log,
		seed:          newHashSeed(),
		tiers:         newTiers(cfg),
		metrics:       newMetrics(),
		reg:           reg,
		flushing:      make(chan *scratch, cfg.BackgroundJobs),
		merging:       make(chan *scratch, cfg.BackgroundJobs),
		stores:        make(map[*Store]bool),
		valueLogBytes: valueLogBytes,
		boot:          bootID(),
	}
	for range cfg.BackgroundJobs {
		h.flushing <- new(scratch)
		h.merging <- new(scratch)
	}
	if err := reg.Register(h); err != nil {
		return nil, fmt.Errorf("register state metrics: %w", err)
	}
	return h, nil
}

// Close gives up the metrics. All stores must have been closed.
func (h *Host) Close() error {
	if n := h.open.Load(); n > 0 {
		return fmt.Errorf("close state: %d stores are still open", n)
	}
	h.reg.Unregister(h)
	return nil
}

// share is how many rows a store may collect before it must freeze. A store
// has up to two tables, one filling and one being flushed, so that all
// together stay within the budget.
func (h *Host) share() int {
	share := h.cfg.MemoryRows / (2 * int(max(1, h.open.Load())))
	return min(max(share, minStoreRows), h.cfg.FlushRows)
}

// Hold stops the stores from merging, or lets them go on: a merge needs as
// much new space as it will free. Flushes go on, for they make rows durable
// that are already committed.
func (h *Host) Hold(hold bool) {
	if h.held.Swap(hold) == hold || hold {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.stores {
		s.wake()
	}
}

func (h *Host) getTable() *table {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.tables); n > 0 {
		t := h.tables[n-1]
		h.tables = h.tables[:n-1]
		return t
	}
	return newTable(h.seed)
}

// putTable takes a table back that nobody reads any more.
func (h *Host) putTable(t *table) {
	t.clear()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tables = append(h.tables, t)
}

// Open opens or creates the store in dir. identity names what the state
// belongs to, such as cluster, changelog topic and partition: a directory with
// another identity is ErrForeign, one with unreadable or damaged files
// ErrCorrupt, one that was open when the host stopped ErrUnclean; all are left
// as they are. A directory that another process has open, or that may not be
// read or written, is an error of none of these kinds.
func (h *Host) Open(dir string, identity []byte) (*Store, error) {
	if len(identity) > maxIdentityBytes {
		return nil, fmt.Errorf("open %s: identity of %d bytes, at most %d", dir, len(identity), maxIdentityBytes)
	}
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	s, err := h.openFiles(dir, identity)
	if err != nil {
		return nil, h.countCorrupt(err)
	}
	h.mu.Lock()
	h.stores[s] = true
	h.mu.Unlock()
	h.open.Add(1)
	go s.keep()
	s.wake()
	return s, nil
}

// openFiles opens the files of a store and reads what they say. What fails for
// a reason that is not in the files leaves their status as it was.
func (h *Host) openFiles(dir string, identity []byte) (*Store, error) {
	leave, err := h.enter(dir)
	if err != nil {
		return nil, err
	}
	bdb, err := openBadger(dir, h.valueLogBytes, h.log)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			err = errors.Join(err, leave())
		}
		return nil, err
	}
	s := h.newStore(dir, bdb)
	if err := s.load(identity); err != nil {
		err = errors.Join(fmt.Errorf("open %s: %w", dir, err), s.db.close())
		if !errors.Is(err, ErrCorrupt) {
			err = errors.Join(err, leave())
		}
		return nil, err
	}
	return s, nil
}

func (h *Host) countCorrupt(err error) error {
	if errors.Is(err, ErrCorrupt) {
		h.metrics.corrupt.Inc()
	}
	return err
}

func (h *Host) newStore(dir string, bdb *badger.DB) *Store {
	s := &Store{
		host:    h,
		dir:     dir,
		db:      newDatabase(bdb),
		log:     h.log,
		overlay: h.getTable(),
		active:  h.getTable(),
		room:    make(chan struct{}, 1),
		frozen:  make(chan *frozen, 1),
		nudge:   make(chan struct{}, 1),
		quit:    make(chan struct{}),
		kept:    make(chan struct{}),
		failed:  make(chan struct{}),
	}
	s.room <- struct{}{}
	if h.beforeWrite != nil {
		s.db.beforeWrite = func() error { return h.beforeWrite(dir) }
	}
	return s
}

// load reads the manifest and the filters and removes what is left over.
func (s *Store) load(identity []byte) error {
	m, err := s.db.manifest()
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	ids, err := s.db.runIDs()
	if err != nil {
		return err
	}
	switch {
	case m == nil && len(ids) > 0:
		return fmt.Errorf("%w: runs without a manifest", ErrCorrupt)
	case m == nil:
		m = &manifest{identity: identity, nextRun: 1}
		if err := s.db.putManifest(m); err != nil {
			return err
		}
	case !bytes.Equal(m.identity, identity):
		return fmt.Errorf("%w: the directory belongs to %q, wanted %q", ErrForeign, m.identity, identity)
	}
	for _, r := range m.runs {
		if err := s.db.loadFilter(r); err != nil {
			return err
		}
	}
	if n := len(ids); n > 0 && ids[n-1] >= m.nextRun {
		// A crash left blocks of a run that no manifest knew. Its id must be
		// passed durably before its blocks are deleted, or a second crash
		// would let another run have it.
		m.nextRun = ids[n-1] + 1
		if err := s.db.putManifest(m); err != nil {
			return err
		}
	}
	s.manifest = m
	s.checkpoint = bytes.Clone(m.checkpoint) // the owner overwrites its own
	s.position.Store(m.position)
	s.durable.Store(m.position)
	s.publish(func(*view) *view { return &view{runs: m.runs} })
	s.refresh()
	return s.sweep()
}

func (h *Host) remove(s *Store) {
	h.mu.Lock()
	delete(h.stores, s)
	h.mu.Unlock()
	h.open.Add(-1)
}
