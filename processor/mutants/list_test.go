//go:build mutants

package mutants

// A mutant is a defect that a developer could write.
type mutant struct {
	name    string
	hazards []string // ids of HAZARDS.md, if it has any
	does    string
	edits   []edit
	// aims are the tests for this defect, which run before the whole suites;
	// empty if it is for the simulation.
	aims []suite
	// notInSim is why the simulation cannot find it; empty if the simulation
	// must find it within some 50 seeds.
	notInSim string
}

// An edit replaces a text that is once in a file of the module.
type edit struct{ file, old, new string }

func inProcessor(run string) []suite { return []suite{processorSuite.aimed(run)} }
func inState(run string) []suite     { return []suite{stateSuite.aimed(run)} }

// list has the defects of exactly-once, claimList those of claim mode. If a
// defect cannot be written in this design, a worse one replaces it and says so.
var list = []mutant{
	{
		name:    "lso-bound-restore",
		hazards: []string{"B1"},
		does:    "a restore ends at the last stable offset, before committed rows behind an open transaction",
		edits: []edit{{"processor/kafka/leaders.go",
			"req.IsolationLevel = target.isolation",
			"req.IsolationLevel = isolationCommitted"}},
		aims:     inProcessor("^TestRestoreWaitsForAnOpenTransaction$"),
		notInSim: "it needs two handovers during one open transaction, which stable ids soon end: none of 70 seeds had it; random-ids-and-lso-bound shows it",
	},
	{
		name:    "lost-tail-unnoticed",
		hazards: []string{"T15", "B7"},
		does:    "the checkpoint wins over an offset of a transaction that the changelog has lost",
		edits: []edit{{"processor/restore/decide.go",
			"return by.Sequence > c.Sequence && (",
			"return by.Sequence < 0 && ("}},
		aims:     inProcessor("^TestChangelogThatLostItsNewestRowsIsRefused$"),
		notInSim: "its broker loses no committed record",
	},
	{
		name:    "restore-target-from-before",
		hazards: []string{"B1", "B2", "A9"},
		does:    "a restore ends where the changelog ended at the first restore of this process, before its current assignment",
		edits: []edit{
			{"processor/restore/rebuilds.go", "	mu sync.Mutex // tasks of all workers share the file\n", "	ends sync.Map\n	mu   sync.Mutex // tasks of all workers share the file\n"},
			{"processor/restore/restore.go", "	r.watch.position.Store(start)\n", `	if known, ok := r.src.Stores.rebuilds.ends.LoadOrStore(r.id, end); ok {
		end = max(known.(int64), r.Store.Position())
	}
	r.watch.position.Store(start)
`},
		},
		aims: inProcessor("^TestUnknownCommitOutcome$"),
	},
	{
		name:     "flush-writes-open-rows",
		hazards:  []string{"E10"},
		does:     "a flush during a transaction writes its rows, which stay if it aborts",
		edits:    []edit{{"state/store.go", "	f.table.moveOpen(s.active)\n", ""}},
		aims:     inState("^TestFreezeLeavesTheOpenTransaction$"),
		notInSim: "its stores do not flush during transactions",
	},
	{
		name:    "abort-keeps-replaced-rows",
		hazards: []string{"E10"},
		does:    "an abort removes the rows of the transaction, but not what it wrote over earlier ones",
		edits:   []edit{{"state/table.go", "		*t.at(r.ordinal) = r.slot\n", ""}},
		aims:    inState("^TestTableTransactions$"),
	},
	{
		name:    "apply-before-commit",
		hazards: []string{"A6", "C1"},
		does:    "rows and position go into the store before the transaction is known to be committed",
		edits: []edit{
			{"processor/transaction.go", "	ctx, done := x.lock.endContext()\n", `	if x.tasks != nil {
		for _, t := range x.tasks.sorted() {
			if !t.InTransaction {
				continue
			}
			if err := t.Store.Apply(t.CheckpointRecord.Offset+2, t.Open.Append(nil)); err != nil {
				return x.abort(err)
			}
		}
	}
	ctx, done := x.lock.endContext()
`},
			{"processor/judge/state.go", "	if t.CheckpointRecord.Offset < t.Store.Position() {\n", "	if t.CheckpointRecord.Offset+2 < t.Store.Position() {\n"},
		},
		aims: inProcessor("^TestNothingIsAppliedBeforeTheCommit$"),
	},
	{
		// Planned as "apply after AllowRebalance without lease". Here the
		// callback closes task and store, so a late apply has no effect; a task
		// that outlives its partition has one.
		name:    "task-outlives-its-partition",
		hazards: []string{"B6", "B8", "A8"},
		does:    "a task survives a revocation, and is used again when the partition returns",
		edits: []edit{
			{"processor/tasks.go", "	s.closeTasks(func(id app.TaskID) bool { return slices.Contains(partitions[id.Topic], id.Partition) })\n", ""},
			{"processor/tasks.go", "			s.closeTasks(func(id app.TaskID) bool { return id == a.id })\n		}\n", `			client.ResumeFetchPartitions(map[string][]int32{a.id.Topic: {a.id.Partition}})
			continue
		}
`},
		},
		aims: inProcessor("^TestPartitionThatComesBackIsRestored$"),
	},
	{
		name:    "no-resync-after-false-nil",
		hazards: []string{"A6"},
		does:    "after End returned (false, nil) a task continues from its former state, although the broker may have committed",
		edits: []edit{{"processor/transaction.go", "		x.series.aborted.Inc()\n		x.afterAbort()\n", `		x.series.aborted.Inc()
		if x.tasks != nil {
			x.tasks.closeUnassigned(x.member.assigned)
			for _, t := range x.tasks.sorted() {
				if t.state == running {
					t.Discard()
				}
			}
		}
`}},
		aims: inProcessor("^TestUnknownCommitOutcome$"),
	},
	{
		name:    "client-reused-after-error",
		hazards: []string{"A1", "A14", "C2"},
		does:    "after an error of End the client and the tasks continue as if the transaction had been aborted",
		edits: []edit{{"processor/kafka/errors.go",
			`	return fmt.Errorf("%w: %w", ErrCommitUnknown, err)`,
			`	return fmt.Errorf("%w: %w", ErrMustAbort, err)`}},
		aims: inProcessor("^TestRefusedOffsetCommit$"),
	},
	{
		name:     "end-sent-again-under-old-transactions",
		hazards:  []string{"C2"},
		does:     "under transaction.version 0 or 1 the client sends an EndTxn again if it got no response",
		edits:    []edit{{"processor/client.go", "return time.Nanosecond // shorter than any backoff; 0 has no limit", "return requestRetryMax"}},
		aims:     inProcessor("^TestEndIsSentOnceUnderOldTransactions$"),
		notInSim: "its broker has transaction.version 2, and refuses the late request",
	},
	{
		name:    "produce-error-ignored",
		hazards: []string{"A4"},
		does:    "a transaction commits although the produce of one of its records failed",
		edits: []edit{{"processor/transaction.go", `	if err := x.produced.err(); err != nil {
		return x.abort(x.refused(err))
	}
`, ""}},
		aims: inProcessor("^TestFailedProduceAbortsTheTransaction$"),
	},
	{
		name:    "commit-mid-poll",
		hazards: []string{"A5"},
		does:    "a transaction takes at most eight records of a partition from a poll and loses the rest of the poll",
		edits: []edit{
			{"processor/transaction.go", "x.router.Process(x.emitter, p.Records)", "x.router.Process(x.emitter, p.Records[:min(8, len(p.Records))])"},
			{"processor/transaction.go", "		err = x.tasks.process(x.client, p)\n", "		p.Records = p.Records[:min(8, len(p.Records))]\n		err = x.tasks.process(x.client, p)\n"},
		},
		aims: inProcessor("^TestPollIsWorkedOffWhole$"),
	},
	{
		name:    "timeouts-keep-the-size",
		hazards: []string{"C12"},
		does:    "a transaction that timed out is repeated with as many records",
		edits: []edit{{"processor/bound.go",
			"	b.set(max(1, min(n, b.records)/timeoutShrink))",
			"	b.set(b.records)"}},
		aims:     inProcessor("^TestBoundFollowsTimeouts$"),
		notInSim: "its brokers are fast: no transaction is too large for them",
	},
	{
		name:    "refused-event-takes-its-key",
		hazards: []string{"G11"},
		does:    "an event that its output topic refuses is a dead letter and counts as emitted, so its key is taken",
		edits: []edit{{"processor/judge/emit.go",
			"		e.deadLetter(ev)\n		return false\n",
			"		e.deadLetter(ev)\n		return true\n"}},
		aims:     inProcessor("^(TestRefusedRecordIsDeadLettered|TestRefusedEventTakesNoClaim)$"),
		notInSim: "its brokers refuse no record of an output for good",
	},
	{
		name:    "refusal-of-the-whole-batch",
		hazards: []string{"G11"},
		does:    "every record of a topic that refused a batch becomes a dead letter",
		edits: []edit{{"processor/produced.go",
			"	return p.singleErr\n",
			"	return p.firstErr\n"}},
		aims:     inProcessor("^TestRefusedRecordIsDeadLettered$"),
		notInSim: "its brokers refuse no record of an output for good",
	},
	{
		name:     "large-judged-uncompressed",
		hazards:  []string{"G17"},
		does:     "an event that its output takes compressed is a dead letter",
		edits:    []edit{{"processor/judge/emit.go", "kafka.Precompress(r, int(limits.MaxBytes), limits.ReadMax)\n", "limits.MaxBytes < 0 && kafka.Precompress(r, int(limits.MaxBytes), limits.ReadMax)\n"}},
		aims:     inProcessor("^TestLargeEventFitsCompressed$"),
		notInSim: "its topics take every record",
	},
	{
		name:     "large-among-others",
		hazards:  []string{"G17"},
		does:     "a compressed event replaces the others of its batch",
		edits:    []edit{{"processor/produced.go", "	alone := kafka.IsPrecompressed(r)\n", "	alone := len(r.Value) < 0\n"}},
		aims:     inProcessor("^TestLargeEventFitsCompressed$"),
		notInSim: "its topics take every record",
	},
	{
		name:    "fault-of-a-broker-dead-letters",
		hazards: []string{"G11"},
		does:    "an error that says nothing about the record dead-letters its event",
		edits: []edit{{"processor/kafka/errors.go",
			"		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp)\n",
			"		errors.Is(err, kerr.InvalidRecord) || errors.Is(err, kerr.InvalidTimestamp) || errors.Is(err, kerr.TransactionAbortable)\n"}},
		aims:     inProcessor("^TestFaultsOfBrokersDeadLetterNothing$"),
		notInSim: "a repetition alone must meet the same error, which is rare there",
	},
	{
		// Planned as "sweep without offsets". There are no sweeps here: rows
		// expire by stream time, only in the store. So this one is in every
		// transaction of the dedup stage.
		name:    "no-offsets-in-transaction",
		hazards: []string{"A7", "B2"},
		does:    "a transaction has no offsets, so that the group does not fence its owner and no successor waits for it",
		edits: []edit{
			{"processor/transaction.go", "		x.tasks.setOffsets(req)\n", "		req.Topics = nil\n"},
			{"processor/transaction.go", "	if len(req.Topics) == 0 {\n", "	if x.tasks == nil && len(req.Topics) == 0 {\n"},
		},
		aims: inProcessor("^TestOffsetsMoveWithTheCheckpoint$"),
	},
	{
		name:    "random-ids-and-lso-bound",
		hazards: []string{"C6", "B1", "B11"},
		does:    "each client has a transactional id of its own, so that a restart leaves its former transaction open, and a restore ends below it",
		edits: []edit{
			{"processor/client.go", "kgo.TransactionalID(w.txnID)", "kgo.TransactionalID(fmt.Sprint(w.txnID, time.Now().UnixNano()))"},
			{"processor/kafka/leaders.go",
				"req := kmsg.NewPtrListOffsetsRequest()",
				"req := kmsg.NewPtrListOffsetsRequest()\n\treq.IsolationLevel = 1"},
		},
		aims: inProcessor("^TestRestartAbortsWhatItsFormerLifeLeftOpen$"),
	},
	{
		name:    "wall-clock-expiry",
		hazards: []string{"T5"},
		does:    "the machine's clock decides which rows and which events are expired",
		edits: []edit{
			{"processor/app/windows.go", "import (\n", "import (\n\t\"time\"\n"},
			{"processor/app/windows.go", "before[id] = c.Window(id, r.Span).Horizon(c.StreamTimes.At[id])", "before[id] = time.Now().UnixMilli() - r.RetentionMS()"},
			{"processor/judge/judge.go", "	*c = candidate{streamTime: t.streamTime(route.NamespaceID), window", "	*c = candidate{streamTime: max(t.streamTime(route.NamespaceID), time.Now().UnixMilli()), window"},
		},
		aims: inProcessor("^TestRowsExpireByStreamTime$"),
	},
	{
		name:     "silent-offset-reset",
		hazards:  []string{"A11", "G6"},
		does:     "a position that the log no longer has is replaced by another, without an error",
		edits:    []edit{{"processor/client.go", "		kgo.ConsumeResetOffset(kgo.NoResetOffset()),\n", ""}},
		aims:     inProcessor("^TestInputDeletedWhileItIsRead$"),
		notInSim: "the simulation deletes no record before it is read",
	},
	{
		name:    "no-skip-below-checkpoint",
		hazards: []string{"A6", "B7", "G7"},
		does:    "a task continues at the group's offset alone, so that records below its checkpoint are judged again",
		edits: []edit{
			{"processor/judge/judge.go", `	if rec.Offset < t.Open.Next {
		t.Metrics.Reread.Inc()
		return nil
	}
`, ""},
			{"processor/tasks.go", "{Epoch: -1, Offset: t.takeStart(t.Committed.Next)}", "{Epoch: -1, Offset: t.groupOffset}"},
			{"processor/tasks.go", "	t.groupOffset = t.Committed.Next\n	t.Counts,", "	t.Counts,"},
		},
		aims: inProcessor("^TestInputBelowTheCheckpointIsSkipped$"),
	},
	{
		// Planned as "WriteBatch with offset first". The manifest holds position
		// and runs in one entry, so this one writes the position separately.
		name:    "position-before-rows",
		hazards: []string{"E1", "E5"},
		does:    "a flush makes the position durable before the rows below it",
		edits: []edit{{"state/background.go", "	next.position, next.checkpoint = f.position, f.checkpoint\n", `	next.position, next.checkpoint = f.position, f.checkpoint
	early := next
	if err := s.commitManifest(&early, false); err != nil {
		return err
	}
`}},
		aims:     inState("^TestFailureAtEveryWrite$"),
		notInSim: "a bubble is idle between a flush's writes, so no crash occurs there",
	},
	{
		name:    "no-checksums",
		hazards: []string{"E2"},
		does:    "blocks, manifest and tables are used without checksums",
		edits: []edit{
			{"state/block.go", `	if sum := crc32.Checksum(b[blockSumFrom:], castagnoli); sum != binary.LittleEndian.Uint32(b[4:]) {
		return blockHeader{}, nil, fmt.Errorf("%w: block checksum does not match", ErrCorrupt)
	}
`, ""},
			{"state/manifest.go", `	if sum := crc32.Checksum(b[manifestSumFrom:], castagnoli); sum != binary.LittleEndian.Uint32(b[1:]) {
		return nil, fmt.Errorf("%w: manifest checksum does not match", ErrCorrupt)
	}
`, ""},
			{"state/badger.go", "WithChecksumVerificationMode(options.OnBlockRead)", "WithChecksumVerificationMode(options.NoVerification)"},
			{"state/badger.go", "WithVerifyValueChecksum(true)", "WithVerifyValueChecksum(false)"},
			{"state/badger.go", "ChkMode: options.OnTableRead", "ChkMode: options.NoVerification"},
			{"state/badger.go", "		err = t.VerifyChecksum()\n", "		_ = t\n"},
		},
		aims:     inState("^TestDamage$"),
		notInSim: "the simulation damages no file",
	},
	{
		name:    "release-erases-memory",
		hazards: []string{"E8"},
		does:    "the release of mapped memory also works on the heap, and erases it",
		edits: []edit{{"state/mapped_linux.go", "syscall.SYS_REMAP_FILE_PAGES, r.from, r.to-r.from, protection,",
			"syscall.SYS_MADVISE, r.from, r.to-r.from, syscall.MADV_DONTNEED,"}},
		aims:     inState("^TestReleaseChangesNoOtherMemory$"),
		notInSim: "the simulation has little mapped memory",
	},
	{
		name:     "files-of-another-opening",
		hazards:  []string{"E9"},
		does:     "the first flush of a store takes files that appeared meanwhile as its own",
		edits:    []edit{{"state/host.go", "	if err == nil && (m.nextRun > 1 || m.position > 0) {\n", "	if m == nil && err == nil {\n"}},
		aims:     inState("^TestFilesOfAnotherOpeningAreRefused$"),
		notInSim: "a directory has one owner in the simulation",
	},
	{
		name:    "state-kept-after-host-stop",
		hazards: []string{"E1"},
		does:    "files that were open at a host stop are used as if they were complete on the disk",
		edits: []edit{{"state/status.go", `	case s.boot == "" || s.boot != boot:
		return fmt.Errorf("%w: the store was open in boot %q, this is boot %q", ErrUnclean, s.boot, boot)
`, ""}},
		aims:     inState("^TestHostStop$"),
		notInSim: "a bubble has no boots",
	},
}
