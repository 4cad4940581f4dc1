package oracle

// While a task cannot use its local state, it forwards the events of routes with on_state_failure: fail_open
// without looking up their keys. Meanwhile, next stays unchanged in its checkpoints, and the checkpoints say up
// to which offset the task has forwarded. Once the task has local state, it starts at next: it stores the
// events that it has forwarded, does not emit them again, and judges the events of all other routes.

const reasonBypassed = "local state cannot be used: not checked for duplicates"

// bypass checks what a checkpoint says about bypassed records (K10), and judges the records that its
// transaction bypassed.
func (c *check) bypass(t *task, r *Record, cp *checkpoint) {
	from, to := int64(-1), int64(-1)
	for namespaceID, end := range cp.bypassed {
		begun := max(t.bypassed[namespaceID], cp.next)
		switch {
		case !c.failsOpen(namespaceID):
			c.add("K10", "%s: checkpoint with sequence %d has bypassed namespace id %d, whose routes fail closed", at(r), cp.sequence, namespaceID)
			continue
		case end < t.bypassed[namespaceID]:
			c.add("K10", "%s: checkpoint with sequence %d has bypassed namespace id %d up to %d, an earlier one up to %d", at(r), cp.sequence, namespaceID, end, t.bypassed[namespaceID])
			continue
		case end <= begun:
			continue
		}
		if from < 0 || begun < from {
			from = begun
		}
		to = max(to, end)
	}
	for namespaceID, end := range t.bypassed {
		if _, stated := cp.bypassed[namespaceID]; !stated && end > cp.next {
			c.add("K10", "%s: checkpoint with sequence %d has next %d and no longer says that namespace id %d was bypassed up to %d", at(r), cp.sequence, cp.next, namespaceID, end)
		}
	}
	if to >= 0 {
		moved := len(t.nexts) > 0 && cp.next > t.nexts[len(t.nexts)-1]
		if moved {
			c.add("K10", "%s: checkpoint with sequence %d judges up to %d and bypasses up to %d at once", at(r), cp.sequence, cp.next, to)
		}
		if find(t.input, to-1) == nil {
			c.add("K11", "%s: checkpoint with sequence %d has bypassed up to %d, but %s/%d has no record just below", at(r), cp.sequence, to, c.cfg.Repartition, t.partition)
		}
		c.bypassRecords(t, cp, from, to)
	}
	for namespaceID, end := range cp.bypassed {
		t.bypassed[namespaceID] = max(end, t.bypassed[namespaceID])
	}
	c.deadLettered(t, r, cp)
}

// failsOpen reports whether a route of the namespace has on_state_failure: fail_open.
func (c *check) failsOpen(namespaceID uint8) bool {
	for i := range c.cfg.Routes {
		if r := &c.cfg.Routes[i]; r.NamespaceID == namespaceID && r.FailOpen {
			return true
		}
	}
	return false
}

// bypassRecords judges the records in a range of offsets that a transaction bypassed.
func (c *check) bypassRecords(t *task, cp *checkpoint, from, to int64) {
	for _, r := range t.input[t.cursor:] {
		if r.Offset < from || r.Offset >= to || isOutcome(r) || isProgress(r) || isSeed(r) {
			continue
		}
		e, err := openEnvelope(r, c.cfg.RepartitionNumber)
		if err != nil {
			continue // judge reports this error
		}
		route := c.routes[string(e.route)]
		if route == nil || !route.FailOpen || r.Offset < t.bypassed[route.NamespaceID] || r.Offset >= cp.bypassed[route.NamespaceID] {
			continue
		}
		c.report.Bypassed++
		j := t.fold.judgeByTime(&e, route, r.Timestamp)
		if j == nil {
			j = &judgement{verdict: "bypassed", topic: route.Output, reason: reasonBypassed}
		}
		l := draft{record: r, env: &e, route: route, verdict: j.verdict, reason: j.reason}
		if arrived := c.expect(&l, j.topic, false); j.verdict == "invalid" || j.verdict == "bypassed" && !arrived {
			t.dead[r.Offset] = true
		}
	}
}

// judgeForwarded judges an event that was bypassed earlier, without emitting it again. An event that became a
// dead letter when it was bypassed has no effect.
func (c *check) judgeForwarded(t *task, r *Record, e *envelope, route *Route) {
	if t.dead[r.Offset] {
		return
	}
	if j := t.fold.judge(e, route, r.Timestamp); j.wrote {
		c.stored(t, r, e, route, &j)
	}
}

// deadLettered compares the dead-lettered offsets in a checkpoint with the bypassed records from next on that
// became dead letters (K5).
func (c *check) deadLettered(t *task, r *Record, cp *checkpoint) {
	for _, span := range cp.dead {
		for offset := max(span.from, cp.next); offset < span.to; offset++ {
			if !t.dead[offset] {
				c.add("K5", "%s: checkpoint with sequence %d says that offset %d became a dead letter, it did not", at(r), cp.sequence, offset)
				return
			}
		}
	}
	for offset := range t.dead {
		stated := false
		for _, span := range cp.dead {
			stated = stated || span.from <= offset && offset < span.to
		}
		if offset >= cp.next && !stated {
			c.add("K5", "%s: checkpoint with sequence %d does not say that offset %d became a dead letter", at(r), cp.sequence, offset)
			return
		}
	}
}
