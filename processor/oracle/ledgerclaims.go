package oracle

// A LedgerOutcome is an outcome of the kind completed that an executor has sent.
type LedgerOutcome struct {
	Digest  [16]byte
	Attempt uint32
	Content uint64
}

// Outcome processes the next outcome. If an attempt has two different outcomes, the one that the app read first
// counts. The ledger does not know that order, so it does not compare the replies of the attempt.
func (l *Ledger) Outcome(o *LedgerOutcome) {
	if !l.follows(o.Digest) {
		return
	}
	known, ok := l.results[o.Digest]
	switch {
	case ok && known.attempt > o.Attempt:
		return
	case ok && known.attempt == o.Attempt && known.content != o.Content:
		known.ambiguous = true
		l.results[o.Digest] = known
		return
	}
	l.results[o.Digest] = outcome{attempt: o.Attempt, content: o.Content}
}

// A LedgerReply is a reply that has a recorded result.
type LedgerReply struct {
	Where   string
	Route   int32
	Digests [][16]byte
	Attempt uint32
	Content uint64
}

// Reply processes the next reply. The ledger may read the outcome of the reply's attempt later.
func (l *Ledger) Reply(r *LedgerReply) {
	for _, d := range r.Digests {
		if l.follows(d) {
			if !l.repliedWith(d, r) {
				l.replies = append(l.replies, openReply{r.Digests, r.Attempt, r.Content, r.Route, r.Where})
			}
			return
		}
	}
}

func (l *Ledger) repliedWith(d digest, r *LedgerReply) bool {
	o, ok := l.results[d]
	if !ok || o.attempt != r.Attempt || o.ambiguous || o.content != r.Content {
		return false
	}
	l.compared++
	return true
}

// closeReplies compares, at the end of the range, the replies whose outcomes were read after them.
func (l *Ledger) closeReplies() {
	for _, r := range l.replies {
		differs, known := false, false
		for _, d := range r.digests {
			if o, ok := l.results[d]; ok && o.attempt == r.attempt && !o.ambiguous {
				known, differs = true, o.content != r.content
				break
			}
		}
		switch {
		case !known:
			l.notCompared++
		case differs:
			l.find("K3", r.route, r.where, "the reply to attempt %d of digest %x differs from its outcome", r.attempt, r.digests[0])
		default:
			l.compared++
		}
	}
	l.replies = nil
}
