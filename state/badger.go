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

// Sizes of Badger's files. Pages go to the value log, the LSM tree holds only
// their keys, a manifest and small pages.
const (
	// memTableBytes is small because a deleted page becomes garbage that the
	// value log's collection can see only when its tombstone has been
	// flushed and compacted, and a page costs the memtable some 150 bytes.
	// Never lower it: Badger ends the process when it finds a larger
	// write-ahead log (checkFiles turns such a directory away).
	memTableBytes = 128 << 10
	// valueThreshold keeps manifests out of the value log, whose collection
	// can bring deleted entries back (measured with Badger 4.9.6).
	valueThreshold = 4 << 10
	valueLogBytes  = 8 << 20
)

// badgerOptions returns the options of a store in dir.
func badgerOptions(dir string, valueLogBytes int64, log *slog.Logger) badger.Options {
	return badger.DefaultOptions(dir).
		WithCompression(options.None).WithBlockCacheSize(0).WithIndexCacheSize(0). // mmap and the page cache do
		WithMemTableSize(memTableBytes).WithNumMemtables(2).
		WithBaseTableSize(2 << 20).WithBaseLevelSize(16 << 20).
		WithNumCompactors(0).WithNumLevelZeroTablesStall(math.MaxInt). // see database.compact
		WithNumGoroutines(1).
		WithValueThreshold(valueThreshold).WithValueLogFileSize(valueLogBytes).
		// Badger frees the lock on a damaged value-log file only if it finds
		// the damage by this checksum; otherwise Close would wait for ever.
		WithVerifyValueChecksum(true).
		WithChecksumVerificationMode(options.OnBlockRead). // checkTables does it for whole tables
		WithBloomFalsePositive(0).                         // every page that is asked for exists
		WithSyncWrites(true).
		WithNumVersionsToKeep(1).WithDetectConflicts(false).WithMetricsEnabled(false).
		WithCompactL0OnClose(false).
		WithLogger(badgerLogger{log.With("component", "badger")})
}

// openBadger opens the database of a store. Whatever Badger finds wrong with
// its files, by error or by panic, becomes ErrCorrupt; a lock held by another
// process or a lack of rights, space or descriptors does not.
func openBadger(dir string, valueLogBytes int64, log *slog.Logger) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			db, err = nil, fmt.Errorf("%w: open %s: badger panicked: %v", ErrCorrupt, dir, p)
		}
	}()
	if err := checkFiles(dir); err != nil {
		return nil, err
	}
	if err := checkTables(dir); err != nil {
		return nil, err
	}
	db, err = badger.OpenManaged(badgerOptions(dir, valueLogBytes, log))
	if err != nil {
		if environmental(err) {
			return nil, fmt.Errorf("open %s: %w", dir, err)
		}
		return nil, fmt.Errorf("%w: open %s: %w", ErrCorrupt, dir, err)
	}
	// Without it a managed database never reclaims anything.
	db.SetDiscardTs(math.MaxUint64)
	return db, nil
}

// environmental tells errors of the surroundings from damaged files. Badger
// drops the chain of most errors, so their text counts too.
func environmental(err error) bool {
	if errors.Is(err, fs.ErrPermission) {
		return true
	}
	text := err.Error()
	if strings.Contains(text, "Cannot acquire directory lock") {
		return true
	}
	for _, no := range []syscall.Errno{
		syscall.EACCES, syscall.EPERM, syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS,
		syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM,
	} {
		if errors.Is(err, no) || strings.Contains(text, no.Error()) {
			return true
		}
	}
	return false
}

// checkFiles prepares a directory for Badger: a kill between create and
// truncate leaves an empty log file at which Open fails (badger issue 2207),
// and the discard statistics are only hints but Badger ends the process when
// they are cut short. A write-ahead log that does not fit the memtable would
// end the process too.
func checkFiles(dir string) error {
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
			return fmt.Errorf("%w: %s is no file", ErrCorrupt, e.Name())
		}
		ext, size := filepath.Ext(e.Name()), info.Size()
		switch {
		case size == 0 && (ext == ".mem" || ext == ".vlog"),
			e.Name() == "DISCARD" && size < 1<<20:
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove unfinished file: %w", err)
			}
		case ext == ".mem" && size > 2*memTableBytes:
			return fmt.Errorf("%w: %s has %d bytes, a write-ahead log of this build at most %d",
				ErrCorrupt, e.Name(), size, 2*memTableBytes)
		}
		if err := checkRights(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// checkRights opens a file as Badger will: where it may not, it would end the
// process or call the file damaged.
func checkRights(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // just removed
	}
	if err != nil {
		return fmt.Errorf("state files must be readable and writable: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("check rights: %w", err)
	}
	return nil
}

// checkTables verifies every table of the LSM tree. Badger opens tables in
// goroutines of its own, where a damaged one ends the process with a panic
// that nobody can recover, or is left out with a line in the log. Tables that
// its manifest does not name are leftovers that it removes.
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

// checkTable opens a table, in memory so that nothing of it is left mapped,
// and with it verifies the checksums of its index and all its blocks.
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
// checksum | its length 4, big endian. Badger ends the process where these do
// not fit the file.
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
		return errors.New("cut short")
	}
	index, ok := cut(number())
	if !ok {
		return errors.New("cut short")
	}
	var expected pb.Checksum
	if err := proto.Unmarshal(sum, &expected); err != nil {
		return fmt.Errorf("checksum: %w", err)
	}
	return y.VerifyChecksum(index, &expected)
}

// badgerLogger sends Badger's log to slog, one level lower than Badger means
// it: the store reports what matters itself.
type badgerLogger struct{ log *slog.Logger }

func (l badgerLogger) Errorf(format string, args ...any) {
	l.log.Warn("badger", "text", fmt.Sprintf(format, args...))
}

func (l badgerLogger) Warningf(format string, args ...any) {
	l.log.Debug("badger", "text", fmt.Sprintf(format, args...))
}

func (l badgerLogger) Infof(string, ...any) {}

func (l badgerLogger) Debugf(string, ...any) {}
