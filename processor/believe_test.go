package processor_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
)

// A combination says what one partition has lost when its app starts again.
type combination struct{ local, changelog, group, input string }

// The offsets of a partition before it loses something: it had two lives of perPartition events each. A store that is
// behind dates from the first life. After the second life came events that no task has read.
const (
	perPartition = 4
	behindNext   = perPartition     // also the group's offset that is behind
	next         = 2 * perPartition // the offset of the newest checkpoint
	aheadOffset  = next + 3
	cutTo        = next + 1 // of a cut input: it loses one event
)

// cutAboveWhole is a changelog that begins after its newest whole checkpoint: it has rows, and partial checkpoints
// that are relative to the deleted whole checkpoint.
const cutAboveWhole = "cut above its whole checkpoint"

// combinations returns all combinations with these states of the changelog and of the input.
func combinations(changelogs, inputs []string) (all []combination) {
	locals, _, groups, _ := axes()
	for _, local := range locals {
		for _, changelog := range changelogs {
			for _, group := range groups {
				for _, input := range inputs {
					all = append(all, combination{local, changelog, group, input})
				}
			}
		}
	}
	return all
}

// stateProblem returns the problem for which the task is refused because of its rows, or "" if a complete state is
// known. A whole local store is enough. Otherwise the changelog must have what the store lacks. A store of a
// recreated changelog belongs to another topic.
func (c combination) stateProblem() app.Problem {
	switch {
	case c.changelog == "recreated":
		return app.StateLost
	case c.local == "whole", c.changelog == "whole", c.local == "behind" && c.changelog == "cut below the position":
		return ""
	case c.local == "behind", c.changelog != "emptied":
		return app.ChangelogCut
	}
	return app.StateLost
}

// stateWays returns the decisions that an operator may take after a state problem.
func (c combination) stateWays() (ways []app.Way) {
	if c.changelog != "recreated" && (c.local == "whole" || c.local == "behind") {
		ways = append(ways, app.BelieveLocal)
	}
	if c.changelog != "recreated" && c.changelog != "emptied" && c.changelog != cutAboveWhole {
		ways = append(ways, app.BelieveChangelog)
	}
	return append(ways, app.BelieveNothing)
}

// routeProblem returns the problem for which a partition of a routed topic is refused. The app stopped cleanly, so
// the mark of the partition is exact.
func (c combination) routeProblem() (app.Problem, []app.Way) {
	either := []app.Way{app.FromMark, app.FromGroup, app.FromStart, app.FromOffset}
	switch {
	case c.input == "recreated":
		return app.TopicRecreated, either[2:]
	case c.group == "ahead":
		return app.OffsetsAhead, either
	case c.group == "behind":
		return app.OffsetsReset, either
	case c.input == "cut":
		return app.InputDeleted, either[2:]
	}
	return "", nil
}

// nextAfter returns the input offset at which a task of a prepartitioned topic goes on after the operator's decision
// on its state. The way is "" if no decision was needed.
func (c combination) nextAfter(way app.Way) int64 {
	logged, stored := c.changelog != "recreated" && c.changelog != "emptied", slices.Contains(c.stateWays(), app.BelieveLocal)
	group := map[string]int64{"there": next, "gone": -1, "ahead": aheadOffset, "behind": behindNext}[c.group]
	switch {
	case c.input == "recreated":
		return 0
	case way == app.BelieveLocal:
		return behindNext
	case way != app.BelieveNothing || logged:
		return next
	case stored:
		return max(behindNext, group)
	case group < 0 && c.input == "cut":
		return cutTo
	}
	return max(0, group)
}

// stateOutcome describes for an operator what a start does with the rows of a combination.
func (c combination) stateOutcome() string {
	problem := c.stateProblem()
	if problem == "" {
		return "goes on"
	}
	outcome := refusedFor(problem, c.stateWays())
	if c.changelog == "recreated" {
		outcome = "`--recreated`, then " + outcome
	}
	return outcome
}

// inputOutcome describes what a start does with the input and the group's offset, if the state is known.
func (c combination) inputOutcome(k *inputKind) string {
	if problem, ways := c.routeProblem(); k.routed && problem != "" {
		return refusedFor(problem, ways)
	}
	switch {
	case k.routed, c.input == "whole":
		return "goes on"
	case c.input == "cut":
		return refusedFor(app.InputDeleted, []app.Way{app.InputLost})
	}
	return "`--recreated`"
}

// refusedFor names a refusal and the flags of the command that decides on it.
func refusedFor(problem app.Problem, ways []app.Way) string {
	flags := "`" + string(problem) + "`: "
	for n, way := range ways {
		option, value, _ := strings.Cut(way.Flag(), " ")
		switch {
		case n > 0:
			flags += ", " + value
		case value == "":
			flags += "`" + option + "`"
		default:
			flags += "`" + option + "` " + value
		}
	}
	return strings.ReplaceAll(flags, "OFFSET", "N")
}

