package state

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
	"github.com/dgraph-io/badger/v4/pb"
	lsm "github.com/dgraph-io/badger/v4/table"
	"github.com/dgraph-io/badger/v4/y"
	"google.golang.org/protobuf/proto"
)

// Sizes of Badger's files. Pages are in the value log; the LSM tree contains only
// their keys, the manifest and small pages.
const (
	// memTableBytes is small, because the collection of the value log counts a deleted page as garbage only
	// after its tombstone was flushed and compacted. A page takes some 150 bytes of the memtable. Never lower
	// the value: when Badger opens a write-ahead log larger than the memtable, it ends the process, so
	// prepareFiles rejects such a log, and the store would have to be rebuilt.
	memTableBytes = 128 << 10
	// valueThreshold is so high that manifests are in the LSM tree and not in the value log. The collection
	// of the value log can restore deleted entries (measured with Badger 4.9.6).
	valueThreshold = 4 << 10
	valueLogBytes  = 8 << 20
	// baseTableBytes is small, because Badger clears twice as much memory for the first table that it builds,
	// and after a kill it builds one when it opens. With Badger's default of 2 MiB, BenchmarkOpen spent a fifth
	// of its CPU time on that. A table need not be large: the keys of the pages of a million rows take some 300
	// KiB.
	baseTableBytes = 256 << 10
)

// badgerOptions returns the options of a store in dir.
func badgerOptions(dir string, valueLogBytes int64, log *slog.Logger) badger.Options {
	return badger.DefaultOptions(dir).
		WithCompression(options.None).WithBlockCacheSize(0).WithIndexCacheSize(0). // mmap and the page cache suffice
		WithMemTableSize(memTableBytes).WithNumMemtables(2).
		WithBaseTableSize(baseTableBytes).WithBaseLevelSize(16 << 20).
		WithNumCompactors(0).WithNumLevelZeroTablesStall(math.MaxInt). // see database.compact
		// If there is no level but level zero, Flatten compacts it only if it has more tables than this number.
		// With 5, the default, garbage took 70 % more disk in stores of a million rows.
		WithNumLevelZeroTables(1).
		WithNumGoroutines(1).
		WithValueThreshold(valueThreshold).WithValueLogFileSize(valueLogBytes).
		// Without this checksum a damaged value leaves Badger's lock on the
		// value-log file locked, and Close blocks forever.
		WithVerifyValueChecksum(true).
		WithChecksumVerificationMode(options.OnBlockRead). // checkTables verifies whole tables
		WithBloomFalsePositive(0).                         // every page that the store reads exists
		WithSyncWrites(true).
		WithNumVersionsToKeep(1).WithDetectConflicts(false).WithMetricsEnabled(false).
		WithCompactL0OnClose(false).
		WithLogger(badgerLogger{log.With("component", "badger")})
}

// openBadger opens the database of a store. Errors and panics of Badger about its files become ErrCorrupt. A
// lock of another process, or a lack of permissions, space or descriptors, does not.
func openBadger(dir string, valueLogBytes int64, log *slog.Logger) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, fmt.Errorf("%w: open %s: badger panicked: %v", ErrCorrupt, dir, p)
		}
	}()
	if err := prepareFiles(dir); err != nil {
		return nil, err
	}
	if err := checkTables(dir); err != nil {
		return nil, err
	}
	db, err = badger.OpenManaged(badgerOptions(dir, valueLogBytes, log))
	if err != nil {
		if isEnvironmental(err) {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
		return nil, fmt.Errorf("%w: open %s: %w", ErrCorrupt, dir, err)
	}
	// Without SetDiscardTs a managed database never frees deleted entries.
	db.SetDiscardTs(math.MaxUint64)
	return db, nil
}

// isEnvironmental reports whether err is about the environment and not about damaged files. It also compares
// texts, because Badger drops the chain of most errors.
func isEnvironmental(err error) bool {
	if errors.Is(err, fs.ErrPermission) {
		return true
	}
	text := err.Error()
	if strings.Contains(text, "Cannot acquire directory lock") {
		return true
	}
	for _, errno := range []syscall.Errno{
		syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	} {
		if errors.Is(err, errno) || strings.Contains(text, errno.Error()) {
			return true
		}
	}
	return false
}

