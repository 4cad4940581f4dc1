// Package state keeps the rows of a task: what is known about every dedup key
// within its window. Kafka's changelog is the truth; a store is a cache of a
// committed prefix of it, in one directory with a Badger database of its own.
// The package does not know Kafka.
//
// # The way of a row
//
//	Put      -> overlay: rows of the open transaction
//	Apply    -> active table: rows committed since the last freeze, in memory
//	freeze   -> frozen table, handed to the keeper: full, or older than FlushAge
//	flush    -> run: sorted by digest, packed into pages, with a filter
//	merge    -> a larger run; overwritten rows and rows out of time are dropped
//	expire   -> a run whose rows are all out of time is dropped whole
//
// Get looks in the same order, newest first, and stops at the first row it
// finds. A run is asked only if its filter does not deny the digest; a digest's
// page follows by arithmetic, as digests are uniform.
//
// Packing is what makes it cheap: Badger spends microseconds on each entry,
// and a page holds some 200 rows. benchmarks/results has the figures.
//
// # Goroutines
//
// A store has an owner, the goroutine that calls Get, Put, Discard and Apply,
// and a keeper, the only one that writes to Badger. They meet in three places:
// the frozen table, sent through a channel for which the owner needs the one
// token in room; the view, an immutable list of runs published under a mutex
// that is never held across I/O; and the nudge channel. The owner holds the
// view it reads from by count until its next Apply or Discard. What no view
// holds is deleted or reused, nothing else is; so a look-up takes no lock and
// never meets a page that has gone.
//
// The keeper flushes before anything else, from within a merge too. It gives
// the token back when the flush is done and the runs that wait for merging are
// few: memory is bounded, and so is the number of runs.
//
// # Invariants
//
//  1. The manifest alone says which runs live. It is one small synced
//     transaction, written after everything it names. Blocks that it does not
//     name are orphans, deleted at Open and after each collection of the value
//     log, which can bring deleted entries back.
//
//  2. A run's id is never used twice, and each block carries id, a random
//     nonce, its place, its length and a checksum. A block that fails any of
//     these, or is missing, is ErrCorrupt: an old, moved, lost or damaged page
//     is found out, never taken for an absent row.
//
//  3. The manifest's position is the changelog offset below which its runs
//     hold every row; checkpoint is of the same position.
//
//  4. Runs are ordered by age, and only neighbours are merged: the newest row
//     of a digest is the first that is found.
//
//  5. Removing rows out of time decides nothing. A row goes only if no older
//     row of its class that is still in time lies below it, so that Get either
//     finds the newest row, or none or one out of time where the newest is.
//
//  6. STATUS says open, durably, before Badger sees the files, and closed only
//     after Badger has closed them without an error. Files that were open when
//     the host stopped are not trusted (ErrUnclean); files that were open when
//     only the process died are, for the page cache outlives it. Where there is
//     no boot id both look alike, and neither is trusted.
//
// # Non-obvious
//
//   - Badger opens tables in goroutines of its own and dies of damaged ones,
//     or drops them with a line in the log. They are verified before it sees
//     them (checkTables).
//   - Badger ends the process where it may not read its discard statistics, so
//     every file is opened before Badger does it (checkRights). For the deaths
//     that nobody can foresee the status counts the openings that were not
//     survived; after three in a row the files are held to be corrupt.
//   - With all writes synced (badgerOptions) a host stop should leave files
//     that can be read. It is not relied on: a disk may lie about a sync, and
//     a rebuild after a host stop costs minutes, once.
//   - Badger returns a value it cannot read as empty, without an error; while
//     its collection moves a value that is also what a reader sees for an
//     instant. Reads try again before they call it corrupt.
//   - Badger frees its lock on a damaged value only with its own checksums on.
//   - Badger's compactors are off: the keeper compacts after its own writes
//     (database.compact). So level zero must never make a write wait, as the
//     keeper is the one that would have to end the wait.
//   - Deleted pages become garbage for Badger when their tombstones have been
//     compacted: hence the tiny memtables. Some 10 to 20 MiB a store are
//     always waiting for it.
//   - An app without a secret has digests that others can compute. They can
//     make pages uneven and filters useless at the cost of many hashes, which
//     costs look-ups time; the table in memory is seeded and cannot be aimed
//     at.
package state
