package conformance

// A Rule is a rule of the protocol that an executor must keep.
type Rule string

// The rules. Their names are an interface.
const (
	ReadsCommitted Rule = "reads-committed"
	KnownToken     Rule = "known-token"
	OutcomeForEach Rule = "outcome-for-each"
	OutcomeOnce    Rule = "outcome-once"
	EffectOnce     Rule = "effect-once"
	UnclaimedOnce  Rule = "unclaimed-once"
	Result         Rule = "result"
	OneTransaction Rule = "one-transaction"
	EveryOffset    Rule = "every-offset"
	AsksStart      Rule = "asks-start"
	HonoursStart   Rule = "honours-start"
	KeepsStartID   Rule = "keeps-start-id"
	RenewsInTime   Rule = "renews-in-time"
	StopsWhenOver  Rule = "stops-when-superseded"
	IdleFree       Rule = "idle-holds-nothing"
)

// Rules lists every rule with the text of its demand, in the order of the printed table.
var Rules = []struct {
	Rule    Rule
	Demands string
}{
	{ReadsCommitted, "nothing of an aborted transaction is read"},
	{KnownToken, "each outcome and question has the token of its event, unchanged"},
	{OutcomeForEach, "each claimed event gets an outcome, also after a crash and an idle time"},
	{OutcomeOnce, "no event gets two outcomes, also after a crash"},
	{EffectOnce, "each completed event has one effect at the gateway, also after a crash in the work"},
	{UnclaimedOnce, "an event without a claim is run once, and only a request that waits gets its outcome"},
	{Result, "kind and value of each outcome are those of the scenario, byte for byte"},
	{OneTransaction, "outcome and offset are in one transaction"},
	{EveryOffset, "the offset of every event is committed, also without an outcome"},
	{AsksStart, "a start is granted before the outcome of each event"},
	{HonoursStart, "no outcome and no effect for an event whose start was superseded"},
	{KeepsStartID, "an event that was granted before a crash is asked for with the same start id"},
	{RenewsInTime, "an event that takes longer than the lease is renewed within each lease"},
	{StopsWhenOver, "no outcome more than a lease after the attempt was superseded"},
	{IdleFree, "no transaction is open and the group has a member while no event comes"},
}

// Verdict is the result for one rule of a run.
type Verdict struct {
	Rule    Rule   `json:"rule"`
	Demands string `json:"demands"`
	// Judged reports that the run gave an occasion to judge the rule.
	Judged   bool     `json:"judged"`
	Held     bool     `json:"held"`
	Findings []string `json:"findings,omitempty"`
}

// findingsMax is how many findings of a rule a verdict has. Another line tells how many more there are.
const findingsMax = 5

// Broken returns the rules that were judged and do not hold.
func Broken(verdicts []Verdict) (broken []Rule) {
	for i := range verdicts {
		if verdicts[i].Judged && !verdicts[i].Held {
			broken = append(broken, verdicts[i].Rule)
		}
	}
	return broken
}
