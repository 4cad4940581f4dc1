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

// Host has the resources that the stores of one process share: the memory budget,
// the bounded background jobs, the metrics. Its methods are safe from any goroutine.
type Host struct {
	cfg     Config
	log     *slog.Logger
	seed    hashSeed
	tiers   tiers
	metrics *metrics
	reg     prometheus.Registerer

	// Each running flush or merge takes a scratch, so their number bounds both.
	flushScratch chan *scratch
	mergeScratch chan *scratch

	openStores   atomic.Int64 // number of stores
	mergesPaused atomic.Bool  // see PauseMerges
	boot         string       // id of this boot; tests change it to simulate a host restart

	mu         sync.Mutex
	stores     map[*Store]bool
	freeTables []*table // empty, for reuse

	// Test hooks: smaller files, a failure before a write, the end of a round
	// of background work.
	valueLogBytes int64
	beforeWrite   func(dir string) error
	onIdle        func()
}

// NewHost validates cfg, registers the metrics with reg and returns a host
// without stores. Close unregisters the metrics.
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
		flushScratch:  make(chan *scratch, cfg.BackgroundJobs),
		mergeScratch:  make(chan *scratch, cfg.BackgroundJobs),
		stores:        make(map[*Store]bool),
		valueLogBytes: valueLogBytes,
		boot:          bootID(),
	}
	for range cfg.BackgroundJobs {
		h.flushScratch <- new(scratch)
		h.mergeScratch <- new(scratch)
	}
	if err := reg.Register(h); err != nil {
		return nil, fmt.Errorf("register state metrics: %w", err)
	}
	return h, nil
}

// Close unregisters the metrics. It fails while a store is open.
func (h *Host) Close() error {
	if n := h.openStores.Load(); n > 0 {
		return fmt.Errorf("close state: %d stores are open; close them first", n)
	}
	h.reg.Unregister(h)
	return nil
}

// rowsPerStore returns how many rows a store may collect before it must freeze
// its table. The factor 2: a store has one active and one frozen table.
func (h *Host) rowsPerStore() int {
	share := h.cfg.MemoryRows / (2 * int(max(1, h.openStores.Load())))
	return min(max(share, minStoreRows), h.cfg.FlushRows)
}

// PauseMerges pauses or resumes the merges of all stores: on a nearly full
// disk a merge first needs as much space as it will free. Flushes continue,
// because they make committed rows durable.
func (h *Host) PauseMerges(paused bool) {
	if h.mergesPaused.Swap(paused) == paused || paused {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.stores {
		s.wakeBackground()
	}
}

func (h *Host) getTable() *table {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.freeTables); n > 0 {
		t := h.freeTables[n-1]
		h.freeTables = h.freeTables[:n-1]
		return t
	}
	return newTable(h.seed)
}

// putTable clears a table for reuse. No view may refer to it.
func (h *Host) putTable(t *table) {
	t.clear()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.freeTables = append(h.freeTables, t)
}

// Open opens or creates the store in dir. identity names the owner of the
// state, such as cluster, changelog topic and partition.
//
// The error wraps ErrForeign for a directory with another identity, and ErrCorrupt
// for unreadable or damaged files. It wraps ErrUnclean for a store that was open
// when the host stopped. Open leaves these files unchanged. For a directory locked
// by another process, or without permissions, the error wraps none of the three.
func (h *Host) Open(dir string, identity []byte) (*Store, error) {
	if len(identity) > maxIdentityBytes {
		return nil, fmt.Errorf("open %s: identity has %d bytes, more than the limit of %d", dir, len(identity), maxIdentityBytes)
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
	h.openStores.Add(1)
	go s.runBackground()
	s.wakeBackground()
	return s, nil
}

// openFiles opens the files of a store and reads manifest and filters. An error
// that is no damage, such as a lock or missing permissions, leaves STATUS
// unchanged.
func (h *Host) openFiles(dir string, identity []byte) (*Store, error) {
	restoreStatus, err := h.beginOpen(dir)
	if err != nil {
		return nil, err
	}
	bdb, err := openBadger(dir, h.valueLogBytes, h.log)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			err = errors.Join(err, restoreStatus())
		}
		return nil, err
	}
	s := h.newStore(dir, bdb)
	if err := s.load(identity); err != nil {
		err = errors.Join(fmt.Errorf("open %s: %w", dir, err), s.db.close())
		if !errors.Is(err, ErrCorrupt) {
			err = errors.Join(err, restoreStatus())
		}
		return nil, err
	}
	return s, nil
}

func (h *Host) countCorrupt(err error) error {
	if errors.Is(err, ErrCorrupt) {
		h.metrics.corruptStores.Inc()
	}
	return err
}

func (h *Host) newStore(dir string, bdb *badger.DB) *Store {
	s := &Store{
		host:           h,
		dir:            dir,
		earlier:        flushesEarlier(dir),
		filesChanged:   true,
		db:             newDatabase(bdb),
		log:            h.log,
		overlay:        h.getTable(),
		active:         h.getTable(),
		freezeToken:    make(chan struct{}, 1),
		frozen:         make(chan *frozenTable, 1),
		wakeUps:        make(chan struct{}, 1),
		quit:           make(chan struct{}),
		backgroundDone: make(chan struct{}),
		failed:         make(chan struct{}),
	}
	s.freezeToken <- struct{}{}
	if h.beforeWrite != nil {
		s.db.beforeWrite = func() error { return h.beforeWrite(dir) }
	}
	return s
}

// load reads the manifest and the filters and deletes orphan runs.
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
		return fmt.Errorf("%w: %d runs without a manifest", ErrCorrupt, len(ids))
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
		// A crash left blocks of a run that the manifest does not name. Store
		// the next id durably before deleting the blocks; otherwise a second
		// crash would let another run reuse the id.
		m.nextRun = ids[n-1] + 1
		if err := s.db.putManifest(m); err != nil {
			return err
		}
	}
	s.manifest = m
	s.checkpoint = bytes.Clone(m.checkpoint) // the owner overwrites its own
	s.position.Store(m.position)
	s.durable.Store(m.position)
	s.publishView(func(*view) *view { return &view{runs: m.runs} })
	s.refreshView()
	return s.deleteOrphanRuns()
}

func (h *Host) removeStore(s *Store) {
	h.mu.Lock()
	delete(h.stores, s)
	h.mu.Unlock()
	h.openStores.Add(-1)
}
