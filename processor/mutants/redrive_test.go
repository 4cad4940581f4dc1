//go:build mutants

package mutants

// outsideSim says why the simulation cannot find a defect of a redrive.
const outsideSim = "the simulation redrives nothing"

// redriveList has the defects of redrives of dead letters.
var redriveList = []mutant{
	{
		name:     "redrive-without-progress",
		hazards:  []string{"R1"},
		does:     "a redrive commits its records without what it has done",
		edits:    []edit{{"processor/deadletter/redrive.go", "		records = append(records, w.progress.record(w.found.Topology.Manifest, id))\n", "		_ = id\n"}},
		aims:     inProcessor("^TestRedriveGoesOnWhereItStopped$"),
		notInSim: outsideSim,
	},
	{
		name:    "redrive-with-an-id-of-its-own",
		hazards: []string{"R2"},
		does:    "a second redrive does not fence the first",
		edits: []edit{{"processor/deadletter/redrive.go", "conn.OpenWriter(ctx, TransactionalID(c.cfg.AppID), ",
			"conn.OpenWriter(ctx, TransactionalID(c.cfg.AppID)+time.Now().String(), "}},
		aims:     inProcessor("^TestTwoRedrivesAtATime$"),
		notInSim: outsideSim,
	},
	{
		name:     "redrive-order-of-dead-letters",
		hazards:  []string{"R5"},
		does:     "records come back in the order of their dead letters",
		edits:    []edit{{"processor/deadletter/plan.go", "			e.rank = max(e.rank, before.rank)\n", ""}},
		aims:     []suite{letterSuite.aimed("^TestOrderIsThatOfTheRawPartitions$")},
		notInSim: outsideSim,
	},
	{
		name:    "attempt-lost-on-the-way",
		hazards: []string{"R4"},
		does:    "the router drops the attempt of a redrive, so a record that a task turns away is redriven for ever",
		edits: []edit{{"processor/judge/router.go", "			if _, ok := wire.RedriveAttempt(&rec.Headers[i]); !ok {\n				continue\n			}\n",
			"			continue\n"}},
		aims: inScript("bad_input", "redrive-attempt-of-a-late-event"),
	},
}
