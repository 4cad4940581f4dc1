//go:build unix

package main

import (
	"fmt"
	"strings"
	"time"

	"oncebus/benchmarks/internal/bench"
)

// changesTables writes the tables of the part changes.
func (r *result) changesTables(b *strings.Builder) {
	if len(r.Changes) == 0 {
		return
	}
	fmt.Fprintf(b, "## Changes of a running app\n\nRouted events, %v (processes x workers x partitions), %d events a second throughout. Each step begins when the app has caught up. "+
		"Relative rates are to the app's own in the %v before the step, by its metrics.\n\n", r.s.changesShape, r.s.rate, r.s.changesTraffic)
	for i := range r.Changes {
		run := &r.Changes[i]
		fmt.Fprintf(b, "### %s seeded keys\n\n", millions(run.Keys))
		run.commandTable(b)
		run.rebuildTable(b)
		run.moveTable(b)
		run.stepTable(b)
	}
}

func (r *changesRun) commandTable(b *strings.Builder) {
	b.WriteString("| command | keys | s | k keys/s | bytes | bytes a key | CPU, s | resident MiB |\n| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |\n")
	row := func(name string, keys, bytes int64, of string, use commandUse) {
		if use.Seconds > 0 {
			fmt.Fprintf(b, "| %s | %d | %.1f | %.0f | %s: %.2f GiB | %.1f | %.1f | %.0f |\n", name, keys, use.Seconds, float64(keys)/use.Seconds/1e3, of, gib(bytes),
				float64(bytes)/float64(keys), use.CPU, float64(use.RSS)/mib)
		}
	}
	row("seed", int64(r.Keys), r.SeedFile, "lines", r.Seed)
	row("export", r.Exported, r.File, "file", r.Export)
	row("move", r.Move.Copied, r.Move.Changelog, "new changelog", r.Move.Command)
	row("verify", r.Exported, r.File, "file", r.Verify)
	fmt.Fprintf(b, "\nAfter the seed the changelog has %.2f GiB, %.1f bytes a key, and the repartition topic %.2f GiB.\n\n", gib(r.Changelog), float64(r.Changelog)/float64(r.Keys), gib(r.Repartition))
}

func (r *changesRun) rebuildTable(b *strings.Builder) {
	if len(r.Rebuilds) == 0 {
		return
	}
	b.WriteString("kill -9 of one of the processes, whose state directory is lost. The others take its tasks over, after the session timeout. Then it returns, and reads the rows of the tasks that it gets. " +
		"A transaction that the kill leaves open ends after the transaction timeout (15 s). Until then a read_committed reader sees nothing new in the partitions of the output.\n\n" +
		"| standby | tasks | rows read | balanced, s from the kill | its tasks silent, s: median | longest | a partition of the output, s | return: rows read | balanced, s | its tasks silent, s: longest |\n" +
		"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for _, t := range r.Rebuilds {
		name := killStep + "no standby"
		if t.Standby {
			name = killStep + "standby"
		}
		fmt.Fprintf(b, "| %v | %d | %d | %.1f | %.1f | %.1f | %.1f | %d | %.1f | %.1f |\n", t.Standby, t.Tasks, t.Read, t.Balanced, t.Silent.Median/1e3, t.Silent.High/1e3, r.step(name).Silent/1e3,
			t.Return.Read, t.Return.Balanced, t.Return.Silent.High/1e3)
	}
	b.WriteString("\n")
}

func (r *changesRun) moveTable(b *strings.Builder) {
	m := &r.Move
	if m.Command.Seconds == 0 {
		return
	}
	step := r.step(moveStep)
	held, ended := m.Phases["holding"], m.Phases["done"]
	fmt.Fprintf(b, "From %d to %d partitions: the rows were copied until %.1f s after the start of the command, while the app worked. The input was held from then on, and the command ended %.1f s later. All new tasks ran %.1f s after the hold began. "+
		"No partition of the output was silent for more than %.1f s; %.1f s before the move.\n\n", m.From, m.To, held, ended-held, m.Running-held, step.Silent/1e3, step.SilentBefore/1e3)
	fmt.Fprintf(b, "The broker, the state directories and the files had %.2f GiB before, at most %.2f, %.2f after, and %.2f after `move --finish` and the deletion of the old state.\n\n",
		gib(step.DiskBefore), gib(step.DiskPeak), gib(step.DiskAfter), gib(m.Finished))
}

// step returns the step of a name; a zero one if the run ended before.
func (r *changesRun) step(name string) *observed {
	for i := range r.Steps {
		if r.Steps[i].Step == name {
			return &r.Steps[i]
		}
	}
	return &observed{}
}

func (r *changesRun) stepTable(b *strings.Builder) {
	b.WriteString("The app in each step, and its time to catch up after it. Silent: the longest time for which a partition of the output got nothing. Memory and disk are the highest.\n\n" +
		"| step | s | events/s before | meanwhile | slowest second | after | silent before, ms | silent, ms | caught up, s | process MiB | broker MiB | disk GiB |\n" +
		"| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
	for i := range r.Steps {
		s := &r.Steps[i]
		fmt.Fprintf(b, "| %s | %.1f | %.0f | %s | %s | %s | %.0f | %.0f | %.1f | %.0f | %.0f | %.2f |\n", s.Step, s.Seconds, s.Before,
			bench.Ratio(s.Meanwhile, s.Before), bench.Ratio(s.Slowest, s.Before), bench.Ratio(s.After, s.Before), s.SilentBefore, s.Silent, s.CaughtUp,
			float64(s.RSS)/mib, float64(s.BrokerRSS)/mib, gib(s.DiskPeak))
	}
	b.WriteString("\n")
}

func gib(bytes int64) float64 { return float64(bytes) / (1 << 30) }

// changesGuesses estimates the times of the runs: eleven steps with traffic around each, two
// takeovers, and the commands.
func (s settings) changesGuesses() (all []time.Duration) {
	for _, keys := range s.changesKeys {
		all = append(all, appTime+11*(2*s.changesTraffic+5*time.Second)+2*s.sessionTimeout+time.Duration(keys)*time.Second/changesRate)
	}
	return all
}
