package conformance

import (
	"slices"
	"strings"
	"testing"
	"time"
)

var yes = "yes"

// play is a timeline that a test writes.
type play struct {
	Timeline

	now  time.Time
	sent int64
}

func newPlay() *play { return &play{Timeline: Timeline{OffsetsRead: true}, now: time.Unix(1000, 0)} }

func (p *play) add(e Entry) *play {
	e.At = p.now
	p.Entries = append(p.Entries, e)
	return p
}

func (p *play) after(d time.Duration) *play {
	p.now = p.now.Add(d)
	return p
}

var work = &Event{Name: "work", Outcome: "completed", Result: &yes}

// dispatch dispatches an event with a token; "" without a claim.
func (p *play) dispatch(token string, change ...func(*Dispatch)) *play {
	d := &Dispatch{Event: work, Token: token, Attempt: 1, Offset: p.sent}
	if token != "" {
		d.Key = "key-" + token
	}
	p.sent++
	for _, c := range change {
		c(d)
	}
	return p.add(Entry{What: Dispatched, Dispatch: d})
}

func (p *play) ask(token, kind, id string, granted bool) *play {
	return p.add(Entry{What: Asked, Token: token, Kind: kind, StartID: id}).add(Entry{What: Answered, Token: token, Kind: kind, StartID: id, Granted: granted})
}

var transaction = Producer{ID: 7, Epoch: 1, Transactional: true}

func (p *play) outcome(token string, by Producer) *play {
	return p.add(Entry{What: Outcome, Token: token, Kind: "completed", Value: []byte(yes), Producer: by})
}

func (p *play) commit(next int64, by Producer) *play {
	return p.add(Entry{What: Committed, Offset: next, Producer: by})
}

// charge books a charge at the gateway.
func (p *play) charge(reference string) *play {
	return p.add(Entry{What: Booked, Reference: reference})
}

// answered is a dispatch with all that an executor should do.
func (p *play) answered(token string) *play {
	p.dispatch(token).ask(token, "start", "a", true).outcome(token, transaction)
	return p.commit(p.sent, transaction)
}

