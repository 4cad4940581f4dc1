package judge_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// seedRun identifies the seed run of all seeds in the scripts.
var seedRun = wire.SeedRun{1, 2, 3}

// seed appends a seed to the repartition topic, and judges it.
func (r *scriptRun) seed(st *step) error {
	if len(st.words) != 1 {
		return errors.New("want seed ROUTE FIELDS")
	}
	r.startOnce()
	route := r.app.ByName[st.words[0]]
	if route == nil {
		return fmt.Errorf("no route %s", st.words[0])
	}
	env := wire.Envelope{IsSeed: true, Seed: seedRun, Route: route.NameBytes, From: dedup.Position{Topic: dedup.SeedTopic, Offset: 1}}
	var routing dedup.Digest
	status, hasClaim := dedup.Completed, false
	var claim dedup.Claim
	for _, f := range st.fields {
		switch f.name {
		case "id":
			derived, err := r.routes.NewDeriver(nil).OfID(route.Route, f.value)
			if err != nil {
				return err
			}
			env.Digest, routing, claim.Key = derived[0].Digest, derived[0].Routing, derived[0].Key
		case "event":
			derived := r.routes.NewDeriver(nil).Derive(&rules.Input{Topic: route.Topics[0], Value: []byte(f.value), AsJSON: true})
			if derived.Finding != rules.Keyed {
				return errors.New(derived.Reason)
			}
			env.Digest, routing, claim.Key = derived.Digest, derived.Routing, derived.Key
			env.Details = wire.DetailsOf(&derived)
		case "status":
			status, hasClaim = map[string]dedup.Status{"submitted": dedup.Submitted, "in_progress": dedup.ClaimInProgress}[f.value], true
		case "first":
			d, err := time.ParseDuration(f.value)
			if err != nil {
				return err
			}
			env.EventTime = r.base + d.Milliseconds()
		case "number":
			n, err := strconv.ParseInt(f.value, 10, 64)
			if err != nil {
				return err
			}
			env.From.Offset = n
		case "result":
			text, err := values{}.fill(f.value, r.base, map[string]bool{})
			if err != nil {
				return err
			}
			claim.Result, hasClaim = []byte(text), true
		default:
			return fmt.Errorf("unknown field %s", f.name)
		}
	}
	var value []byte
	if hasClaim {
		row := dedup.Row{Digest: env.Digest}
		row.LineClaim(status, &claim)
		value = row.AppendValue(nil)
	}
	env.Timestamp = env.EventTime
	partition := r.app.Hasher.Partition(&routing)
	r.append(&kgo.Record{Topic: r.app.Topology.Repartition, Partition: partition, Key: env.Append(nil), Value: value, Timestamp: time.UnixMilli(r.now)})
	r.task(app.TaskID{Topic: r.app.Topology.Repartition, Partition: partition})
	if !r.held {
		r.run()
	}
	return nil
}

// checkSeeds compares the fates of the seeds with the sum over the changelogs.
func (r *scriptRun) checkSeeds(st *step) error {
	var sum wire.SeedCounts
	for _, log := range r.logOf {
		for _, rec := range log {
			if !wire.IsSeedCounts(rec) {
				continue
			}
			counts, err := wire.ReadSeedCounts(rec)
			if err != nil || counts.Run != seedRun {
				return fmt.Errorf("seed counts of run %x: %w", counts.Run, err)
			}
			for i, n := range counts.Fates {
				sum.Fates[i] += n
			}
			sum.TooLate = append(sum.TooLate, counts.TooLate...)
		}
	}
	got := map[string]int64{}
	for i, n := range sum.Fates {
		got[dedup.SeedFate(i).String()] = n
	}
	for _, f := range st.fields {
		if f.name == "number" {
			n, err := strconv.ParseInt(f.value, 10, 64)
			if err != nil || !slices.Contains(sum.TooLate, n) {
				r.t.Errorf("%s: too late were the numbers %v, want %s", st.at, sum.TooLate, f.value)
			}
			continue
		}
		if strconv.FormatInt(got[f.name], 10) != f.value {
			r.t.Errorf("%s: %d seeds %s, want %s", st.at, got[f.name], f.name, f.value)
		}
	}
	return nil
}
