package ingress

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// Headers of a response with a verdict.
const (
	headerVerdict      = "Oncebus-Verdict"
	headerKey          = "Oncebus-Key"
	headerClaimStatus  = "Oncebus-Claim-Status" // of the claim, or the kind of its outcome; only in claim mode
	headerAttempt      = "Oncebus-Attempt"      // only in claim mode
	headerFirstRequest = "Oncebus-First-Request"
	headerReplayed     = "Idempotent-Replayed"
)

// Record headers of an outcome that become parts of the response:
const (
	recordStatus      = "http-status"
	recordContentType = "content-type"
)

// retryLimited is the Retry-After when a route has its maximum of keys. Keys expire in event time, so the
// server cannot know the real time to wait.
const retryLimited = time.Minute

// respondToVerdict returns the response to an event with a verdict.
func respondToVerdict(route *rules.Route, a *wire.Answer) *response {
	var r *response
	if a.HasOutcome {
		r = outcomeResponse(a)
	} else {
		r = routeResponse(route, a)
	}
	return identify(r, route, a)
}

// identify adds the headers that every response with a verdict has.
func identify(r *response, route *rules.Route, a *wire.Answer) *response {
	r.route, r.verdict = route.Name, a.Verdict.String()
	r.with(headerVerdict, r.verdict)
	if a.Key != "" {
		r.with(headerKey, a.Key)
	}
	if a.Status != "" {
		r.with(headerClaimStatus, a.Status)
	}
	if a.Attempt > 0 {
		r.with(headerAttempt, strconv.FormatUint(uint64(a.Attempt), 10))
	}
	if a.FirstRequest != "" && fitsHeader(a.FirstRequest) {
		r.with(headerFirstRequest, a.FirstRequest)
	}
	return r
}

// routeResponse returns the response that the routes file has for a verdict, or else the default response. If
// the file sets an error status without a body, the response has the body of the default problem.
func routeResponse(route *rules.Route, a *wire.Answer) *response {
	r := asInDraft(route.HTTP, a, defaultResponse(a))
	if own, ok := route.HTTP.Responses[a.Verdict]; ok {
		retry, problem := r.header.Get("Retry-After"), r.problem
		r = configured(a.Verdict.String(), own)
		if problem != nil && own.Status >= http.StatusBadRequest && own.ContentType == "" {
			chosen := *problem
			chosen.status = own.Status
			r = chosen.respondTo(a, a.Reason)
		}
		if retry != "" {
			r.with("Retry-After", retry)
		}
	}
	r.name = a.Verdict.String()
	return r
}

// defaultResponse returns the response to a verdict for which the routes file has no response. The switch has
// no default case, so that the linter `exhaustive` reports a verdict without a response.
func defaultResponse(a *wire.Answer) *response {
	switch a.Verdict {
	case dedup.Unique, dedup.AfterWindow:
		return accepted(a.Verdict.String())
	case dedup.Bypassed:
		return forwardedUnchecked(a.Verdict.String())
	case dedup.Duplicate:
		if a.Status == dedup.StatusForwarded {
			return problemForwarded.respondTo(a, a.Reason)
		}
		return problemDuplicate.respondTo(a, a.Reason)
	case dedup.InProgress:
		return problemInProgress.respondTo(a, a.Reason).with("Retry-After", retryAfter(retrySoon))
	case dedup.Invalid:
		if strings.HasPrefix(a.Reason, wire.ReasonTooLarge) {
			return problemTooLarge.respondTo(a, a.Reason)
		}
		return problemInvalid.respondTo(a, a.Reason)
	case dedup.Replayed: // the outcome is missing: it is too long for the verdict record
		return problemOmitted.respondTo(a, a.Reason)
	case dedup.Late:
		return unlessForwarded(a, problemLate.respondTo(a, a.Reason))
	case dedup.MissingKey:
		if a.Forwarded {
			return accepted(a.Verdict.String())
		}
		return problemMissingKey.respondTo(a, a.Reason)
	case dedup.Limited:
		if strings.HasPrefix(a.Reason, wire.ReasonQuota) {
			return problemQuota.respondTo(a, a.Reason).with("Retry-After", retryAfter(retryLimited))
		}
		return unlessForwarded(a, problemLimited.respondTo(a, a.Reason).with("Retry-After", retryAfter(retryLimited)))
	case dedup.Collision:
		if a.Forwarded && a.Attempt > 0 { // in claim mode the event has a claim of its own
			return accepted(a.Verdict.String())
		}
		return unlessForwarded(a, problemCollision.respondTo(a, a.Reason))
	}
	panic(fmt.Sprintf("no response for verdict %d", a.Verdict))
}

