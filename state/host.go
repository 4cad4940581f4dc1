package state

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Host has the resources that the stores of one process share: the memory budget, the bounded background
// jobs, and the metrics. Its methods are safe from any goroutine.
type Host struct {
	cfg     Config
	log     *slog.Logger
	seed    hashSeed
	tiers   tiers
	metrics *metrics
	reg     prometheus.Registerer

	// Each running flush takes a scratch from flushScratch, and each merge or collection takes one from
	// mergeScratch. So the number of scratches bounds how many flushes, and how many merges and collections,
	// run at the same time.
	flushScratch chan *scratch
	mergeScratch chan *scratch

	openStores   atomic.Int64 // number of stores
	mergesPaused atomic.Bool  // see PauseMerges
	boot         string       // id of this boot; tests change it to simulate a host restart
	mapped       mappedMemory
	openings     chan struct{} // has one value for each store that may open its files now

	mu         sync.Mutex // a store locks mu while it holds its own mutex, so the host must never lock a store's mutex while it holds mu
	stores     map[*Store]bool
	freeTables []*table        // empty tables, for reuse
	refused    map[string]bool // directories in which the files of a store could not be created

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
		refused:       make(map[string]bool),
		valueLogBytes: valueLogBytes,
		boot:          bootID(),
		mapped:        mappedMemory{limit: residentMax, fileLimit: mappedMax},
	}
	h.LimitOpenings(openingsUsual)
	for range cfg.BackgroundJobs {
		h.flushScratch <- new(scratch)
		h.mergeScratch <- new(scratch)
	}
	if err := reg.Register(h); err != nil {
		return nil, fmt.Errorf("register state metrics: %w", err)
	}
	return h, nil
}

// openingsUsual is how many stores may open their files at the same time unless LimitOpenings is called.
const openingsUsual = 8

// LimitOpenings sets how many stores may open their files at the same time. Call it before
// Open.
func (h *Host) LimitOpenings(n int) {
	h.openings = make(chan struct{}, n)
	for range n {
		h.openings <- struct{}{}
	}
}

// Close unregisters the metrics. It fails while a store is open.
func (h *Host) Close() error {
	if n := h.openStores.Load(); n > 0 {
		return fmt.Errorf("close state: %d stores are open; close them first", n)
	}
	h.reg.Unregister(h)
	return nil
}

// rowsPerStore returns how many rows a store may collect before it must freeze its table. It divides the budget
// by 2, because a store may have two tables at a time: the active table and the frozen table.
func (h *Host) rowsPerStore() int {
	share := h.cfg.MemoryRows / (2 * int(max(1, h.openStores.Load())))
	return min(max(share, minStoreRows), h.cfg.FlushRows)
}

// PauseMerges pauses or resumes the merges of all stores. The reason to pause is a nearly full disk: a merge
// first needs as much space as it will free. Flushes continue, because they make committed rows durable.
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

// Open opens the store in dir, when it is the store's turn (LimitOpenings). identity names the owner of the
// state, such as cluster, changelog topic and partition.
//
// A directory that does not exist is a store without rows. The first flush creates it. Until then the rows are
// in memory and in the changelog, so a kill loses no row. If the creation fails, the store fails, and the next
// Open creates the files at once, so that Open returns the error as long as the cause lasts.
//
// The error wraps ErrForeign for a directory with another identity, and ErrCorrupt for unreadable or damaged
// files. It wraps ErrUnclean for a store that was open when the host stopped. In these cases Open leaves the
// files unchanged. If another process has locked the directory, or permissions are missing, the error wraps
// none of these three errors.
func (h *Host) Open(dir string, identity []byte) (*Store, error) {
	return h.OpenUntil(context.Background(), dir, identity)
}

// OpenUntil does what Open does, but it waits for the store's turn only until ctx is done.
func (h *Host) OpenUntil(ctx context.Context, dir string, identity []byte) (*Store, error) {
	if len(identity) > maxIdentityBytes {
		return nil, fmt.Errorf("open %s: identity has %d bytes, more than the limit of %d", dir, len(identity), maxIdentityBytes)
	}
	s := h.newStore(dir, identity)
	if h.hasDir(dir) {
		m, err := s.openFiles(ctx.Done())
		if errors.Is(err, errStopped) {
			return nil, ctx.Err()
		}
		if err != nil {
			return nil, h.countCorrupt(err)
		}
		s.adopt(m)
	} else {
		s.unwritten = true
	}
	h.mu.Lock()
	h.stores[s] = true
	h.mu.Unlock()
	h.openStores.Add(1)
	go s.runBackground()
	s.wakeBackground()
	return s, nil
}

// hasDir reports whether Open must open files: the files in dir, or new files because their creation failed
// before. If hasDir cannot read the directory, it returns true, so that openFiles returns the error.
func (h *Host) hasDir(dir string) bool {
	h.mu.Lock()
	refused := h.refused[dir]
	h.mu.Unlock()
	if refused {
		return true
	}
	_, err := os.Lstat(dir)
	return !errors.Is(err, fs.ErrNotExist)
}

