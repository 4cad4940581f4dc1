//go:build mutants

package mutants

var (
	formatsSuite  = suite{name: "formats", pkg: "dedup/formats", skip: "^(Bench|Fuzz)"}
	registrySuite = suite{name: "registry", pkg: "processor/registry", skip: "^(Bench|Fuzz)"}
)

const formatsOutsideSim = "its events are JSON"

// formatList has the defects of formats with schemas, and of the registry's client.
var formatList = []mutant{
	{
		name:     "registry-fault-is-a-verdict",
		hazards:  []string{"K5"},
		does:     "a registry that answers with an error makes the records of its schemas invalid",
		edits:    []edit{{"processor/registry/registry.go", "	case isUnknown(err) && r.isUnknownFor(of):\n", "	default:\n"}},
		aims:     []suite{registrySuite.aimed("^TestRegistryFaultsAreNoVerdict$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "any-404-is-unknown",
		hazards:  []string{"K5"},
		does:     "a proxy that does not find the registry makes records invalid",
		edits:    []edit{{"processor/registry/registry.go", " && response.ErrorCode == sr.ErrSchemaNotFound.Code", ""}},
		aims:     []suite{registrySuite.aimed("^TestRegistryFaultsAreNoVerdict$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "lagging-replica-is-a-verdict",
		hazards:  []string{"K5"},
		does:     "a schema that a replica of the registry does not have yet makes records invalid",
		edits:    []edit{{"processor/registry/registry.go", "r.now().Sub(since) >= r.cfg.UnknownAfter", "true"}},
		aims:     []suite{registrySuite.aimed("^TestUnknownSchemaWaitsForLaggingReplicas$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "pending-schema-is-malformed",
		hazards:  []string{"K5"},
		does:     "a record whose schema was not read yet is invalid",
		edits:    []edit{{"dedup/rules/format.go", "		d.pending, d.isPending = located.Schema, true\n", "		d.pending = located.Schema\n"}},
		aims:     []suite{rulesSuite.aimed("^TestSchemaPending$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "all-of-a-poll-wait",
		hazards:  []string{"K5"},
		does:     "an unread schema also stops the partitions whose records came with it",
		edits:    []edit{{"processor/transaction.go", "		if failed == nil {\n			failed = x.processPartition(&p)\n		}\n", "		if pending, ok := errors.AsType[*judge.PendingSchemaError](failed); ok {\n			x.schemas.await(x.client, app.TaskID{Topic: p.Topic, Partition: p.Partition}, pending)\n		} else if failed == nil {\n			failed = x.processPartition(&p)\n		}\n"}},
		aims:     []suite{processorSuite.aimed("^TestOtherPartitionsOfAPollGoOn$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "absent-is-zero",
		hazards:  []string{"K6"},
		does:     "an optional Protobuf field that was not set is the id 0, so all events without an id are one",
		edits:    []edit{{"dedup/formats/protobuf.go", "implicit: !of.HasPresence() && ", "implicit: of.Message() == nil && "}},
		aims:     []suite{formatsSuite.aimed("^TestProtobufDefaultsAreValues$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "zero-is-absent",
		hazards:  []string{"K6"},
		does:     "a Protobuf field that has its default is absent, so the event with the id 0 is a dead letter",
		edits:    []edit{{"dedup/formats/protoread.go", "		if next == at && !f.implicit {\n", "		if next == at {\n"}},
		aims:     []suite{formatsSuite.aimed("^TestProtobufDefaultsAreValues$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "large-integers-are-rounded",
		hazards:  []string{"K6"},
		does:     "integers over 2^53 are numbers, which are refused or, rounded, one id",
		edits:    []edit{{"dedup/formats/text.go", "const exactMax = 1 << 53\n", "const exactMax = 1<<63 - 1\n"}},
		aims:     []suite{rulesSuite.aimed("^TestLargeIntegersAreIDs$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "scale-changes-the-key",
		hazards:  []string{"K6"},
		does:     "a decimal of another scale is another key, so a copy with an evolved schema is emitted",
		edits:    []edit{{"dedup/formats/text.go", "	for scale > 0 && len(digits) > 1 && digits[len(digits)-1] == '0' {\n", "	for false {\n"}},
		aims:     []suite{formatsSuite.aimed("^TestAvroKeepsTheTextOfAnEvolvedSchema$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "nested-too-deep",
		hazards:  []string{"K7"},
		does:     "a record may nest values deeper than the bound, and the stack grows with each",
		edits:    []edit{{"dedup/formats/msgpack.go", "	if depth > depthMax {\n", "	if depth > 100*depthMax {\n"}},
		aims:     []suite{formatsSuite.aimed("^TestDamagedMessagePack$")},
		notInSim: formatsOutsideSim,
	},
	{
		name:     "float-epoch-in-nanoseconds",
		does:     "a time of CBOR that is a float is written in the nanoseconds of the float",
		edits:    []edit{{"dedup/formats/cbor.go", "value == cborEpoch && next", "value == cborUUID && next"}},
		aims:     []suite{formatsSuite.aimed("^TestCBORAsJSON$")},
		notInSim: "its events are JSON",
	},
}
