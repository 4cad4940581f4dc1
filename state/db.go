package state

import (
	"errors"
	"fmt"
	"math"

	"github.com/dgraph-io/badger/v4"
)

// database is a store's Badger with the few operations the store needs. Reads
// are safe from several goroutines; writes come from one.
type database struct {
	*badger.DB
	// view reads at the greatest version, so it sees every commit; it takes
	// no part in Badger's transaction bookkeeping and never waits for a
	// write in flight.
	view *badger.Txn
	// version is the commit version last used.
	version uint64
	// beforeWrite, if set, is called before each transaction and can fail
	// it. Tests stop a store there.
	beforeWrite func() error
}

func newDatabase(db *badger.DB) *database {
	return &database{DB: db, view: db.NewTransactionAt(math.MaxUint64, false), version: db.MaxVersion()}
}

// commit writes txn, synced.
func (db *database) commit(txn *badger.Txn) error {
	if db.beforeWrite != nil {
		if err := db.beforeWrite(); err != nil {
			txn.Discard()
			return err
		}
	}
	db.version++
	if err := txn.CommitAt(db.version, nil); err != nil {
		return fmt.Errorf("write to badger: %w", err)
	}
	return db.compact(levelZeroTables)
}

// levelZeroTables is how many tables of level zero, each a memtable's, are
// compacted at a time. A look-up asks all of them.
const levelZeroTables = 4

// compact merges all tables into one level if level zero has at least so many.
// The keeper does it, as Badger's own compactors look for work every 50 ms, at
// least two a store: a process of 24 stores with nothing to do would wake up
// 960 times a second for it.
func (db *database) compact(atLeast int) error {
	if db.Levels()[0].NumTables < atLeast {
		return nil
	}
	if err := db.Flatten(1); err != nil {
		return fmt.Errorf("compact badger's tables: %w", err)
	}
	return nil
}

// putManifest commits m. Everything it names must have been committed before.
func (db *database) putManifest(m *manifest) error {
	txn := db.NewTransactionAt(math.MaxUint64, true)
	if err := txn.Set(manifestKey, m.encode()); err != nil {
		txn.Discard()
		return fmt.Errorf("write manifest: %w", err)
	}
	return db.commit(txn)
}

// manifest returns the committed manifest, or nil in a database without one.
func (db *database) manifest() (m *manifest, err error) {
	err = db.read(manifestKey, func(b []byte) error {
		m, err = decodeManifest(b)
		return err
	})
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, nil
	}
	return m, err
}

// readAttempts bounds the retries of a value that Badger returned as empty. A
// collection of the value log can move a value and remove its file between
// look-up and read; a second look-up finds it at its new place.
const readAttempts = 4

// read calls fn with the value of key, which fn must not keep. A missing key
// is badger.ErrKeyNotFound, a panic of Badger is ErrCorrupt.
func (db *database) read(key []byte, fn func([]byte) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: read of %x: badger panicked: %v", ErrCorrupt, key, p)
		}
	}()
	for range readAttempts {
		item, err := db.view.Get(key)
		if err != nil {
			return err
		}
		empty := false
		err = item.Value(func(b []byte) error {
			if empty = len(b) == 0; empty {
				return nil
			}
			return fn(b)
		})
		if err != nil || !empty {
			return err
		}
	}
	return fmt.Errorf("%w: value of %x cannot be read", ErrCorrupt, key)
}

// readBlock calls fn with header and payload of one block of r, checked.
func (db *database) readBlock(r *run, kind blockKind, part uint32, chunk uint16, fn func(blockHeader, []byte) error) error {
	var key [blockKeyBytes]byte
	err := db.read(appendBlockKey(key[:0], r.id, kind, part, chunk), func(b []byte) error {
		h, payload, err := decodeBlock(b)
		if err != nil {
			return err
		}
		if err := h.check(r, kind, part, chunk); err != nil {
			return err
		}
		return fn(h, payload)
	})
	switch {
	case errors.Is(err, badger.ErrKeyNotFound):
		return fmt.Errorf("%w: block %c of run %d part %d chunk %d is missing", ErrCorrupt, kind, r.id, part, chunk)
	case err != nil:
		return fmt.Errorf("block %c of run %d part %d chunk %d: %w", kind, r.id, part, chunk, err)
	}
	return nil
}

