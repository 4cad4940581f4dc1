package oracle

import (
	"cmp"
	"maps"
	"slices"
)

// Check compares the history with the rules and returns every violation of K1 to K13. It does not change the
// records of h. It needs some 350 bytes of memory per record of the repartition topic.
func Check(cfg Config, h *History) (Report, []Violation) {
	c := newCheck(cfg, h)
	c.readSent()
	c.readRequests()
	c.readRefusals()
	repartition, changelog := c.log(cfg.Repartition, purged), c.log(cfg.Changelog, compacted)
	for _, lane := range repartition {
		for i, r := range lane {
			lane[i] = unwrapped(*r)
		}
	}
	for partition := range cfg.Partitions {
		c.task(partition, repartition[partition], changelog[partition])
	}
	for _, topic := range []string{cfg.Repartition, cfg.Changelog} {
		for partition := range c.logs[topic] {
			if partition < 0 || partition >= cfg.Partitions {
				c.add("K2", "%s/%d: there are only %d partitions, no task reads this one", topic, partition, cfg.Partitions)
			}
		}
	}
	for i := range h.Stores {
		if s := &h.Stores[i]; s.Partition < 0 || s.Partition >= cfg.Partitions {
			c.add("K5", "store of %s/%d: there are only %d partitions", cfg.Changelog, s.Partition, cfg.Partitions)
		}
	}
	c.unrouted()
	c.outputs()
	c.answers()
	c.offsets()
	c.liveness()
	c.report.Violations = c.counts
	return c.report, c.sorted()
}

// check is the state of one run of Check.
type check struct {
	findings
	cfg     *Config
	h       *History
	report  Report
	routes  map[string]*Route
	builder builder
	printer printer

	logs     map[string]log // by topic: the live reading, or the final reading if there is no live one
	finals   map[string]log // by topic: the final reading
	sources  map[source]*sourceLane
	homes    map[digest]int32 // partition of every key that has a row
	expected expectations
	tasks    map[int32]*task
	// requests has the HTTP requests, by the values of their events. claimAddresses has the return addresses of
	// events in claim mode, because Check does not compare the verdicts on these events.
	requests       map[string]*requestGroup
	claimAddresses map[string]bool
}

func newCheck(cfg Config, h *History) *check {
	c := &check{
		findings: findings{counts: map[string]int{}}, cfg: &cfg, h: h,
		report: Report{Sent: len(h.Sent), Requests: len(h.Requests), Samples: len(h.Offsets), Stores: len(h.Stores), Outputs: map[string]int{}, Dropped: map[string]int{},
			Unwatched: h.Live == nil, Unread: h.Final == nil},
		routes: map[string]*Route{}, builder: builder{cfg: &cfg, topicNames: map[uint16]string{}}, printer: printer{cfg: &cfg},
		logs: map[string]log{}, finals: map[string]log{}, sources: map[source]*sourceLane{}, homes: map[digest]int32{}, tasks: map[int32]*task{},
		expected: expectations{index: map[fingerprint]int32{}},
		requests: map[string]*requestGroup{}, claimAddresses: map[string]bool{},
	}
	for i := range cfg.Routes {
		c.routes[cfg.Routes[i].Name] = &cfg.Routes[i]
	}
	if cfg.Repartition != "" {
		c.builder.topicNames[cfg.RepartitionNumber] = cfg.Repartition
	}
	for name, number := range cfg.Topics {
		c.builder.topicNames[number] = name
	}
	return c
}

// log returns the live reading of a topic and compares it with the final reading (K7). If there was no live
// consumer, it returns the final reading.
func (c *check) log(topic string, kept keeping) log {
	final := split(&c.findings, "final read", c.h.Final[topic])
	c.finals[topic] = final
	if c.report.Unwatched {
		c.logs[topic] = final
		return final
	}
	live := split(&c.findings, "live consumer", c.h.Live[topic])
	c.logs[topic] = live
	if c.report.Unread {
		return live
	}
	partitions := maps.Clone(live)
	maps.Copy(partitions, final)
	for _, partition := range slices.Sorted(maps.Keys(partitions)) {
		c.agree(live[partition], final[partition], kept)
	}
	return live
}

// A keeping tells which records of a topic the final reading must still have.
type keeping uint8

