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
		name:     "uncounted-records",
		hazards:  []string{"G15"},
		does:     "the records of batches without compression do not count",
		edits:    []edit{{"processor/kafka/recycle.go", "	p.budget.add(memory)\n	records := p.budget.records.get(n, memory)\n", "	records := p.budget.records.get(n, 0*memory)\n"}},
		aims:     inKafka("^TestRecordsWithoutCompressionCount$"),
		notInSim: "the simulation has no large batches",
	},
}
