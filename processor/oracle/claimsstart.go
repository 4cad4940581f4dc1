package oracle

import (
	"fmt"
	"strconv"
)

// An executor asks before it works on an event (start), and while it works on it (renew). Only one start id is
// granted the start of an attempt. After the grant, the attempt does not end with a lease.

// question answers a start or a renewal that has the token of an attempt. current says that the attempt is the
// newest attempt of the key. byHTTP says that the executor asked by HTTP, so that the answer is a record of the
// verdicts topic.
func (f *claimFold) question(r *Record, kind, id string, k *claim, current, byHTTP bool) {
	answer, startedBy, attempt := "superseded", "", uint64(0)
	if f.isRetained(k) {
		attempt = k.attempt
		if k.status != "freed" {
			startedBy = k.startID
		}
		if current && k.status == "in_progress" && (startedBy == "" || startedBy == id) {
			answer = "granted"
			f.grant(r, kind, id, k)
			startedBy = k.startID
		}
	}
	f.counts[kind+" "+answer]++
	if f.Answers != "" && !byHTTP {
		f.emit("%s", answerLine(string(r.Key), kind, answer, attempt, id, startedBy, content(nil, r.Headers)))
	}
}

// grant applies a question that is granted.
func (f *claimFold) grant(r *Record, kind, id string, k *claim) {
	if k.startID != "" {
		return // it was granted before; a started attempt has no lease
	}
	if kind == "start" {
		k.startID = id
	}
	if r.Timestamp > k.since || k.since > r.Timestamp+60_000 {
		k.since = r.Timestamp
	}
}

// answerLine describes an answer, both for the log and for the fold.
func answerLine(key, kind, answer string, attempt uint64, id, startedBy, content string) string {
	shown := ""
	if attempt > 0 {
		shown = strconv.FormatUint(attempt, 10)
	}
	return fmt.Sprintf("answer to %s: %s %s, attempt %s, start id %q, started by %q, %s", key, kind, answer, shown, id, startedBy, content)
}

// announce adds an expected record: the answer superseded, which oncebus sends about an attempt in progress
// although no executor has asked.
func (f *claimFold) announce(k *claim) {
	if f.Answers != "" {
		f.counts["announced"]++
		f.emit("%s", noticeLine(k.at, k.attempt))
	}
}

// noticeOf describes an answer in the log that comes without a question.
func noticeOf(r *Record) string {
	token, err := readToken(tokenOf(r))
	if answer := text(r, "oncebus-answer"); err != nil || answer != "superseded" {
		return fmt.Sprintf("%s: a notice with answer %q: %v", at(r), answer, err)
	}
	return noticeLine(token.first, token.attempt)
}

// noticeLine describes an answer without a question, both for the log and for the fold.
func noticeLine(first position, attempt uint64) string {
	return fmt.Sprintf("superseded: attempt %d of event %v", attempt, first)
}
