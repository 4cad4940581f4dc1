//go:build mutants

package mutants

// hangingList has the defects of transactions whose marker a coordinator dropped. The embedded
// broker of the simulation drops none.
var hangingList = []mutant{
	{
		name:     "next-transaction-at-once",
		hazards:  []string{"C4"},
		does:     "a worker writes to a partition before its last transaction is known to be closed there",
		edits:    []edit{{"processor/produced.go", "	if p.last != nil {\n		p.kept, p", "	if p.last != nil && p.last.isOver() {\n		p.kept, p"}},
		aims:     inProcessor("^TestNoTransactionBeforeTheLastIsClosed$"),
		notInSim: "its broker drops no marker",
	},
	{
		name:     "committed-closed-as-aborted",
		hazards:  []string{"C4"},
		does:     "a committed transaction that hangs is aborted, so that its records vanish",
		edits:    []edit{{"processor/hanging/closer.go", "	commit := at.committed()\n", "	commit := at.closesCommitted()\n"}},
		aims:     []suite{hangingSuite.aimed("^TestClosedAsTheCoordinatorRecorded$")},
		notInSim: "its broker drops no marker",
	},
	{
		name:     "closing-without-a-note",
		hazards:  []string{"C4"},
		does:     "a process that is killed while it closes a committed transaction leaves no word of that, and the next one aborts it",
		edits:    []edit{{"processor/hanging/closer.go", "timeouts = []int32{int32(repairTimeout.Milliseconds()), at.Timeout - 1}", "timeouts = []int32{int32(repairTimeout.Milliseconds()) - 1, at.Timeout - 2}"}},
		aims:     []suite{hangingSuite.aimed("^TestClosingSurvivesACrashAtEachRequest$")},
		notInSim: "its broker drops no marker",
	},
	{
		name:     "closed-before-its-coordinator-says-so",
		hazards:  []string{"C4"},
		does:     "a worker takes a transaction for closed while its coordinator writes the markers",
		edits:    []edit{{"processor/hanging/closed.go", "case p == begun, p == ending:", "case p == begun:"}},
		aims:     []suite{hangingSuite.aimed("^TestAwaitClosedSeesWhatHangs$")},
		notInSim: "its broker drops no marker",
	},
	{
		name:     "hangs-in-silence",
		hazards:  []string{"C15"},
		does:     "doctor works over an input in which a sender's transaction hangs",
		edits:    []edit{{"processor/app/hanging.go", "range f.hanging.hangs {", "range f.hanging.hangs[:0] {"}},
		aims:     inProcessor("^TestHangingTransactionOfASender$"),
		notInSim: "no sender of it has transactions",
	},
	{
		name:     "writer-takes-over-what-hangs",
		hazards:  []string{"C4"},
		does:     "a command registers its transactional id while the last transaction under it hangs",
		edits:    []edit{{"processor/hanging/writer.go", "if err = s.Close(ctx, &Last{ID: id, Partitions: partitions, TakesOver: true}); err == nil {", "if partitions != nil {"}},
		aims:     []suite{hangingSuite.aimed("^TestWriterBeginsNoTransactionBeforeTheLastIsClosed$")},
		notInSim: "its broker drops no marker",
	},
	{
		name:     "writer-trusts-the-commit",
		hazards:  []string{"C4"},
		does:     "a command begins a transaction when the last one is committed, and does not look whether it is closed",
		edits:    []edit{{"processor/hanging/writer.go", "if err := w.closer.AwaitClosed(ctx, last, w.producer, w.denied); err != nil {", "if err := ctx.Err(); err != nil && last != nil {"}},
		aims:     []suite{hangingSuite.aimed("^TestWriterBeginsNoTransactionBeforeTheLastIsClosed$")},
		notInSim: "its broker drops no marker",
	},
	{
		name:     "unplaced-record-is-written",
		hazards:  []string{"C16"},
		does:     "a record that the client gave up before it chose a partition counts as written to what its hash is",
		edits:    []edit{{"processor/produced.go", "return leader >= 0 || epoch >= 0", "return leader >= 0 || epoch >= -1"}},
		aims:     inProcessor("^TestRecordThatWasNeverPlacedIsWrittenNowhere$"),
		notInSim: "its clients know their topics",
	},
	{
		name:     "waits-for-foreign-offsets",
		hazards:  []string{"C18"},
		does:     "a worker waits for offsets that are pending of another producer, for ever",
		edits:    []edit{{"processor/endings.go", "kafka.Without(last.Offsets, w.foreign)", "kafka.Without(last.Offsets, nil)"}},
		aims:     inProcessor("^TestOnlyThePartitionOfAPendingOffsetWaits$"),
		notInSim: "its broker forgets no transaction",
	},
	{
		name:     "own-offsets-taken-for-foreign",
		hazards:  []string{"C18"},
		does:     "a worker does not close the pending offsets of its own last transaction",
		edits:    []edit{{"processor/hanging/closer.go", "closed := last.closings >= closingsMax", "closed := last.closings >= 0"}},
		aims:     []suite{hangingSuite.aimed("^TestPendingOffsetsOfAnotherProducerAreForeign$")},
		notInSim: "its broker forgets no transaction",
	},
	{
		name:     "pending-offset-blocks-a-worker",
		hazards:  []string{"C18"},
		does:     "the client gets a partition whose offset hangs, and waits for it before it fetches the others",
		edits:    []edit{{"processor/membership.go", "hangs && !m.placed[id]", "hangs && m.placed[id]"}},
		aims:     inProcessor("^TestOnlyThePartitionOfAPendingOffsetWaits$"),
		notInSim: "its broker forgets no transaction",
	},
	{
		name:     "pending-offset-in-silence",
		hazards:  []string{"C18"},
		does:     "doctor works over a partition that cannot go on",
		edits:    []edit{{"processor/app/hanging.go", "range f.hanging.pending {", "range f.hanging.pending[:0] {"}},
		aims:     inProcessor("^TestOnlyThePartitionOfAPendingOffsetWaits$"),
		notInSim: "its broker forgets no transaction",
	},
}
