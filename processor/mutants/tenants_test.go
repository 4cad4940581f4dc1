//go:build mutants

package mutants

const noTenantInSim = "the simulation has no tenants"

// tenantList has the defects of keys over other parts, of tenants and of their quotas.
var tenantList = []mutant{
	{
		name:     "tenant-outside-the-key",
		hazards:  []string{"U1"},
		does:     "two tenants share the keys of equal ids",
		edits:    []edit{{"dedup/rules/tenant.go", "	d.scope = append(appendPart(d.scope, scopeName, d.tenant), b...)\n", "	d.scope = append(appendPart(d.scope, scopeName, nil), b...)\n"}},
		aims:     []suite{rulesSuite.aimed("^TestTenantsHaveKeysOfTheirOwn$")},
		notInSim: noTenantInSim,
	},
	{
		name:     "part-without-its-name",
		hazards:  []string{"U2"},
		does:     "a header is taken for a field of its name",
		edits:    []edit{{"dedup/rules/source_part.go", `		return "." + fieldPartNames[f.part] + ":" + f.header` + "\n", "		return f.header\n"}},
		aims:     []suite{rulesSuite.aimed("^TestPartsAreNeverConfused$")},
		notInSim: noTenantInSim,
	},
	{
		name:     "principal-of-the-sender",
		hazards:  []string{"U3"},
		does:     "a request may carry a header with the name of the principal's",
		edits:    []edit{{"dedup/rules/header.go", "		case name == PrincipalHeader:\n", "		case name == PrincipalHeader && d == nil:\n"}},
		aims:     []suite{rulesSuite.aimed("^TestMistakesInParts$")},
		notInSim: noTenantInSim,
	},
	{
		name:     "quota-forgets-its-buckets",
		hazards:  []string{"U4"},
		does:     "the checkpoint lacks the keys of all but the newest bucket",
		edits:    []edit{{"dedup/tenantaccount.go", "			used = int(i) + 1\n", "			used = 1\n"}},
		aims:     inDedup("^TestTenantsAreWhatWasCommitted$"),
		notInSim: noTenantInSim,
	},
	{
		name:     "abort-keeps-the-grant",
		hazards:  []string{"U4"},
		does:     "an aborted transaction leaves what it granted",
		edits:    []edit{{"dedup/tenants.go", "		before := *a\n", "		before := *a\n		before.keys++\n"}},
		aims:     inDedup("^TestTenantsAreWhatWasCommitted$"),
		notInSim: noTenantInSim,
	},
	{
		name:     "restore-without-tenants",
		hazards:  []string{"U4"},
		does:     "a task that moves begins its quotas again",
		edits:    []edit{{"processor/restore/count.go", "	all.LoadTenants(a, c.Tenants)\n", ""}},
		aims:     inProcessor("^TestQuotaMovesWithTheTask$"),
		notInSim: noTenantInSim,
	},
	{
		name:     "invented-tenants",
		hazards:  []string{"U6"},
		does:     "every name gets an account",
		edits:    []edit{{"dedup/tenants.go", "len(t.accounts) >= t.most {\n			name = nil", "len(t.accounts) < 0 {\n			name = nil"}},
		aims:     inDedup("^TestInventedTenantsShareAnAccount$"),
		notInSim: noTenantInSim,
	},
	{
		name:     "duplicate-over-quota",
		hazards:  []string{"U7"},
		does:     "a duplicate takes the place of a new key",
		edits:    []edit{{"processor/judge/judge.go", "	case turn == turnFresh && !t.takeTenant(j, ev):\n", "	case turn == turnFresh && (!t.takeTenant(j, ev) || !t.hasRoom(j, ev)):\n"}},
		aims:     inProcessor("^TestTenantOverItsQuotaTakesNothingFromAnother$"),
		notInSim: noTenantInSim,
	},
	{
		name:     "over-quota-emitted",
		hazards:  []string{"U5"},
		does:     "an event over the rate is judged all the same",
		edits:    []edit{{"processor/judge/judge.go", "	case turn == turnFresh && !t.takeTenant(j, ev):\n", "	case turn == turnFresh && !t.takeTenant(j, ev) && ev.rec == nil:\n"}},
		aims:     inProcessor("^TestRateOfATenant$"),
		notInSim: noTenantInSim,
	},
	{
		name:     "quota-when-it-is-read",
		hazards:  []string{"U8"},
		does:     "an event counts at the time at which its task gets it",
		edits:    []edit{{"processor/judge/tenant.go", "	case !follows:\n", "	case !follows || at >= 0:\n"}},
		aims:     inJudge("^TestOutagePutsNoTenantOverItsQuota$"),
		notInSim: noTenantInSim,
	},
	{
		name:     "quota-by-the-input-read-furthest",
		hazards:  []string{"U8"},
		does:     "a tenant loses what the events of an input that is read later would ask for",
		edits:    []edit{{"processor/wire/sources.go", "	since := slices.Min(s.readTo)\n", "	since := slices.Max(s.readTo)\n"}},
		aims:     inJudge("^TestOutagePutsNoTenantOverItsQuota$"),
		notInSim: noTenantInSim,
	},
	{
		name:     "restart-takes-what-was-not-used",
		hazards:  []string{"U8"},
		does:     "a task that does not know how far the inputs were read takes them for read",
		edits:    []edit{{"dedup/tenants.go", "	since = min(max(since, 0), now)\n", "	if since = min(since, now); since <= 0 {\n		since = now\n	}\n"}},
		aims:     inJudge("^TestOutagePutsNoTenantOverItsQuota$"),
		notInSim: noTenantInSim,
	},
}