// prepareFiles removes or rejects files with which Badger would fail or end the process. A kill between
// create and truncate leaves an empty log file (badger issue 2207). Truncated discard statistics end the
// process, although they are only hints; so does a write-ahead log larger than the memtable.
func prepareFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("read state directory: %w", err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return fmt.Errorf("read state directory: %w", err)
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%w: %s is not a regular file", ErrCorrupt, e.Name())
		}
		ext, size := filepath.Ext(e.Name()), info.Size()
		switch {
		case size == 0 && (ext == ".mem" || ext == ".vlog"),
			e.Name() == "DISCARD" && size < 1<<20:
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove unfinished file: %w", err)
			}
		case ext == ".mem" && size > 2*memTableBytes:
			return fmt.Errorf("%w: write-ahead log %s has %d bytes, more than the limit of %d",
				ErrCorrupt, e.Name(), size, 2*memTableBytes)
		}
		if err := checkPermissions(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// checkPermissions opens a file as Badger will open it. Without permissions Badger would end the process or
// call the file damaged.
func checkPermissions(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // prepareFiles removed it
	}
	if err != nil {
		return fmt.Errorf("state files must be readable and writable by this user: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("check permissions: %w", err)
	}
	return nil
}

// checkTables verifies every table of the LSM tree. Badger opens tables in its own goroutines: a damaged
// table either panics there, which ends the process, or Badger drops it with a log line. Badger removes
// tables that its manifest does not name, so checkTables ignores them.
func checkTables(dir string) (err error) {
	f, err := os.Open(filepath.Join(dir, badger.ManifestFilename))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("check tables: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	m, _, err := badger.ReplayManifestFile(f, 0, badger.DefaultOptions(dir).WithLogger(nil))
	if err != nil {
		return fmt.Errorf("%w: badger manifest in %s: %w", ErrCorrupt, dir, err)
	}
	for id := range m.Tables {
		if err := checkTable(lsm.NewFilename(id, dir)); err != nil {
			return err
		}
	}
	return nil
}

// checkTable verifies the checksums of a table's index and blocks. It opens the
// table in memory, so that no mapping of the file remains.
func checkTable(path string) (err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: table %s is missing", ErrCorrupt, path)
	}
	if err != nil {
		return fmt.Errorf("check table: %w", err)
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: table %s: badger panicked: %v", ErrCorrupt, path, p)
		}
	}()
	if err := checkTableIndex(data); err != nil {
		return fmt.Errorf("%w: table %s: %w", ErrCorrupt, path, err)
	}
	id, _ := lsm.ParseFileID(path)
	opts := lsm.Options{ChkMode: options.OnTableRead, BlockSize: 4 << 10, Compression: options.None}
	t, err := lsm.OpenInMemoryTable(data, id, &opts)
	if err == nil {
		err = t.VerifyChecksum()
	}
	if err != nil {
		return fmt.Errorf("%w: table %s: %w", ErrCorrupt, path, err)
	}
	return nil
}

// checkTableIndex verifies the end of a table file: index | its length 4 |
// checksum | its length 4, big endian. Badger ends the process if a length
// exceeds the file.
func checkTableIndex(data []byte) error {
	cut := func(n uint32) ([]byte, bool) {
		if uint64(n) > uint64(len(data)) {
			return nil, false
		}
		tail := data[len(data)-int(n):]
		data = data[:len(data)-int(n)]
		return tail, true
	}
	number := func() uint32 {
		b, ok := cut(4)
		if !ok {
			return math.MaxUint32
		}
		return binary.BigEndian.Uint32(b)
	}
	sum, ok := cut(number())
	if !ok {
		return errors.New("checksum is truncated")
	}
	index, ok := cut(number())
	if !ok {
		return errors.New("index is truncated")
	}
	var expected pb.Checksum
	if err := proto.Unmarshal(sum, &expected); err != nil {
		return fmt.Errorf("checksum: %w", err)
	}
	return y.VerifyChecksum(index, &expected)
}

// badgerLogger sends Badger's log to slog, one level lower, because the store
// returns the errors that need action.
type badgerLogger struct{ log *slog.Logger }

func (l badgerLogger) Errorf(format string, args ...any) {
	l.log.Warn("badger", "text", fmt.Sprintf(format, args...))
}

func (l badgerLogger) Warningf(format string, args ...any) {
	l.log.Debug("badger", "text", fmt.Sprintf(format, args...))
}

func (l badgerLogger) Infof(string, ...any) {}

func (l badgerLogger) Debugf(string, ...any) {}