// TestBelievedTables protects that the page's tables list the same outcomes that TestWhatIsBelieved expects.
func TestBelievedTables(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	row := func(cells ...string) { text.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	locals, changelogs, groups, inputs := axes()
	row(append([]string{"changelog"}, locals...)...)
	text.WriteString(strings.Repeat("| --- ", 1+len(locals)) + "|\n")
	for _, changelog := range changelogs {
		cells := []string{changelog}
		for _, local := range locals {
			cells = append(cells, combination{local: local, changelog: changelog}.stateOutcome())
		}
		row(cells...)
	}
	text.WriteString("\n")
	row(append([]string{"input"}, groups...)...)
	text.WriteString(strings.Repeat("| --- ", 1+len(groups)) + "|\n")
	for _, k := range inputKinds() {
		for _, input := range inputs {
			cells := []string{k.name + ", " + input}
			for _, group := range groups {
				cells = append(cells, combination{input: input, group: group}.inputOutcome(k))
			}
			row(cells...)
		}
	}
	page, err := os.ReadFile("../deployments/OPERATIONS.md")
	must(t, err)
	if !strings.Contains(string(page), text.String()) {
		t.Errorf("OPERATIONS.md has other tables than these:\n%s", text.String())
	}
}

// axes returns the values of each dimension of a combination.
func axes() (locals, changelogs, groups, inputs []string) {
	return []string{"whole", "behind", "absent", "of another cluster"},
		[]string{"whole", "cut below the position", "cut above the position", cutAboveWhole, "emptied", "recreated"},
		[]string{"there", "gone", "ahead", "behind"},
		[]string{"whole", "cut", "recreated"}
}

// An inputKind is how tasks get their input.
type inputKind struct {
	name, routes string
	routed       bool
	task         string // the topic of the tasks
	changelog    string
}

func inputKinds() []*inputKind {
	return []*inputKind{
		{"routed", benchRoutes, true, "app-repartition", "app-repartition-changelog"},
		{"prepartitioned", keyedRoutes, false, "signals.raw", "app-signals.raw-changelog"},
	}
}

// TestWhatIsBelieved starts apps after every combination of losses, with one combination per partition. A topic is
// recreated as a whole, so the combinations with a recreated topic share an app. Each partition goes on at the exact
// offset, or is refused with the command that decides. Each way that a refusal offers is taken by some of the
// partitions with this refusal. In the end no event has been emitted twice and none is missing: each event is in the
// output, or is a dead letter, or is one of the records whose loss a refusal stated. Where the state is known, the
// oracle judges the whole history.
func TestWhatIsBelieved(t *testing.T) {
	t.Parallel()
	_, changelogs, _, inputs := axes()
	changelogs, inputs = changelogs[:5], inputs[:2]
	recreated := []string{"recreated"}
	kinds := inputKinds()
	if testing.Short() {
		kinds = kinds[:1]
	}
	for _, k := range kinds {
		for name, all := range map[string][]combination{
			"topics of before":    combinations(changelogs, inputs),
			"recreated changelog": combinations(recreated, inputs),
			"recreated input":     combinations(changelogs, recreated),
			"both recreated":      combinations(recreated, recreated),
		} {
			t.Run(k.name+", "+name, func(t *testing.T) {
				t.Parallel()
				l := newLosses(t, k, all)
				l.live()
				l.lose()
				i := l.startAgain()
				l.compareRefusals(i)
				l.decideAll(i)
				l.account()
				l.judge(i)
			})
		}
	}
}

// TestRecordsDeletedBeforeTheFirstTransaction kills a process before its first transaction and then deletes records.
// As before a first start, the group has no offset, and no mark or checkpoint exists. The manifest has the offset at
// which the partition began, and shows the loss.
func TestRecordsDeletedBeforeTheFirstTransaction(t *testing.T) {
	t.Parallel()
	for _, k := range inputKinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, k.routes)
			b.createTopic("signals.raw", 4)
			b.produce(batch("expired", 8)...) // sent before the app starts, so it does not have to read them
			b.deleteRecords(b.ends("signals.raw"))
			cfg := b.config("one")
			cfg.LeaveOnStop = true
			b.lived(cfg)
			if k.routed {
				b.deleteGroup(app.GroupName("app", processor.StageRoute))
			}
			b.produce(&kgo.Record{Topic: "app-manifest", Key: []byte("mark/signals.raw/1")})
			b.produce(batch("lost", 8)...)
			end, _ := b.ends("signals.raw").Lookup("signals.raw", 1)
			cut := kadm.Offsets{}
			cut.Add(end)
			b.deleteRecords(cut)
			b.produce(batch("kept", 8)...)
			i := b.start(cfg)
			refusals := b.awaitRefusals(i, 1, app.InputDeleted)
			if want := "its records at offsets 2 to 3, at most 2, were deleted before they were read"; !strings.Contains(refusals[0].Detail, want) {
				t.Errorf("the detail is %q, want %q", refusals[0].Detail, want)
			}
			b.accept(refusals, refusals[0].Ways[0], false)
			b.ready(i)
			b.wait("the events that are left", func() bool { return len(b.read("signals.unique")) == 14 })
		})
	}
}

// TestRefusalOfAnEndedProcessIsRemoved lets a process refuse a partition and die, and then brings back what was
// missing. The next owner starts without a refusal, so 'oncebus accept' must list none.
func TestRefusalOfAnEndedProcessIsRemoved(t *testing.T) {
	t.Parallel()
	for _, k := range inputKinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, k.routes)
			b.createTopic("signals.raw", 4)
			cfg := b.config("one")
			b.lived(cfg, batch("early", 8)...)
			for _, topic := range []string{"signals.raw", k.task} {
				left := app.Refusal{Topic: topic, Partition: 1, Problem: app.InputDeleted, Facts: "next 7", Ways: []app.Way{app.FromStart}, Instance: "dead"}
				must(t, app.WriteRefusal(t.Context(), b.client, b.topology(), &left))
			}
			i := b.ready(b.start(cfg))
			if left := b.refusals(); len(left) > 0 {
				t.Errorf("listed while %s runs: %+v", i.Config().InstanceID, left)
			}
		})
	}
}
