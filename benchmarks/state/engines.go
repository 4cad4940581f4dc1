//go:build unix

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup"
	"oncebus/state"
)

// runs is the state store of oncebus, used as the processor uses it.
type runs struct{ stores []*state.Store }

func openRuns(dir string, tasks, flushRows int) (*runs, error) {
	cfg := state.DefaultConfig()
	cfg.FlushRows = flushRows
	h, err := state.NewHost(cfg, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	e := &runs{}
	for t := range tasks {
		s, err := h.Open(filepath.Join(dir, strconv.Itoa(t)), []byte("benchmark"))
		if err != nil {
			return nil, err
		}
		e.stores = append(e.stores, s)
	}
	return e, nil
}

func (e *runs) get(task int, d *dedup.Digest) (bool, error) {
	_, held, err := e.stores[task].Get(*d)
	return held, err
}

func (e *runs) put(task int, row *dedup.Row) error {
	e.stores[task].Put(*row)
	return nil
}

func (e *runs) apply(task int, position int64) error {
	return e.stores[task].Apply(position, nil)
}

func (e *runs) positions() (at []int64) {
	for _, s := range e.stores {
		at = append(at, s.DurablePosition())
	}
	return at
}

// idle waits until the background work of all stores has ended. Rows may still be in memory then, as in a
// running task, until their number reaches the flush size.
func (e *runs) idle() error {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for quiet, last := 0, ""; quiet < 10; <-look.C {
		now := ""
		for _, s := range e.stores {
			st := s.Stats()
			now += fmt.Sprint(st.Runs, st.RunBytes, st.RecentRows, st.DurablePosition, " ")
		}
		if now != last {
			quiet, last = 0, now
		}
		quiet++
	}
	return nil
}

// rows is Badger with one entry for each row and one database for each task. It is tuned for this use: values inline,
// no compression, no cache, one long-lived read transaction, and asynchronous, unsynced writes in order.
type rows struct {
	tasks []*rowsTask
}

type rowsTask struct {
	db      *badger.DB
	view    *badger.Txn
	txn     *badger.Txn
	version uint64
	open    map[dedup.Digest]bool // rows of transactions that cannot be read yet
	pending chan struct{}

	mu      sync.Mutex
	err     error
	landing sync.WaitGroup
}

// rowsInFlight is how many transactions of one task may be in flight.
const rowsInFlight = 4

var positionKey = []byte("position")

func openRows(dir string, tasks int) (*rows, error) {
	e := &rows{}
	for t := range tasks {
		o := badger.DefaultOptions(filepath.Join(dir, strconv.Itoa(t))).
			WithCompression(options.None).WithBlockCacheSize(0).WithIndexCacheSize(0).
			WithMemTableSize(16 << 20).WithNumMemtables(2).WithNumCompactors(2).
			WithBaseTableSize(8 << 20).WithBaseLevelSize(64 << 20).
			WithValueThreshold(1 << 20).WithValueLogFileSize(1 << 20).
			WithNumVersionsToKeep(1).WithDetectConflicts(false).WithMetricsEnabled(false).
			WithBloomFalsePositive(0.01).WithSyncWrites(false).WithCompactL0OnClose(false).
			WithNumGoroutines(2).WithLogger(nil)
		db, err := badger.OpenManaged(o)
		if err != nil {
			return nil, err
		}
		db.SetDiscardTs(math.MaxUint64)
		e.tasks = append(e.tasks, &rowsTask{
			db: db, view: db.NewTransactionAt(math.MaxUint64, false), version: db.MaxVersion(),
			open: make(map[dedup.Digest]bool), pending: make(chan struct{}, rowsInFlight),
		})
	}
	return e, nil
}

func (e *rows) get(task int, d *dedup.Digest) (bool, error) {
	t := e.tasks[task]
	if t.open[*d] {
		return true, nil
	}
	item, err := t.view.Get(d[:])
	if errors.Is(err, badger.ErrKeyNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	var row dedup.Row
	return true, item.Value(func(b []byte) error {
		_, err := row.DecodeBody(b)
		return err
	})
}

func (e *rows) put(task int, row *dedup.Row) error {
	t := e.tasks[task]
	if t.txn == nil {
		t.txn = t.db.NewTransactionAt(math.MaxUint64, true)
	}
	key := append([]byte{}, row.Digest[:]...)
	t.open[row.Digest] = true
	return t.txn.Set(key, row.AppendBody(make([]byte, 0, 24)))
}

func (e *rows) apply(task int, position int64) error {
	t := e.tasks[task]
	if err := t.txn.Set(positionKey, binary.BigEndian.AppendUint64(nil, uint64(position))); err != nil {
		return err
	}
	t.pending <- struct{}{}
	t.version++
	t.landing.Add(1)
	err := t.txn.CommitAt(t.version, func(err error) {
		t.mu.Lock()
		t.err = errors.Join(t.err, err)
		t.mu.Unlock()
		<-t.pending
		t.landing.Done()
	})
	t.txn = nil
	clear(t.open)
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(err, t.err)
}

func (e *rows) positions() (at []int64) {
	for _, t := range e.tasks {
		var p int64
		if item, err := t.view.Get(positionKey); err == nil {
			_ = item.Value(func(b []byte) error { p = int64(binary.BigEndian.Uint64(b)); return nil })
		}
		at = append(at, p)
	}
	return at
}

// idle waits for the writes, and then for compactions, which it recognises by the CPU time of the process.
func (e *rows) idle() error {
	for _, t := range e.tasks {
		t.landing.Wait()
	}
	look := time.NewTicker(500 * time.Millisecond)
	defer look.Stop()
	for before := cpuTime(); ; {
		<-look.C
		now := cpuTime()
		if now-before < 50*time.Millisecond {
			return nil
		}
		before = now
	}
}