// readPart calls fn with rows and payload of a whole part, which fn must not
// keep. A part of one chunk is not copied.
func (db *database) readPart(r *run, kind blockKind, part uint32, fn func(rows uint32, payload []byte) error) error {
	var first blockHeader
	var whole []byte
	err := db.readBlock(r, kind, part, 0, func(h blockHeader, payload []byte) error {
		first = h
		if h.chunks == 1 {
			return fn(h.rows, payload)
		}
		whole = append(make([]byte, 0, int(h.chunks)*len(payload)), payload...)
		return nil
	})
	if err != nil || first.chunks == 1 {
		return err
	}
	for c := uint16(1); c < first.chunks; c++ {
		err := db.readBlock(r, kind, part, c, func(h blockHeader, payload []byte) error {
			if h.chunks != first.chunks || h.rows != first.rows {
				return fmt.Errorf("%w: chunks disagree", ErrCorrupt)
			}
			whole = append(whole, payload...)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return fn(first.rows, whole)
}

// readPage calls fn with page n of r.
func (db *database) readPage(r *run, n uint32, fn func(page) error) error {
	return db.readPart(r, kindPage, n, func(rows uint32, payload []byte) error {
		p, err := decodePage(rows, payload)
		if err != nil {
			return fmt.Errorf("page %d of run %d: %w", n, r.id, err)
		}
		return fn(p)
	})
}

// loadFilter reads the filter of r into memory.
func (db *database) loadFilter(r *run) error {
	return db.readPart(r, kindFilter, 0, func(_ uint32, payload []byte) error {
		if len(payload) != int(r.filterBlocks)*filterBlockBytes {
			return fmt.Errorf("%w: filter of run %d has %d bytes, %d blocks belong there",
				ErrCorrupt, r.id, len(payload), r.filterBlocks)
		}
		r.filter = filter{make([]filterBlock, r.filterBlocks)}
		r.filter.load(payload)
		return nil
	})
}

// runIDs returns the ids of all runs that have blocks, in order, live or not.
func (db *database) runIDs() (ids []uint64, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: list runs: badger panicked: %v", ErrCorrupt, p)
		}
	}()
	it := db.keys([]byte{runPrefix})
	defer it.Close()
	for it.Rewind(); it.Valid(); {
		key := it.Item().Key()
		if len(key) != blockKeyBytes {
			return nil, fmt.Errorf("%w: key %x is not a block's", ErrCorrupt, key)
		}
		id := runOfKey(key)
		ids = append(ids, id)
		if id == math.MaxUint64 {
			break
		}
		it.Seek(appendRunPrefix(nil, id+1))
	}
	return ids, nil
}

func (db *database) keys(prefix []byte) *badger.Iterator {
	return db.view.NewIterator(badger.IteratorOptions{Prefix: prefix})
}

// deleteRun deletes every block under a run id.
func (db *database) deleteRun(id uint64) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: delete run %d: badger panicked: %v", ErrCorrupt, id, p)
		}
	}()
	var keys [][]byte
	it := db.keys(appendRunPrefix(nil, id))
	for it.Rewind(); it.Valid(); it.Next() {
		keys = append(keys, it.Item().KeyCopy(nil))
	}
	it.Close()
	w := batch{db: db}
	for _, key := range keys {
		if err := w.delete(key); err != nil {
			return err
		}
	}
	return w.commit()
}

// batch collects writes and commits them in transactions as large as Badger
// and its own buffer allow. The order between transactions is kept; inside
// one there is none.
type batch struct {
	db  *database
	txn *badger.Txn
	// buf holds the values of the open transaction; Badger refers to them
	// until it is committed.
	buf []byte
}

// batchBytes is what one transaction carries at most.
const batchBytes = 2 << 20

// value reserves space for a value of at most n bytes and returns it empty.
func (w *batch) value(n int) ([]byte, error) {
	if cap(w.buf)-len(w.buf) < n {
		if err := w.commit(); err != nil {
			return nil, err
		}
		if cap(w.buf) < n {
			w.buf = make([]byte, 0, max(n, batchBytes))
		}
	}
	return w.buf[len(w.buf) : len(w.buf) : len(w.buf)+n], nil
}

// set writes a value that value reserved.
func (w *batch) set(key, value []byte) error {
	w.buf = w.buf[:len(w.buf)+len(value)]
	return w.do(func(txn *badger.Txn) error { return txn.Set(key, value) })
}

func (w *batch) delete(key []byte) error {
	return w.do(func(txn *badger.Txn) error { return txn.Delete(key) })
}

func (w *batch) do(op func(*badger.Txn) error) error {
	if w.txn == nil {
		w.txn = w.db.NewTransactionAt(math.MaxUint64, true)
	}
	err := op(w.txn)
	if !errors.Is(err, badger.ErrTxnTooBig) {
		return err
	}
	// The buffer is not reset: the value in hand lies in it.
	if err := w.flush(); err != nil {
		return err
	}
	w.txn = w.db.NewTransactionAt(math.MaxUint64, true)
	return op(w.txn)
}

func (w *batch) flush() error {
	txn := w.txn
	w.txn = nil
	if txn == nil {
		return nil
	}
	return w.db.commit(txn)
}

// commit writes what is pending.
func (w *batch) commit() error {
	err := w.flush()
	w.buf = w.buf[:0]
	return err
}

func (w *batch) discard() {
	if w.txn != nil {
		w.txn.Discard()
		w.txn = nil
	}
	w.buf = w.buf[:0]
}

// close closes Badger. A panic of Badger becomes an error.
func (db *database) close() (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: close: badger panicked: %v", ErrCorrupt, p)
		}
	}()
	db.view.Discard()
	return db.Close()
}