// unlessForwarded returns r. If the event was forwarded unchecked because of the route's policy, it returns a
// 202 instead.
func unlessForwarded(a *wire.Answer, r *response) *response {
	if a.Forwarded {
		return forwardedUnchecked(a.Verdict.String())
	}
	return r
}

// outcomeResponse returns the executor's response, byte for byte. For an outcome that has no response, it
// returns the problem.
func outcomeResponse(a *wire.Answer) *response {
	r := outcomeProblem(a)
	if r == nil {
		r = resultResponse(a)
	}
	r.name = a.Status
	// All other outcomes free the key: nothing of such an outcome is stored, so it cannot be replayed.
	if a.Verdict == dedup.Replayed && a.Status == dedup.OutcomeCompleted.String() {
		r.with(headerReplayed, "true")
	}
	return r
}

const keyIsFree = "the key is free: the request can be retried"

// outcomeProblem returns the problem for an outcome in which the executor sent no response for the sender; nil
// if the executor sent a response.
func outcomeProblem(a *wire.Answer) *response {
	if a.Omitted {
		return problemOmitted.respondTo(a, a.Reason)
	}
	if _, chosen := outcomeStatus(a.Headers); chosen {
		return nil // also for a failed outcome: the executor wrote this response for the sender
	}
	if a.Status == dedup.StatusForwarded {
		return problemForwarded.respondTo(a, a.Reason)
	}
	switch outcomeKind(a.Status) {
	case dedup.OutcomeCompleted:
		return nil
	case dedup.OutcomeRejected:
		return problemRejected.respondTo(a, errorText(a.Value))
	case dedup.OutcomeFailed:
		detail := keyIsFree
		if text := errorText(a.Value); text != "" {
			detail = text + "; " + keyIsFree
		}
		return problemFailed.respondTo(a, detail).with("Retry-After", retryAfter(retrySoon))
	case dedup.OutcomeForget, dedup.OutcomeSubmitted, dedup.OutcomeStart, dedup.OutcomeRenew: // submitted, start and renew never end a wait
	}
	return problemErased.respondTo(a, keyIsFree).with("Retry-After", retryAfter(retrySoon))
}

// errorTextMax is how many bytes of the executor's text a problem shows.
const errorTextMax = 1 << 10

// errorText returns the value of an outcome without a result as the detail of its problem: an executor writes
// there why the operation failed. It returns "" if the value is not UTF-8.
func errorText(value []byte) string {
	if !utf8.Valid(value) {
		return ""
	}
	if len(value) > errorTextMax {
		return strings.ToValidUTF8(string(value[:errorTextMax]), "") + "..."
	}
	return string(value)
}

// outcomeKind returns the kind of outcome that gave a claim this status. For a status that this version does
// not know it returns forget, so that the claim counts as erased.
func outcomeKind(status string) dedup.OutcomeKind {
	for _, kind := range dedup.OutcomeKinds {
		if kind.ClaimStatus() == status {
			return kind
		}
	}
	return dedup.OutcomeForget
}

// resultResponse returns the result of an outcome, with the status and content type that the executor chose.
func resultResponse(a *wire.Answer) *response {
	status, chosen := outcomeStatus(a.Headers)
	switch {
	case !chosen && a.Value == nil:
		status = http.StatusNoContent
	case !chosen:
		status = http.StatusOK
	}
	r := &response{status: status, body: a.Value}
	if a.Value != nil {
		r.contentType = jsonType
		if text := outcomeHeader(a.Headers, recordContentType); text != "" && fitsHeader(text) {
			r.contentType = text
		}
	}
	return r
}

// outcomeStatus returns the status that the executor chose; false if it chose none or an invalid one. An
// executor that writes outcomes directly to Kafka can write any text; an invalid status counts as absent,
// because the kind of the outcome decides.
func outcomeStatus(headers []dedup.Header) (int, bool) {
	status, err := parseStatus(outcomeHeader(headers, recordStatus))
	return status, err == nil
}

func outcomeHeader(headers []dedup.Header, name string) string {
	for i := range headers {
		if strings.EqualFold(headers[i].Key, name) {
			return string(headers[i].Value)
		}
	}
	return ""
}

// headerMaxBytes is the longest text of a sender or executor that a response header may have.
const headerMaxBytes = 1024

// fitsHeader reports whether s can be the value of a response header without any change.
func fitsHeader(s string) bool {
	return len(s) <= headerMaxBytes && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}
