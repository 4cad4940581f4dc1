// Package state stores the rows of a task: the state of every dedup key within its window. The changelog is
// authoritative; a store only caches a committed prefix of it, in a directory with a Badger database. The
// package imports no Kafka client.
//
// # A row from Put to eviction
//
//	Put     -> active table: rows of the open transaction, after the applied ones
//	Apply   -> the rows become applied; Discard instead removes them and restores what they replaced
//	freeze  -> frozen table: full, or older than FlushAge; without open rows
//	flush   -> run: rows in order of digest, packed into pages, with a filter
//	merge   -> a larger run without overwritten and expired rows
//	evict   -> a run whose rows have all expired is deleted
//
// Get returns the newest of these rows. It reads a run only if the run's filter may contain the digest. Rows
// are packed into pages, some 370 to a page, because Badger spends microseconds on each entry.
//
// # Goroutines
//
// The owner calls Get, Put, Discard and Apply. Only the background goroutine writes to Badger. The two share
// the frozen table, a ref-counted view and a wake-up channel. The background goroutine flushes before all
// other work, even during a merge. The owner needs the freeze token to freeze the next table. It gets the
// token back after the flush and once few runs are unmerged, which bounds memory and the number of runs.
//
// # Invariants
//
//  1. Only runs that the manifest names exist. The store writes the manifest after the blocks of its runs. Other
//     blocks are orphans; Open and each garbage collection delete them.
//  2. A run id is never reused. Each block has id, nonce, position, length and checksum: reading an old,
//     moved, lost or damaged page is ErrCorrupt, and never looks like an absent row.
//  3. The manifest's position is a changelog offset: its runs have every row below that offset, and no row of
//     an open transaction; its checkpoint is valid at that position.
//  4. Runs are ordered by age, and only consecutive runs are merged.
//  5. Eviction changes no verdict: a row is evicted only if no older row of its namespace is retained, so
//     that Get returns the newest row of a digest or an expired one, never an older row that still decides.
//  6. A store creates its directory in its first flush; without a directory it opens at position 0.
//  7. STATUS is open before Badger opens the files, and closed after Badger closed them. Files that were open
//     when the host stopped are ErrUnclean; after a kill they are complete, because the page cache outlives a
//     process.
//  8. A release of mapped memory changes no other memory: see addressRange.release.
//
// # What looks wrong but is not
//
//   - A new store has no files, because 1,000 empty databases cost 10 s of CPU. After a failed creation the
//     next Open creates them at once, so that the error shows at once and not at the next flush.
//   - checkTables and checkPermissions read all files first: Badger ends the process on damaged tables and
//     unreadable files, in its own goroutines. STATUS counts other deaths; after three the files are corrupt.
//   - All writes are synced, yet a host stop makes a store ErrUnclean: disks may lie.
//   - Reads of empty values are repeated: Badger returns an unreadable value as empty, and for an instant
//     also a value that its collection moves.
//   - Badger's compactors are off, because they poll: database.compact replaces them. Level zero must never
//     block a write, because only compactors would unblock it.
//   - remap_file_pages is deprecated, but mmap and MADV_DONTNEED erase the heap if the address is stale, and
//     MADV_PAGEOUT drops the page cache too.
//   - Memtables are tiny, because deleted pages become garbage only after a compaction of their tombstones;
//     10 to 20 MiB of garbage remain in each store.
//   - Without a secret, producers can compute digests, fill single pages and defeat filters. That slows
//     look-ups in runs; the tables in memory use a random seed (hashSeed).
package state
