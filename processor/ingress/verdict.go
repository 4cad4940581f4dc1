package ingress

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// Headers of an answer that tells a verdict.
const (
	headerVerdict      = "Oncebus-Verdict"
	headerKey          = "Oncebus-Key"
	headerClaimStatus  = "Oncebus-Claim-Status" // of the claim, or the kind of the outcome; claim mode only
	headerAttempt      = "Oncebus-Attempt"      // claim mode only
	headerFirstRequest = "Oncebus-First-Request"
	headerReplayed     = "Idempotent-Replayed"
)

// Record headers of an outcome that say how it is answered.
const (
	recordStatus      = "http-status"
	recordContentType = "content-type"
)

// Times after which it makes sense to send again.
const (
	retrySoon    = time.Second
	retryLimited = time.Minute // room for new keys comes with event time, not with ours
)

// tell makes the answer to an event with a verdict.
func tell(route *rules.Route, a *wire.Answer) *response {
	r := tellVerdict(route, a)
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

func tellVerdict(route *rules.Route, a *wire.Answer) *response {
	if a.HasOutcome {
		return tellOutcome(a)
	}
	r := tellByDefault(a)
	if written, ok := route.HTTP.Responses[a.Verdict]; ok {
		retry := r.header.Get("Retry-After")
		if r = configured(a.Verdict.String(), written); retry != "" {
			r.with("Retry-After", retry)
		}
	}
	r.name = a.Verdict.String()
	return r
}

// tellByDefault is the answer to a verdict for which the routes file has none.
func tellByDefault(a *wire.Answer) *response {
	name := a.Verdict.String()
	switch a.Verdict {
	case dedup.Unique, dedup.AfterWindow, dedup.Bypassed:
		return accepted(name)
	case dedup.Duplicate:
		return problemDuplicate.about(a, a.Reason)
	case dedup.InProgress:
		return problemInProgress.about(a, a.Reason).with("Retry-After", seconds(retrySoon))
	case dedup.Invalid:
		return problemInvalid.about(a, a.Reason)
	case dedup.Replayed: // which is settled
		return problemOmitted.about(a, a.Reason)
	case dedup.Late, dedup.MissingKey, dedup.Limited, dedup.Collision:
		if a.Forwarded {
			return accepted(name)
		}
	}
	switch a.Verdict {
	case dedup.Late:
		return problemLate.about(a, a.Reason)
	case dedup.MissingKey:
		return problemMissingKey.about(a, a.Reason)
	case dedup.Limited:
		return problemLimited.about(a, a.Reason).with("Retry-After", seconds(retryLimited))
	default:
		return problemCollision.about(a, a.Reason)
	}
}

// tellOutcome answers with what the executor said, byte for byte.
func tellOutcome(a *wire.Answer) *response {
	r := outcomeResponse(a)
	r.name = a.Status
	// Of the other outcomes nothing is recorded: the key is free.
	if a.Verdict == dedup.Replayed && a.Status == dedup.OutcomeCompleted.String() {
		r.with(headerReplayed, "true")
	}
	return r
}

func outcomeResponse(a *wire.Answer) *response {
	completed := a.Status == dedup.OutcomeCompleted.String()
	status, said := outcomeStatus(a.Headers)
	switch {
	case a.Omitted:
		return problemOmitted.about(a, a.Reason)
	case completed && !said && a.Value == nil:
		status = http.StatusNoContent
	case completed && !said:
		status = http.StatusOK
	case said: // also of one that failed: the executor wrote it for the sender
	case a.Status == dedup.OutcomeRejected.String():
		return problemRejected.about(a, "")
	case a.Status == dedup.OutcomeFailed.String():
		return problemFailed.about(a, "the key is free, and the request may be sent again")
	default:
		return problemErased.about(a, "the key is free, and the request may be sent again")
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

// outcomeStatus reads the status that an executor gave its outcome: any final
// one. 500 is the executor's word like every other. A text that is none counts
// as not said, since the kind of the outcome says what matters.
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

// fitsHeader tells whether a text can be the value of a header as it is.
func fitsHeader(s string) bool {
	return len(s) <= 1024 && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c > '~' })
}

func seconds(wait time.Duration) string { return strconv.Itoa(retryAfter(wait)) }
