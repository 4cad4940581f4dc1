package judge

import (
	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// seeds counts what became of the seeds of the open transaction.
type seeds struct {
	counts []wire.SeedCounts // counts of each run of the command seed
	sent   uint32            // records with counts that the transaction has produced
}

// seed stores the row of a seed (a key that is known from elsewhere), unless a row is already stored that
// decides on the key. It emits nothing and does not move stream time. It ignores the limits on live keys,
// because the key was known before.
func (t *Judge) seed(j *Judging, ev *event) error {
	route, env := ev.route, ev.envelope
	c := &j.current.candidate
	*c = candidate{streamTime: t.streamTime(route.NamespaceID), window: t.window(route), digest: env.Digest}
	c.event = dedup.Event{Digest: env.Digest, Time: env.EventTime, At: env.From, NamespaceID: route.NamespaceID, Fingerprint: ev.Fingerprint, Shift: env.Shift}
	if err := t.lookUp(ev, c); err != nil {
		return err
	}
	fate, row := dedup.DecideSeed(c.event, c.prior, c.hasPrior, c.window, c.streamTime, ev.brokerTime)
	if fate == dedup.SeedTaken && route.Mode == rules.ClaimMode {
		if c.replaced != nil {
			fate = dedup.SeedKnown // requests may wait for the outcome of the stored claim, so it stays
		} else if err := t.seededClaim(&row, ev); err != nil {
			return wire.Unreadable(ev.rec, err)
		}
	}
	if fate == dedup.SeedTaken {
		t.put(j.Emitter, &change{row: &row, replaced: c.replaced})
		if row.First > c.streamTime {
			t.Open.SetAhead(route.NamespaceID, row.First)
		}
	}
	t.countSeed(j.Emitter, env, fate)
	return nil
}

// seededClaim adds the claim that a seed carries to the seed's row.
func (t *Judge) seededClaim(row *dedup.Row, ev *event) error {
	from, err := dedup.DecodeValue(row.Digest, ev.rec.Value)
	if err != nil {
		return err
	}
	if row.Digest != ev.envelope.Digest { // the seed got a second key, because it collides with another event of the key
		if err := from.SecondKey(ev.Fingerprint); err != nil {
			return err
		}
	}
	if from.Status == dedup.ClaimInProgress {
		t.leaseBegan(ev.brokerTime, ev.brokerTime)
	}
	return row.SetSeedClaim(&from, ev.brokerTime, t.fits)
}

// countSeed counts the fate of a seed in the open transaction.
func (t *State) countSeed(e *Emitter, env *wire.Envelope, fate dedup.SeedFate) {
	all := t.seeds.counts
	if len(all) == 0 || all[len(all)-1].Run != env.Seed {
		t.seeds.counts = append(t.seeds.counts, wire.SeedCounts{Run: env.Seed})
		all = t.seeds.counts
	}
	counts := &all[len(all)-1]
	counts.Fates[fate]++
	if fate != dedup.SeedTooLate {
		return
	}
	if counts.TooLate = append(counts.TooLate, env.From.Offset); len(counts.TooLate) == wire.SeedCountsMax {
		t.writeSeedCounts(e)
	}
}

// writeSeedCounts produces the counts of seeds to the changelog, in the open transaction. Each record
// has a key of its own, so that compaction removes none.
func (t *State) writeSeedCounts(e *Emitter) {
	for i := range t.seeds.counts {
		counts := &t.seeds.counts[i]
		t.value = counts.Append(t.value[:0])
		t.produceRow(e, wire.AppendSeedCountsKey(nil, counts.Run, t.Store.Position(), t.seeds.sent), t.value)
		t.seeds.sent++
	}
	t.seeds.counts = t.seeds.counts[:0]
}

// discardSeeds drops the counts of a transaction that has ended.
func (t *State) discardSeeds() { t.seeds = seeds{counts: t.seeds.counts[:0]} }
