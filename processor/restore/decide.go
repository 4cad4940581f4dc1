package restore

import (
	"fmt"

	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// facts is what a restore knows before it reads rows.
type facts struct {
	start, end int64            // bounds of the changelog
	logged     *wire.Checkpoint // newest checkpoint in the changelog; nil for none
	// loggedLacks reports that logged is a partial checkpoint, and that the changelog has lost the whole
	// checkpoint that it is relative to. Then only the fields that the partial checkpoint states are known.
	loggedLacks bool
	// stored is the local store's checkpoint; nil for none. position is the first changelog offset that
	// the store lacks; 0 without a store.
	stored   *wire.Checkpoint
	position int64
	group    int64 // the group's committed offset of the input; -1 for none
	// groupAt is the generation of the input in which the app committed the group's offset; -1 if
	// another program set the offset. generation is the present generation of the input.
	groupAt, generation int64
	// unread reports that the input has committed records from stored.Next on. If groupAtStored already decides,
	// gather does not determine unread.
	unread bool
	// lost reports that the changelog was recreated after the task had run.
	lost bool
}

// plan is how a restore gets a complete state.
type plan uint8

const (
	readTail   plan = iota // keep the local store, read the changelog from its position
	rebuild                // discard the local store, read the whole changelog
	trustLocal             // keep the local store, write its live rows to the changelog again
	refuse                 // only an operator can decide
)

func (p plan) String() string {
	return [...]string{"read the tail", "rebuild", "trust local state", "refuse"}[p]
}

// decide chooses the plan. If it refuses, the second result says why an operator must decide.
//
// Rows leave a changelog only below the floor that one of its checkpoints states. A changelog is
// therefore whole if it begins at or below its floor, and a changelog that lacks rows never looks
// whole.
//
//	changelog     | no local store | store within it | store before its start | store after its end
//	whole         | rebuild        | read the tail   | rebuild                | rebuild, or trust the newest
//	cut           | refuse         | trust it        | trust the newest       | trust the newest
//	no checkpoint | refuse         | trust it        | trust the newest       | trust the newest
//	empty         | first life     | -               | -                      | trust the newest
//
// "Trust the newest" means: trust the local store if it is the newest state, else refuse. It is the
// newest state in three cases: its checkpoint is the newest in the changelog; or its next input offset
// is the offset that the app committed for its group, which moves in the same transaction; or no
// committed input follows that offset. An empty changelog of a group that has an offset has lost its
// rows.
func decide(f facts) (plan, app.Problem) {
	// position may be end+1: the broker may have listed the end, and only after that have written the last
	// commit marker, at offset end.
	within := f.start <= f.position && f.position <= f.end+1
	newest := f.logged
	if newest == nil || f.stored != nil && f.stored.Sequence >= newest.Sequence {
		newest = f.stored
	}
	whole := f.isWhole(newest)
	switch {
	case within && whole && (f.stored != nil || f.position > 0): // position > 0: after an interrupted rebuild
		return readTail, ""
	case f.stored != nil && within:
		return trustLocal, ""
	case f.logged != nil && f.isWhole(f.logged) && (f.stored == nil || f.logged.Sequence >= f.stored.Sequence):
		return rebuild, ""
	case f.stored != nil && f.storedIsNewest():
		return trustLocal, ""
	case f.stored != nil && f.position > f.end+1:
		return refuse, app.ChangelogShortened
	case f.stored != nil || f.logged != nil:
		return refuse, app.ChangelogCut
	case f.start > 0 || f.group >= 0 || f.lost:
		return refuse, app.StateLost
	}
	return rebuild, "" // the first life of the partition
}

// isWhole reports whether a checkpoint says that the changelog has all rows that may decide an event. A
// floor is always written with a whole checkpoint, so a changelog without a whole checkpoint lacks
// rows.
func (f *facts) isWhole(c *wire.Checkpoint) bool {
	if c == nil {
		return f.start == 0
	}
	return !c.Incomplete && f.start <= c.Floor && !(c == f.logged && f.loggedLacks)
}

// storedIsNewest reports whether no transaction of the task was committed after the local store's
// checkpoint.
func (f *facts) storedIsNewest() bool {
	if f.logged != nil && f.logged.Sequence >= f.stored.Sequence {
		return f.logged.Sequence == f.stored.Sequence
	}
	return f.groupAtStored() || !f.unread
}

// groupAtStored reports whether the group's offset is the local store's next input offset, committed by
// the app.
func (f *facts) groupAtStored() bool {
	return f.group == f.stored.Next && f.groupAt == f.stored.Generation
}

// nextWithout returns the input offset at which a task without its rows continues: the offset of the newest
// checkpoint, or the group's offset. If neither is an offset of the present input, known is false, and the task
// continues at the input's start.
func (f *facts) nextWithout() (next int64, known bool) {
	group := int64(-1)
	if f.groupAt == f.generation || f.groupAt < 0 && f.generation == 0 {
		group = f.group
	}
	var generation int64
	switch {
	case f.logged != nil && (f.stored == nil || f.logged.Sequence >= f.stored.Sequence):
		next, generation = f.logged.Next, f.logged.Generation
	case f.stored != nil:
		next, generation = max(f.stored.Next, group), f.stored.Generation
	default:
		next, generation = group, f.generation
	}
	return next, next >= 0 && generation == f.generation
}

// lostTail reports whether the changelog, whose newest checkpoint is c, lacks the transaction that committed the
// group's offset. An offset that another program set names no transaction, so it proves no loss.
func lostTail(c *wire.Checkpoint, group int64, by app.Commit) bool {
	return by.Sequence > c.Sequence && (group > c.Next || by.Generation != c.Generation)
}

// inputFacts is what a restore knows about the input once it knows the checkpoint.
type inputFacts struct {
	next       int64 // the input offset to process next
	start, end int64 // of the input partition
	// epochEnd is where the leader epoch of the record before next ends; -1 if unknown.
	epochEnd int64
}

// checkInput reports whether the input has lost records that the task still has to read, or has other
// records in place of those that the task has read. resume is the offset at which the task can continue
// after an operator accepts that.
func checkInput(f inputFacts) (problem app.Problem, resume int64, detail string) {
	switch {
	case f.next < f.start:
		return app.InputDeleted, f.start, fmt.Sprintf("its records at offsets %d to %d, at most %d, were deleted before they were read", f.next, f.start-1, f.start-f.next)
	case f.next > f.end:
		return app.InputShortened, f.end, fmt.Sprintf("it ends at offset %d, and its records up to %d were processed: a broker lost at least %d", f.end, f.next-1, f.next-f.end)
	case f.epochEnd >= 0 && f.epochEnd < f.next:
		return app.InputShortened, max(f.epochEnd, f.start), fmt.Sprintf("a broker replaced its records at offsets %d to %d, which were processed, with others, at most %d", f.epochEnd, f.next-1, f.next-f.epochEnd)
	}
	return "", f.next, ""
}