// openFiles opens or creates the files of a store and reads the manifest and the filters, when it is the
// store's turn. If it fails although no file is damaged, for example because of a lock or missing permissions,
// STATUS is unchanged. openFiles returns errStopped if quit is closed before the turn.
func (s *Store) openFiles(quit <-chan struct{}) (*manifest, error) {
	select {
	case <-s.host.openings:
		defer func() { s.host.openings <- struct{}{} }()
	case <-quit:
		return nil, errStopped
	}
	if err := os.MkdirAll(s.dir, 0o750); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	restoreStatus, err := s.host.beginOpen(s.dir)
	if err != nil {
		return nil, err
	}
	opened, err := openBadger(s.dir, s.host.valueLogBytes, s.log)
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			err = errors.Join(err, restoreStatus())
		}
		return nil, err
	}
	s.db.attach(opened)
	m, err := s.db.load(s.manifest.identity)
	if err == nil {
		err = s.deleteRunsBut(m.runs)
	}
	if err != nil {
		err = errors.Join(fmt.Errorf("open %s: %w", s.dir, err), s.db.close())
		if !errors.Is(err, ErrCorrupt) {
			err = errors.Join(err, restoreStatus())
		}
		return nil, err
	}
	s.host.setRefused(s.dir, false)
	return m, nil
}

// createFiles creates the files of a store that has none, before its first flush. All rows of the store are in
// memory, so if there are files in the directory now, another opening has written them, and they are not the
// files of this store.
func (s *Store) createFiles() error {
	m, err := s.openFiles(s.quit)
	if errors.Is(err, errStopped) {
		return err
	}
	if err == nil && (m.nextRun > 1 || m.position > 0) {
		err = fmt.Errorf("%w: %s has files of another opening", ErrCorrupt, s.dir)
	}
	if err != nil {
		s.host.setRefused(s.dir, true)
		return fmt.Errorf("create the files of a store: %w", err)
	}
	return nil
}

// setRefused remembers whether the creation of a store's files has failed.
func (h *Host) setRefused(dir string, refused bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if refused {
		h.refused[dir] = true
	} else {
		delete(h.refused, dir)
	}
}

func (h *Host) countCorrupt(err error) error {
	if errors.Is(err, ErrCorrupt) {
		h.metrics.corruptStores.Inc()
	}
	return err
}

// newStore returns a store without rows and files.
func (h *Host) newStore(dir string, identity []byte) *Store {
	s := &Store{
		host:           h,
		dir:            dir,
		earlier:        flushesEarlier(dir),
		manifest:       &manifest{identity: identity, nextRun: 1},
		db:             newDatabase(),
		log:            h.log,
		active:         h.getTable(),
		freezeToken:    make(chan struct{}, 1),
		frozen:         make(chan *frozenTable, 1),
		wakeUps:        make(chan struct{}, 1),
		quit:           make(chan struct{}),
		backgroundDone: make(chan struct{}),
		failed:         make(chan struct{}),
	}
	s.freezeToken <- struct{}{}
	s.publishView(func(*view) *view { return &view{} })
	s.refreshView()
	s.db.boundMapped, s.db.releaseMapped = h.boundMapped, s.releaseMapped
	if h.beforeWrite != nil {
		s.db.beforeWrite = func() error { return h.beforeWrite(dir) }
	}
	return s
}

// load reads the manifest and the filters. For a new store it writes a manifest with the given identity.
func (db *database) load(identity []byte) (*manifest, error) {
	m, err := db.manifest()
	if err != nil {
		return nil, fmt.Errorf("read manifest: %w", err)
	}
	ids, err := db.runIDs()
	if err != nil {
		return nil, err
	}
	switch {
	case m == nil && len(ids) > 0:
		return nil, fmt.Errorf("%w: %d runs without a manifest", ErrCorrupt, len(ids))
	case m == nil:
		m = &manifest{identity: identity, nextRun: 1}
		if err := db.putManifest(m); err != nil {
			return nil, err
		}
	case !bytes.Equal(m.identity, identity):
		return nil, fmt.Errorf("%w: the directory belongs to %q, wanted %q", ErrForeign, m.identity, identity)
	}
	for _, r := range m.runs {
		if err := db.loadFilter(r); err != nil {
			return nil, err
		}
	}
	if n := len(ids); n > 0 && ids[n-1] >= m.nextRun {
		// A crash left blocks of a run that the manifest does not name. Store
		// the next id durably before deleting the blocks; otherwise a second
		// crash would let another run reuse the id.
		m.nextRun = ids[n-1] + 1
		if err := db.putManifest(m); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// adopt makes the state in the opened files the state of the store.
func (s *Store) adopt(m *manifest) {
	s.manifest, s.filesChanged = m, true
	s.checkpoint = bytes.Clone(m.checkpoint) // the owner overwrites its own
	s.position.Store(m.position)
	s.durable.Store(m.position)
	s.publishView(func(*view) *view { return &view{runs: m.runs} })
	s.refreshView()
	s.garbage = s.leftGarbage(m.runs)
}

// leftGarbage estimates how many deleted bytes earlier openings have left in the value log: everything in the
// value log except the given runs. Without this estimate a store that is opened often, as in rolling restarts,
// would never collect garbage.
func (s *Store) leftGarbage(runs []*run) uint64 {
	files, _ := filepath.Glob(filepath.Join(s.dir, "*.vlog")) // fails only for a malformed pattern
	var all, live uint64
	for _, name := range files {
		if info, err := os.Stat(name); err == nil {
			all += allocated(info)
		}
	}
	for _, r := range runs {
		live += r.bytes
	}
	return all - min(all, live)
}

// Positions returns the position of each open store, by its directory.
func (h *Host) Positions() map[string]int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	positions := make(map[string]int64, len(h.stores))
	for s := range h.stores {
		positions[s.dir] = s.Position()
	}
	return positions
}

func (h *Host) removeStore(s *Store) {
	h.mu.Lock()
	delete(h.stores, s)
	h.mu.Unlock()
	h.openStores.Add(-1)
}
