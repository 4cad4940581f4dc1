//go:build mutants

package mutants

func inAudit(run string) []suite { return []suite{auditSuite.aimed(run)} }

const auditOutsideSim = "an audit runs before there is an app"

// auditList has the defects of audits: what they count, and that they write nothing.
var auditList = []mutant{
	{
		name:     "audit-sample-by-record",
		does:     "a smaller sample keeps the counts of the keys that it drops",
		edits:    []edit{{"processor/audit/fold.go", "		f.levels[f.level] = nil\n", ""}, {"processor/audit/counted.go", "f.levels[f.level:]", "f.levels"}},
		aims:     inAudit("^TestSampleIsWithinItsError$"),
		notInSim: auditOutsideSim,
	},
	{
		name:     "audit-error-without-clusters",
		does:     "the standard error takes the copies of a key for independent ones",
		edits:    []edit{{"processor/audit/counts.go", "	c.squares += 2*uint64(earlier) + 1\n", "	c.squares++\n"}},
		aims:     inAudit("^TestSampleIsWithinItsError$"),
		notInSim: auditOutsideSim,
	},
	{
		name:     "audit-newest-run-first",
		does:     "the first record on disk is that of the newest run",
		edits:    []edit{{"processor/audit/runs.go", "	return c[i].number < c[j].number\n", "	return c[i].number > c[j].number\n"}},
		aims:     inAudit("^TestFirstRecordOnDiskIsTheOldest$"),
		notInSim: auditOutsideSim,
	},
	{
		name:     "audit-disk-for-known-keys",
		does:     "records of keys in memory also go to disk, where they are firsts",
		edits:    []edit{{"processor/audit/fold.go", "	if found != nil {\n		f.copy(", "	if found != nil && f.disk == nil {\n		f.copy("}},
		aims:     inAudit("^TestExactFoldsEqualAPlainFold$"),
		notInSim: auditOutsideSim,
	},
	{
		name:     "audit-partition-order",
		does:     "partitions are read one after the other, so the first record is that of the lowest partition",
		edits:    []edit{{"processor/audit/merge.go", "cmp.Or(cmp.Compare(a.Timestamp, b.Timestamp), cmp.Compare(a.Partition, b.Partition))", "cmp.Compare(a.Partition, b.Partition)"}},
		aims:     inAudit("^TestMergeKeepsTheOrderOfTimestampsAndPartitions$"),
		notInSim: auditOutsideSim,
	},
}
