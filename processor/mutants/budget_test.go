//go:build mutants

package mutants

func inKafka(run string) []suite { return []suite{kafkaSuite.aimed(run)} }

// budgetList has the defects of the budget of decompressed batches.
var budgetList = []mutant{
	{
		name:     "no-budget",
		hazards:  []string{"G15"},
		does:     "every batch is decompressed at once, whatever is in memory",
		edits:    []edit{{"processor/kafka/budget.go", "	if !fits && !b.stalled(now) {\n", "	if !fits && b.limit < 0 && !b.stalled(now) {\n"}},
		aims:     inKafka("^TestBudget$"),
		notInSim: "the simulation has no large batches",
	},
	{
		name:     "budget-ignores-users",
		hazards:  []string{"G15"},
		does:     "a transaction that takes longer than ten seconds lets one more batch into memory every ten seconds",
		edits:    []edit{{"processor/kafka/budget.go", "!b.refusing || b.users.Load() > 0 || uses != b.grantedUses", "!b.refusing"}},
		aims:     inKafka("^TestBudgetRefusesWhileRecordsAreInUse$"),
		notInSim: "the simulation has no large batches",
	},
	{
		name:     "records-without-bound",
		hazards:  []string{"G15"},
		does:     "the records of one batch may take twenty times its bytes",
		edits:    []edit{{"processor/kafka/decompress.go", "	if records+headers > d.recordsMax() {\n		d.budget.batches.put", "	if records+headers > 1<<60 {\n		d.budget.batches.put"}},
		aims:     inKafka("^TestBatchOfTooManyRecordsIsRefused$"),
		notInSim: "the simulation has no large batches",
	},
	{
		name:     "checksum-that-java-ignores",
		hazards:  []string{"G5"},
		does:     "an LZ4 batch with a wrong checksum of its content is not read, although Kafka's own clients read it",
		edits:    []edit{{"processor/kafka/streams.go", "errors.Is(err, lz4.ErrInvalidFrameChecksum) || ", ""}},
		aims:     inKafka("^TestReadsWhatJavaReads$"),
		notInSim: "its batches are whole",
	},
	{
		name:     "damage-without-offsets",
		hazards:  []string{"G5"},
		does:     "a damaged batch stops the worker in a loop of new clients",
		edits:    []edit{{"processor/kafka/decompress.go", "func (e damaged) Is(target error) bool { return target == kgo.ErrMaxDecompress }", "func (e damaged) Is(error) bool       { return false }"}},
		aims:     inKafka("^TestDamageStopsTheClient$"),
		notInSim: "its batches are whole",
	},
	{
		name:     "checksum-read-once",
		hazards:  []string{"G5"},
		does:     "bytes that the network changes in another way each time stop a partition until an operator decides",
		edits:    []edit{{"processor/kafka/corrupt.go", "other != nil && found.Is(other)", "other != nil"}},
		aims:     inProcessor("^TestFaultsOfTheNetworkStopNoPartition$"),
		notInSim: "its network changes no bytes",
	},
	{
		name:     "checksum-skipped-unasked",
		hazards:  []string{"G5"},
		does:     "a batch with a wrong checksum becomes a dead letter, and another replica has its events",
		edits:    []edit{{"processor/oversize.go", "asks := unreadable(x.oversized.corrupt[id])", "asks := unreadable(nil)"}},
		aims:     inProcessor("^TestBatchWithAWrongChecksumWaits$"),
		notInSim: "its batches are whole",
	},
	{
		name:     "end-of-a-corrupt-batch",
		hazards:  []string{"G5"},
		does:     "a batch whose length is damaged takes the one behind it with it",
		edits:    []edit{{"processor/kafka/corrupt.go", " || hasBatch(at[:size], next, after)", ""}},
		aims:     inKafka("^TestCorruptBatchIsFoundByItsNeighbours$"),
		notInSim: "its batches are whole",
	},
	{
		name:     "event-before-a-corrupt-batch",
		hazards:  []string{"G5"},
		does:     "committed events before a batch with a wrong checksum are skipped with it",
		edits:    []edit{{"processor/kafka/corrupt.go", "	next, at := passUncommitted(p, from, true)\n", "	next, at := passUncommitted(p, from, true)\n	for batchSize(at) > 0 && isRight(at[:batchSize(at)]) {\n		at = at[batchSize(at):]\n	}\n	if len(at) == 0 {\n		at = nil\n	}\n"}},
		aims:     inKafka("^TestCorruptBatchIsFoundByItsNeighbours$"),
		notInSim: "its batches are whole",
	},
	{
		name:     "uncounted-records",
		hazards:  []string{"G15"},
		does:     "the records of batches without compression do not count",
		edits:    []edit{{"processor/kafka/recycle.go", "	p.budget.add(memory)\n	records := p.budget.records.get(n, memory)\n", "	records := p.budget.records.get(n, 0*memory)\n"}},
		aims:     inKafka("^TestRecordsWithoutCompressionCount$"),
		notInSim: "the simulation has no large batches",
	},
}