// TestCheck: each rule is broken by what breaks it, and by nothing else.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := &Scenario{Lease: 5 * time.Second, Start: true, Transaction: true}
	other := Producer{ID: 7, Epoch: 2, Transactional: true}
	for name, test := range map[string]struct {
		timeline *play
		broken   []Rule
	}{
		"all is well":                      {newPlay().answered("1").add(Entry{What: Killed}).answered("2"), nil},
		"an event without a claim":         {newPlay().dispatch("").commit(1, transaction), nil},
		"an aborted event is read":         {newPlay().dispatch("1", aborted).ask("1", "start", "a", false).answered("2"), []Rule{ReadsCommitted}},
		"an aborted event is left alone":   {newPlay().dispatch("1", aborted).answered("2"), nil},
		"a token that no event has":        {newPlay().answered("1").outcome("9", transaction), []Rule{KnownToken}},
		"no token":                         {newPlay().answered("1").outcome("", transaction), []Rule{KnownToken}},
		"a question with an unknown token": {newPlay().answered("1").ask("9", "renew", "a", false), []Rule{KnownToken}},
		"a request that waits":             {newPlay().dispatch("", waits).add(replied("r")).commit(1, transaction), nil},
		"a request that waits in vain":     {newPlay().dispatch("", waits).commit(1, transaction), []Rule{OutcomeForEach}},
		"a request that does not wait":     {newPlay().answered("1").add(replied("r")), []Rule{KnownToken}},
		"two replies":                      {newPlay().dispatch("", waits).add(replied("r")).add(replied("r")).commit(1, transaction), []Rule{OutcomeOnce}},
		"a reply to a token":               {newPlay().answered("1").add(replied("1")), []Rule{KnownToken}},
		"no outcome":                       {newPlay().dispatch("1").ask("1", "start", "a", true).commit(1, transaction), []Rule{OutcomeForEach}},
		"the executor ended":               {newPlay().answered("1").add(Entry{What: Missed, Note: "it has ended"}), []Rule{OutcomeForEach}},
		"two outcomes":                     {newPlay().answered("1").outcome("1", transaction), []Rule{OutcomeOnce}},
		"an outcome after the crash, too":  {newPlay().answered("1").add(Entry{What: Killed}).outcome("1", other), []Rule{OutcomeOnce}},
		"another value":                    {newPlay().dispatch("1").ask("1", "start", "a", true).add(Entry{What: Outcome, Token: "1", Kind: "completed", Producer: transaction}).commit(1, transaction), []Rule{Result}},
		"another kind":                     {newPlay().dispatch("1").ask("1", "start", "a", true).add(Entry{What: Outcome, Token: "1", Kind: "failed", Value: []byte(yes), Producer: transaction}).commit(1, transaction), []Rule{Result}},
		"an outcome in no transaction":     {newPlay().dispatch("1").ask("1", "start", "a", true).outcome("1", Producer{}).commit(1, transaction), []Rule{OneTransaction}},
		"an offset in no transaction":      {newPlay().dispatch("1").ask("1", "start", "a", true).outcome("1", transaction).commit(1, Producer{}), []Rule{OneTransaction}},
		"an offset in another transaction": {newPlay().dispatch("1").ask("1", "start", "a", true).outcome("1", transaction).commit(1, other), []Rule{OneTransaction}},
		"an offset that is not committed":  {newPlay().answered("1").dispatch(""), []Rule{EveryOffset}},
		"no start":                         {newPlay().dispatch("1").outcome("1", transaction).commit(1, transaction), []Rule{AsksStart}},
		"a start without an id":            {newPlay().dispatch("1").ask("1", "start", "", true).outcome("1", transaction).commit(1, transaction), []Rule{AsksStart}},
		"a start after the outcome":        {newPlay().dispatch("1").outcome("1", transaction).ask("1", "start", "a", true).commit(1, transaction), []Rule{AsksStart}},
		"a refused start":                  {newPlay().dispatch("1", refused).ask("1", "start", "a", false).outcome("1", transaction).commit(1, transaction), []Rule{HonoursStart}},
		"a refused start is skipped":       {newPlay().dispatch("1", refused).ask("1", "start", "a", false).commit(1, transaction), nil},
		"another start id after a crash":   {newPlay().dispatch("1").ask("1", "start", "a", true).add(Entry{What: Killed}).ask("1", "start", "b", false).outcome("1", transaction).commit(1, transaction), []Rule{KeepsStartID}},
		"another executor asks":            {newPlay().dispatch("1").ask("1", "start", "a", true).ask("1", "start", "b", false).outcome("1", transaction).commit(1, transaction), nil},
		"renewed in time":                  {newPlay().dispatch("1", renewed).ask("1", "start", "a", true).after(5*time.Second).ask("1", "renew", "a", true).after(5*time.Second).outcome("1", transaction).commit(1, transaction), nil},
		"renewed too late":                 {newPlay().dispatch("1", renewed).ask("1", "start", "a", true).after(6*time.Second).ask("1", "renew", "a", true).outcome("1", transaction).commit(1, transaction), []Rule{RenewsInTime}},
		"not renewed":                      {newPlay().dispatch("1", renewed).ask("1", "start", "a", true).after(6*time.Second).outcome("1", transaction).commit(1, transaction), []Rule{RenewsInTime}},
		"not renewed to its end":           {newPlay().dispatch("1", renewed).ask("1", "start", "a", true).after(time.Second).ask("1", "renew", "a", true).after(6*time.Second).outcome("1", transaction).commit(1, transaction), []Rule{RenewsInTime}},
		"stops when it is superseded":      {newPlay().dispatch("1").ask("1", "start", "a", true).add(Entry{What: Superseded, Token: "1"}).commit(1, transaction), nil},
		"just ends when it is superseded":  {newPlay().dispatch("1").ask("1", "start", "a", true).add(Entry{What: Superseded, Token: "1"}).after(5*time.Second).outcome("1", transaction).commit(1, transaction), nil},
		"works on when it is superseded":   {newPlay().dispatch("1").ask("1", "start", "a", true).add(Entry{What: Superseded, Token: "1"}).after(6*time.Second).outcome("1", transaction).commit(1, transaction), []Rule{StopsWhenOver}},
		"a transaction is open while idle": {newPlay().answered("1").add(Entry{What: IdleOpen}), []Rule{IdleFree}},
		"the group is left while idle":     {newPlay().answered("1").add(Entry{What: GroupLost}), []Rule{IdleFree}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			verdicts := Check(s, &test.timeline.Timeline)
			if broken := Broken(verdicts); !slices.Equal(broken, test.broken) {
				t.Errorf("broken are %v, want %v: %+v", broken, test.broken, verdicts)
			}
		})
	}
}

