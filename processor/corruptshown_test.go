package processor

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/judge"
	"oncebus/processor/kafka"
)

// TestReasonOfAWrongChecksum protects that the board shows a wrong checksum for as long as the client knows that the
// partition waits, and that this reason replaces no other.
func TestReasonOfAWrongChecksum(t *testing.T) {
	t.Parallel()
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	id := app.TaskID{Topic: "in", Partition: 1}
	made := func() *transactions {
		reads := &task{Judge: &judge.Judge{State: judge.State{ID: id}}, state: running}
		reads.Committed.Next = 5
		s := &shared{board: newBoard()}
		x := &transactions{shared: s, log: slog.New(slog.DiscardHandler), client: client, schemas: newSchemaWaits(t.Context(), s, func() {}), corrupt: newCorruptReads(t.Context(), func() {})}
		x.tasks = &taskSet{tasks: map[app.TaskID]*task{id: reads}, corrupt: x.corrupt}
		return x
	}
	read := func(x *transactions, from int64, why string) {
		x.corrupt.parts[id] = &corruptPart{from: from, why: why}
		x.corrupt.read = []app.TaskID{id}
		x.fetchRead()
	}
	for name, c := range map[string]struct {
		do   func(x *transactions)
		want string
	}{
		"shown":                    {func(x *transactions) { read(x, 5, "no end") }, "no end"},
		"read from another offset": {func(x *transactions) { read(x, 4, "no end") }, ""},
		"records came":             {func(x *transactions) { read(x, 5, "no end"); x.passCorrupt(id) }, ""},
		"client closed":            {func(x *transactions) { read(x, 5, "no end"); x.corrupt.close(x.board) }, ""},
		"revoked":                  {func(x *transactions) { read(x, 5, "no end"); clear(x.tasks.tasks); x.fetchRead() }, ""},
		"refused meanwhile":        {func(x *transactions) { x.board.explain(id, "refused"); read(x, 5, "no end") }, "refused"},
		"read well, and refused":   {func(x *transactions) { x.board.explain(id, "refused"); read(x, 5, "") }, "refused"},
		"refused, and closed": {func(x *transactions) {
			read(x, 5, "no end")
			x.board.explain(id, "refused")
			x.passCorrupt(id)
		}, "refused"},
		"cleared by another worker": {func(x *transactions) {
			read(x, 5, "no end")
			x.board.explain(id, "")
			x.showCorrupt(id)
		}, "no end"},
	} {
		x := made()
		if c.do(x); x.board.reason(id) != c.want {
			t.Errorf("%s: the board has %q, want %q", name, x.board.reason(id), c.want)
		}
	}
}

// TestReadsThatDiffer protects that reads count as different only if one of them found a batch with a wrong checksum.
// Otherwise records that wait before that batch would look like a network that changes bytes.
func TestReadsThatDiffer(t *testing.T) {
	t.Parallel()
	id, batch := app.TaskID{Topic: "in", Partition: 1}, new(kafka.CorruptBatchError)
	var part corruptPart
	for range 2 * corruptTries {
		part.wasRead(id, nil, false, nil)
	}
	if part.tries != 0 || part.why != "" {
		t.Errorf("without a batch: %d tries, %q", part.tries, part.why)
	}
	for range corruptTries + 1 {
		if part.why != "" {
			t.Errorf("after %d tries: %q", part.tries, part.why)
		}
		part.wasRead(id, batch, false, nil)
	}
	if part.why == "" || part.batch != nil {
		t.Errorf("after %d tries: %q, %v", part.tries, part.why, part.batch)
	}
	part = corruptPart{}
	if part.wasRead(id, batch, true, nil); part.batch != batch || part.why != "" {
		t.Errorf("the same twice: %+v", part)
	}
	part = corruptPart{}
	if part.wasRead(id, nil, false, errors.New("no end")); part.batch != nil || part.why == "" {
		t.Errorf("an error: %+v", part)
	}
}

// TestFullPartitionIsNotResumed protects that a worker fetches nothing more of a partition that already has enough
// records waiting in the order of time.
func TestFullPartitionIsNotResumed(t *testing.T) {
	t.Parallel()
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	id := app.TaskID{Topic: "in", Partition: 1}
	part := &orderedPartition{id: id, full: true}
	s := &shared{board: newBoard()}
	x := &transactions{shared: s, client: client, router: &judge.Router{}, pacer: &pacer{backlogs: map[app.TaskID]bool{}}, schemas: newSchemaWaits(t.Context(), s, func() {}), order: &timeOrder{parts: map[app.TaskID]*orderedPartition{id: part}}}
	client.PauseFetchPartitions(map[string][]int32{id.Topic: {id.Partition}})
	if x.fetchAgain(id); len(client.PauseFetchPartitions(nil)) == 0 {
		t.Error("a full partition is fetched again")
	}
	part.full = false
	if x.fetchAgain(id); len(client.PauseFetchPartitions(nil)) != 0 {
		t.Error("a partition with room is not fetched again")
	}
}
