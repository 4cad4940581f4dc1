package restore

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// checkpointOf returns the checkpoint of a transaction. Each later transaction has a later stream time.
func checkpointOf(sequence int64) wire.Checkpoint {
	c := wire.Checkpoint{Next: 10 * sequence, Epoch: -1, Sequence: sequence}
	c.StreamTimes.At[1], c.StreamTimes.Has[1] = 100*sequence, true
	return c
}

// logRecord is a checkpoint in a changelog.
type logRecord struct {
	number uint32
	value  []byte
}

// checkpointsOf returns the checkpoints of transactions in a changelog, by transaction. The checkpoints of the
// transactions in wholes are whole, the others partial.
func checkpointsOf(transactions int64, wholes ...int64) map[int64]logRecord {
	all, number := map[int64]logRecord{}, uint32(0)
	for sequence := int64(1); sequence <= transactions; sequence++ {
		before, c := checkpointOf(sequence-1), checkpointOf(sequence)
		value := c.AppendPartial(nil, &before, nil, nil)
		number++
		for _, whole := range wholes {
			if whole == sequence {
				number, value = 0, c.Append(nil)
			}
		}
		all[sequence] = logRecord{number, value}
	}
	return all
}

// TestCheckpointOfARestore reads the checkpoints of a changelog that lacks some of them: only checkpoints that lead
// to the newest one without a gap give a state.
func TestCheckpointOfARestore(t *testing.T) {
	log := checkpointsOf(9, 1, 4, 7)
	for name, c := range map[string]struct {
		base     int64 // transaction of the local store; 0 for none
		read     []int64
		local    bool  // the operator chose local state
		want     int64 // the newest transaction; negative if it is refused
		stored   int64 // the transaction that the store has then
		keepsPos bool  // the store's position stays
	}{
		"no local store":                  {0, []int64{1, 2, 3}, false, 3, 3, false},
		"from a partial one on":           {0, []int64{5, 6, 7, 8, 9}, false, 9, 9, false},
		"tail":                            {5, []int64{6}, false, 6, 6, false},
		"tail with a whole one":           {5, []int64{6, 7, 8}, false, 8, 8, false},
		"compacted tail":                  {2, []int64{6, 7, 8}, false, 8, 8, false},
		"gap":                             {5, []int64{8}, false, -8, 5, true},
		"gap, and nothing stored":         {0, []int64{5, 6}, false, -6, 0, true},
		"gap, the operator chose local":   {5, []int64{8, 9}, true, 9, 5, true},
		"older ones, all in local state":  {5, []int64{2, 3}, false, 5, 5, false},
		"nothing read, as the store says": {5, nil, false, 5, 5, false},
	} {
		r := &Restore{changelog: "changelog"}
		var stored []byte
		if c.base > 0 {
			base := checkpointOf(c.base)
			r.base = &base
			whole := c.base / 3 * 3 // 1, 4 and 7 are whole
			if whole++; whole > c.base {
				whole -= 3
			}
			for sequence := whole; sequence <= c.base; sequence++ {
				stored = wire.AppendStored(stored, log[sequence].number, log[sequence].value)
			}
		}
		var err error
		if r.fold, err = wire.ReadStored(stored); err != nil {
			t.Fatal(name, err)
		}
		if c.local {
			r.accepted = &app.Acceptance{Way: app.BelieveLocal}
		}
		for _, sequence := range c.read {
			if stored, err = r.addCheckpoint(stored, log[sequence].number, log[sequence].value); err != nil {
				t.Fatal(name, err)
			}
		}
		r.firsts.note(&dedup.Row{NamespaceID: 1, First: 555})
		if f, err := wire.ReadStored(stored); err != nil || f.Sequence() != c.stored {
			t.Errorf("%s: the store has transaction %d, %v", name, f.Sequence(), err)
		}
		if r.keepsUp() == c.keepsPos {
			t.Errorf("%s: the position stays: %v", name, c.keepsPos)
		}
		got, err := r.newest()
		switch {
		case c.want < 0:
			if !errors.Is(err, kafka.ErrOperator) {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
			continue
		case err != nil:
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := checkpointOf(c.want)
		if c.local { // stream time is that of the local store, and a row is ahead of it
			want.StreamTimes = checkpointOf(c.base).StreamTimes
			want.Ahead = []wire.FirstSeen{{NamespaceID: 1, At: 555}}
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// TestInterruptedRestoreIsTheSame ends a restore after each of its checkpoints. The next restore must reach the same
// state, by reading on from the checkpoints that the store already has.
func TestInterruptedRestoreIsTheSame(t *testing.T) {
	log := checkpointsOf(9, 1, 4, 7)
	for _, from := range []int64{1, 2, 5} {
		var stored []byte
		next := from // what the position stands for
		for next <= 9 {
			fold, err := wire.ReadStored(stored)
			if err != nil {
				t.Fatal(err)
			}
			r := &Restore{fold: fold}
			if fold.Has() {
				base := fold.Newest()
				r.base = &base
			}
			kept := bytes.Clone(stored)
			for sequence := next; sequence <= 9; sequence++ {
				if kept, err = r.addCheckpoint(kept, log[sequence].number, log[sequence].value); err != nil {
					t.Fatal(err)
				}
				if r.keepsUp() {
					stored, next = kept, sequence+1
					break // the process ends
				}
			}
		}
		if fold, err := wire.ReadStored(stored); err != nil || !reflect.DeepEqual(fold.Newest(), checkpointOf(9)) {
			t.Errorf("from %d: %+v, %v", from, fold.Newest(), err)
		}
	}
}

// TestFormerOwnerGoesOnAfterARestore covers a process that restored a task and loses it again before it has written
// anything, while the former owner never noticed the change and goes on with partial checkpoints. For the next
// restore of the same store these checkpoints must be relative to what the store has.
func TestFormerOwnerGoesOnAfterARestore(t *testing.T) {
	log := checkpointsOf(9, 1, 4, 7)
	for ended := int64(1); ended < 9; ended++ {
		stored := restoreOf(t, log, nil, 1, ended)
		fold, err := wire.ReadStored(restoreOf(t, log, stored, ended+1, 9))
		if err != nil || !reflect.DeepEqual(fold.Newest(), checkpointOf(9)) {
			t.Errorf("restored at %d, and again at 9: %+v, %v", ended, fold.Newest(), err)
		}
	}
}

// restoreOf returns what a store has after a restore of the checkpoints of the transactions from to to.
func restoreOf(t *testing.T, log map[int64]logRecord, stored []byte, from, to int64) []byte {
	t.Helper()
	fold, err := wire.ReadStored(stored)
	if err != nil {
		t.Fatal(err)
	}
	r := &Restore{changelog: "changelog", fold: fold}
	if fold.Has() {
		base := fold.Newest()
		r.base = &base
	}
	for sequence := from; sequence <= to; sequence++ {
		if stored, err = r.addCheckpoint(stored, log[sequence].number, log[sequence].value); err != nil {
			t.Fatal(err)
		}
	}
	newest, err := r.newest()
	if err != nil {
		t.Fatalf("transactions %d to %d: %v", from, to, err)
	}
	r.Checkpoint = *newest
	return r.encode(stored)
}