func waits(d *Dispatch)     { d.ReplyTo = "r" }
func aborted(d *Dispatch)   { d.Aborted = true }
func refused(d *Dispatch)   { d.Refused = true }
func renewed(d *Dispatch)   { d.Renewed = true }
func secondOf1(d *Dispatch) { d.Key, d.Attempt = "key-1", 2 }
func toReject(d *Dispatch)  { d.Event = &Event{Name: "poison", Outcome: "rejected"} }

// replied is an outcome for a request that waits.
func replied(to string) Entry {
	return Entry{What: Outcome, ReplyTo: to, Kind: "completed", Value: []byte(yes), Producer: transaction}
}

// charged is an answered event with its charge.
func (p *play) charged(token string) *play { return p.answered(token).charge("key-" + token) }

// TestCheckEffects: what the gateway booked is judged with what was dispatched.
func TestCheckEffects(t *testing.T) {
	t.Parallel()
	s := &Scenario{Lease: 5 * time.Second, Start: true, Transaction: true, Steps: []Step{{Kind: StepUnclaimed}}}
	const own = "input/0/1"
	for name, test := range map[string]struct {
		timeline *play
		broken   []Rule
		finding  string
	}{
		"one charge for each": {newPlay().charged("1").dispatch("").charge(own).add(Entry{What: Killed}).charged("2").commit(3, transaction), nil, ""},
		"two charges":         {newPlay().charged("1").charge("key-1"), []Rule{EffectOnce}, "2 charges for event work of step 1, attempt 1, at 0/0"},
		"a charge after the crash, too": {
			newPlay().charged("1").add(Entry{What: Killed}).charge("key-1"), []Rule{EffectOnce}, "at 0/0, before the crash and after it",
		},
		"no charge for one":           {newPlay().charged("1").answered("2"), []Rule{EffectOnce}, "event work of step 1, attempt 1, at 0/1 is completed, and no charge"},
		"one charge for two attempts": {newPlay().charged("1").dispatch("2", secondOf1).ask("2", "start", "a", true).outcome("2", transaction).commit(2, transaction), nil, ""},
		"two charges for two attempts": {
			newPlay().charged("1").dispatch("2", secondOf1).ask("2", "start", "a", true).outcome("2", transaction).charge("key-1").commit(2, transaction), []Rule{EffectOnce}, "2 charges",
		},
		"none where it is superseded": {
			newPlay().charged("1").dispatch("2").ask("2", "start", "a", true).add(Entry{What: Superseded, Token: "2"}).outcome("2", transaction).commit(2, transaction), nil, "",
		},
		"none where it is rejected": {
			newPlay().charged("1").dispatch("2", toReject).ask("2", "start", "a", true).add(Entry{What: Outcome, Token: "2", Kind: "rejected", Producer: transaction}).commit(2, transaction), nil, "",
		},
		"none for an unclaimed one that is rejected": {newPlay().charged("1").dispatch("", toReject).commit(2, transaction), nil, ""},
		"a refused start is charged": {
			newPlay().charged("1").dispatch("2", refused).ask("2", "start", "a", false).charge("key-2").commit(2, transaction), []Rule{HonoursStart}, "a charge for event work of step 1, attempt 1, at 0/1, whose start",
		},
		"an aborted event is charged":     {newPlay().dispatch("1", aborted).charge("key-1").charged("2"), []Rule{ReadsCommitted}, "a charge for event work of step 1, attempt 1, at 0/0: its transaction"},
		"an unclaimed event is skipped":   {newPlay().charged("1").dispatch("").commit(2, transaction), []Rule{UnclaimedOnce}, "no oncebus-key: 0, want one for each event without a claim: 1"},
		"an unclaimed event is run twice": {newPlay().charged("1").dispatch("").charge("a").charge("b").commit(2, transaction), []Rule{UnclaimedOnce}, "no oncebus-key: 2, want"},
		"one of two is run twice": {
			newPlay().charged("1").dispatch("").dispatch("").charge(own).charge(own).commit(3, transaction), []Rule{UnclaimedOnce}, `2 charges with the reference "input/0/1"`,
		},
		"an unclaimed event gets an outcome": {
			newPlay().charged("1").dispatch("").charge(own).outcome("", transaction).commit(2, transaction), []Rule{KnownToken, UnclaimedOnce}, "records without a token on the outcomes topic: 1",
		},
		"the executor does not charge": {newPlay().answered("1").dispatch("").commit(2, transaction), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			verdicts := Check(s, &test.timeline.Timeline)
			if broken := Broken(verdicts); !slices.Equal(broken, test.broken) {
				t.Errorf("broken are %v, want %v: %+v", broken, test.broken, verdicts)
			}
			findings := ""
			for _, v := range verdicts {
				findings += strings.Join(v.Findings, "\n")
			}
			if !strings.Contains(findings, test.finding) {
				t.Errorf("findings %q, want %q", findings, test.finding)
			}
		})
	}
}

