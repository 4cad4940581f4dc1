package state

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/dgraph-io/badger/v4"
)

// database is a store's Badger database. Reads are safe from any goroutine, writes only from one. Before attach
// the database has no files, and no goroutine reads it, because the view of a store without files names no run.
type database struct {
	*badger.DB // nil before attach
	// readTxn reads at the greatest version, so it sees every commit. Badger does not track this transaction,
	// so it never waits for a running write.
	readTxn *badger.Txn
	// lastVersion is the version of the last commit.
	lastVersion uint64
	// beforeWrite is a test hook that runs before each transaction. An error of the hook fails the
	// transaction.
	beforeWrite func() error

	partsRead     atomic.Uint64
	boundMapped   func() // called after every mappedCheckParts parts that the store reads
	releaseMapped func() // called after every releasePages pages that the store writes
}

// newDatabase returns a database without files. Its two callbacks do nothing until the caller replaces them.
func newDatabase() *database {
	return &database{boundMapped: func() {}, releaseMapped: func() {}}
}

// attach sets the opened database.
func (db *database) attach(opened *badger.DB) {
	db.DB, db.readTxn, db.lastVersion = opened, opened.NewTransactionAt(math.MaxUint64, false), opened.MaxVersion()
}

// hasFiles reports whether the database is open. Only the background goroutine
// may call it while it runs.
func (db *database) hasFiles() bool { return db.DB != nil }

// commit writes txn and syncs it to disk.
func (db *database) commit(txn *badger.Txn) error {
	if db.beforeWrite != nil {
		if err := db.beforeWrite(); err != nil {
			txn.Discard()
			return err
		}
	}
	db.lastVersion++
	if err := txn.CommitAt(db.lastVersion, nil); err != nil {
		return fmt.Errorf("write to badger: %w", err)
	}
	return db.compact(levelZeroTables)
}

// levelZeroTables is the number of level-zero tables that starts a compaction. Each of them is a flushed
// memtable, and a look-up reads all of them.
const levelZeroTables = 4

// compact merges all tables into one level if level zero has at least atLeast tables. The store calls it
// because Badger's own compactors, at least two a store, would poll every 50 ms: 960 times a second in an
// idle process of 24 stores.
func (db *database) compact(atLeast int) error {
	if db.Levels()[0].NumTables < atLeast {
		return nil
	}
	if err := db.Flatten(1); err != nil {
		return fmt.Errorf("compact badger's tables: %w", err)
	}
	return nil
}

// fillMemTable writes as much as fits into a memtable, so that Badger begins to flush the memtable in use,
// which contains the tombstones. It does not wait for the flush.
func (db *database) fillMemTable() error {
	filler := make([]byte, valueThreshold/2) // so small that it is stored in the memtable, not in the value log
	w := batch{db: db}
	// Badger begins the flush only with the transaction that follows the filling transaction, so the loop
	// writes a quarter more than a memtable. A transaction has at most 15 % of a memtable.
	for n := range memTableBytes * 5 / 4 / len(filler) {
		if err := w.do(func(txn *badger.Txn) error { return txn.Set([]byte{fillerPrefix, byte(n)}, filler) }); err != nil {
			return fmt.Errorf("write filler: %w", err)
		}
	}
	return w.commit()
}

// putManifest commits m, after the caller has committed all blocks of its runs.
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

// readAttempts is how often read reads a value that Badger returns as empty. A collection of the value log
// can move a value between look-up and read; a second look-up finds the new position.
const readAttempts = 4

// read calls fn with the value of key; the value is valid until fn returns. The error is
// badger.ErrKeyNotFound for a missing key, and ErrCorrupt if Badger panics.
func (db *database) read(key []byte, fn func([]byte) error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: read of %x: badger panicked: %v", ErrCorrupt, key, p)
		}
	}()
	for range readAttempts {
		item, err := db.readTxn.Get(key)
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
	return fmt.Errorf("%w: value of %x is empty after %d reads", ErrCorrupt, key, readAttempts)
}

// readBlock calls fn with the verified header and payload of one block of r.
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

// readPart calls fn with the number of rows and the payload of a whole part, valid until fn returns. It
// copies the payload only if the part has several chunks.
func (db *database) readPart(r *run, kind blockKind, part uint32, fn func(rows uint32, payload []byte) error) error {
	if db.partsRead.Add(1)%mappedCheckParts == 0 {
		db.boundMapped()
	}
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
				return fmt.Errorf("%w: chunk 0 has counts of %d chunks and %d rows, chunk %d of %d and %d",
					ErrCorrupt, first.chunks, first.rows, c, h.chunks, h.rows)
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
			return fmt.Errorf("%w: filter of run %d has %d bytes, want %d",
				ErrCorrupt, r.id, len(payload), int(r.filterBlocks)*filterBlockBytes)
		}
		r.filter = filter{make([]filterBlock, r.filterBlocks)}
		r.filter.load(payload)
		return nil
	})
}

// runIDs returns, in order, the ids of all runs that have blocks, orphans included.
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
			return nil, fmt.Errorf("%w: key %x has %d bytes, a block key has %d", ErrCorrupt, key, len(key), blockKeyBytes)
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
	return db.readTxn.NewIterator(badger.IteratorOptions{Prefix: prefix})
}

// deleteRun deletes every block of a run id.
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

// batch collects writes and commits them in transactions as large as Badger and the batch's own buffer allow.
// Transactions commit in the order of their writes.
type batch struct {
	db  *database
	txn *badger.Txn
	// buf contains the values of the open transaction. Badger refers to them
	// until the commit.
	buf []byte
}

// batchBytes bounds the values of one transaction.
const batchBytes = 2 << 20

// value reserves buffer space for a value and returns an empty slice of
// capacity n.
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

// set adds the write of a value for which the caller reserved space with value.
func (w *batch) set(key, value []byte) error {
	w.buf = w.buf[:len(w.buf)+len(value)]
	return w.do(func(txn *badger.Txn) error { return txn.Set(key, value) })
}

func (w *batch) delete(key []byte) error {
	return w.do(func(txn *badger.Txn) error { return txn.Delete(key) })
}

// do adds one operation to the open transaction. If the transaction is full, do commits it and begins
// another.
func (w *batch) do(op func(*badger.Txn) error) error {
	if w.txn == nil {
		w.txn = w.db.NewTransactionAt(math.MaxUint64, true)
	}
	err := op(w.txn)
	if !errors.Is(err, badger.ErrTxnTooBig) {
		return err
	}
	// The buffer must stay, because it contains the value of this write.
	if err := w.flush(); err != nil {
		return err
	}
	w.txn = w.db.NewTransactionAt(math.MaxUint64, true)
	return op(w.txn)
}

// flush commits the open transaction and keeps the buffer.
func (w *batch) flush() error {
	txn := w.txn
	w.txn = nil
	if txn == nil {
		return nil
	}
	return w.db.commit(txn)
}

// commit commits the open transaction, if there is one.
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

// close closes Badger, if it is open. A panic of Badger becomes ErrCorrupt.
func (db *database) close() (err error) {
	if !db.hasFiles() {
		return nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: close: badger panicked: %v", ErrCorrupt, p)
		}
	}()
	opened := db.DB
	db.readTxn.Discard()
	db.DB, db.readTxn = nil, nil
	return opened.Close()
}