const (
	whole     keeping = iota
	purged            // all records from some offset on
	compacted         // any of the records: K5 checks which ones must remain
)

// agree checks that two readings of a partition are equal, except for records that were purged or compacted
// between the two readings (K7).
func (c *check) agree(live, final []*Record, kept keeping) {
	begun := kept == whole // from this record on, the final reading must have every record
	for len(live) > 0 || len(final) > 0 {
		switch {
		case len(final) == 0 || len(live) > 0 && live[0].Offset < final[0].Offset:
			if begun && kept != compacted {
				c.add("K7", "%s: the live consumer saw it, the final read does not: aborted, or rewritten; record key %s", at(live[0]), brief(live[0].Key))
			}
			live = live[1:]
		case len(live) == 0 || final[0].Offset < live[0].Offset:
			c.add("K7", "%s: the final read has it, the live consumer did not see it; record key %s", at(final[0]), brief(final[0].Key))
			final = final[1:]
		default:
			if !sameRecord(live[0], final[0]) {
				c.add("K7", "%s: the live consumer saw another record than the final read; record keys %s and %s", at(live[0]), brief(live[0].Key), brief(final[0].Key))
			}
			live, final, begun = live[1:], final[1:], true
		}
	}
}

// liveness reports the open transactions (K8) and the lag (K9) that the harness has found.
func (c *check) liveness() {
	for _, partition := range c.h.Open {
		c.add("K8", "%s: a transaction is still open, the last stable offset is below the end", partition)
	}
	for _, partition := range slices.Sorted(maps.Keys(c.h.Lag)) {
		if lag := c.h.Lag[partition]; lag != 0 {
			c.add("K9", "%s: a lag of %d remains", partition, lag)
		}
	}
}

// offsets checks the samples of the consumer group's committed offsets (K6).
func (c *check) offsets() {
	groups := map[int32]*group{}
	for i, s := range c.h.Offsets {
		g := groups[s.Partition]
		if g == nil {
			g = &group{resets: map[int64]bool{}}
			groups[s.Partition] = g
		}
		g.note(c, i, s)
	}
	if len(groups) == 0 {
		return // the harness took no samples
	}
	for partition := range c.cfg.Partitions {
		g, t := groups[partition], c.tasks[partition]
		if len(t.nexts) == 0 {
			continue
		}
		next := t.nexts[len(t.nexts)-1]
		switch {
		case g == nil:
			c.add("K6", "%s/%d: the group's offset was never sampled, the last checkpoint has %d", c.cfg.Repartition, partition, next)
		case g.newest.Offset != next && !g.resets[g.newest.Offset]:
			c.add("K6", "%s/%d: the group's offset is %d at the end, the last checkpoint has %d (instance %q)", c.cfg.Repartition, partition, g.newest.Offset, next, g.newest.Metadata)
		}
	}
}

// group has what the samples of a partition have shown so far.
type group struct {
	newest Sample
	high   int64          // highest offset that a transaction has committed
	resets map[int64]bool // offsets that the harness has set
}

// note checks the next sample. The offset must not be lower than before, and it must be the next of a
// checkpoint, unless the harness has set it.
func (g *group) note(c *check, i int, s Sample) {
	g.newest = s
	if s.Reset {
		g.resets[s.Offset] = true
		return
	}
	t := c.tasks[s.Partition]
	switch {
	case g.resets[s.Offset]:
		return
	case s.Offset < 0 && g.high == 0:
		return // the sample is from before the first commit
	case s.Offset < g.high:
		c.add("K6", "%s/%d: sample %d of the group's offset is %d, it was %d before (instance %q)", c.cfg.Repartition, s.Partition, i, s.Offset, g.high, s.Metadata)
	case t == nil || !t.commits(s.Offset):
		c.add("K6", "%s/%d: sample %d of the group's offset is %d, no checkpoint has it (instance %q)", c.cfg.Repartition, s.Partition, i, s.Offset, s.Metadata)
	}
	g.high = max(g.high, s.Offset)
}

// commits reports whether next is this offset in a checkpoint of the task.
func (t *task) commits(next int64) bool {
	_, ok := slices.BinarySearchFunc(t.nexts, next, cmp.Compare)
	return ok
}