// TestCheckJudgesEffectsItHasSeen: without a charge nothing is judged, and events without a claim
// only if the scenario has some.
func TestCheckJudgesEffectsItHasSeen(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		steps []Step
		play  *play
		held  []Rule
	}{
		"no charge":          {[]Step{{Kind: StepUnclaimed}}, newPlay().answered("1"), nil},
		"no unclaimed event": {nil, newPlay().charged("1"), []Rule{EffectOnce}},
		"both":               {[]Step{{Kind: StepUnclaimed}}, newPlay().charged("1").dispatch("").charge("own").commit(2, transaction), []Rule{EffectOnce, UnclaimedOnce}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var held []Rule
			for _, v := range Check(&Scenario{Lease: time.Second, Steps: test.steps}, &test.play.Timeline) {
				if v.Held && (v.Rule == EffectOnce || v.Rule == UnclaimedOnce) {
					held = append(held, v.Rule)
				}
			}
			if !slices.Equal(held, test.held) {
				t.Errorf("%v hold, want %v", held, test.held)
			}
		})
	}
	stray := newPlay().charged("1").charge("own")
	if broken := Broken(Check(&Scenario{Lease: time.Second}, &stray.Timeline)); !slices.Equal(broken, []Rule{EffectOnce}) {
		t.Errorf("a charge with a reference that no event has breaks %v", broken)
	}
}

// TestCheckJudgesWhatItHasSeen: a rule without an occasion is not judged, and findings are
// bounded.
func TestCheckJudgesWhatItHasSeen(t *testing.T) {
	t.Parallel()
	s := &Scenario{Lease: time.Second}
	p := newPlay()
	for range 7 {
		p.outcome("unknown", Producer{})
	}
	for _, v := range Check(s, &p.Timeline) {
		if v.Judged != (v.Rule == KnownToken) || v.Held {
			t.Errorf("%s: judged %t, held %t", v.Rule, v.Judged, v.Held)
		}
		if v.Rule == KnownToken && (len(v.Findings) != findingsMax+1 || v.Findings[findingsMax] != "and 2 more") {
			t.Errorf("findings %q", v.Findings)
		}
	}
	s = &Scenario{Lease: time.Second, Steps: []Step{{Kind: StepAbort}, {Kind: StepIdle}}}
	held := []Rule{}
	for _, v := range Check(s, &newPlay().dispatch("1").outcome("1", Producer{}).commit(1, Producer{}).Timeline) {
		if v.Held {
			held = append(held, v.Rule)
		}
	}
	// Without start and transaction their rules are not judged.
	if want := []Rule{ReadsCommitted, KnownToken, OutcomeForEach, OutcomeOnce, Result, EveryOffset, IdleFree}; !slices.Equal(held, want) {
		t.Errorf("%v hold, want %v", held, want)
	}
}

// TestOffsetsThatWereNotRead: without the commits of offsets, only the outcome's own transaction
// is judged.
func TestOffsetsThatWereNotRead(t *testing.T) {
	t.Parallel()
	s := &Scenario{Lease: time.Second, Transaction: true}
	for by, broken := range map[Producer]int{transaction: 0, {}: 1} {
		p := newPlay().dispatch("1").outcome("1", by).commit(1, Producer{})
		p.OffsetsRead = false
		if got := Broken(Check(s, &p.Timeline)); len(got) != broken {
			t.Errorf("%+v: broken are %v", by, got)
		}
	}
}

// TestRulesAreNamedOnce: the names are an interface.
func TestRulesAreNamedOnce(t *testing.T) {
	t.Parallel()
	seen := map[Rule]bool{}
	for _, r := range Rules {
		if seen[r.Rule] || r.Demands == "" || strings.ToLower(string(r.Rule)) != string(r.Rule) {
			t.Errorf("rule %q", r.Rule)
		}
		seen[r.Rule] = true
	}
}
