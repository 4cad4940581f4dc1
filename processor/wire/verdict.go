package wire

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// verdictTexts has the header value of each verdict.
var verdictTexts = func() (texts [256][]byte) {
	for _, v := range dedup.Verdicts {
		texts[v] = []byte(v.String())
	}
	return texts
}()

// VerdictText returns the header value of a verdict. The caller must not change it.
func VerdictText(v dedup.Verdict) []byte { return verdictTexts[v] }

// Statuses in the answer to a query about an operation that has no claim now.
const (
	StatusFreed   = "freed"   // its attempt failed, or was rejected or erased: the next event of the key is another attempt
	StatusExpired = "expired" // its window is over
	StatusUnknown = "unknown" // no event of the operation was judged, or its row is gone
)

// VerdictHeadersMax is the largest number of oncebus headers in a verdict record.
const VerdictHeadersMax = 14

// VerdictRecord is the verdict that a task sends to a waiting request, as a record of <app>-verdicts.
type VerdictRecord struct {
	To         dedup.Address
	Verdict    dedup.Verdict
	Key        *[32]byte    // nil for a missing key
	Row        *dedup.Row   // row of the key's first event; nil without one
	First      []byte       // its topic/partition/offset; nil without one
	Claim      *dedup.Claim // claim of Row, in claim mode
	Status     string       // status of the claim, or of an operation without a claim
	Reason     string
	Value      []byte
	Headers    []dedup.Header // headers of the outcome
	BrokerTime int64          // ms

	HasOutcome, Forwarded, OutcomeFollows, Omitted bool
}

// VerdictTextBytes is the length of the text of an address plus the text of a key.
const VerdictTextBytes = dedup.AddressTextBytes + 2*32

// AppendHeaders appends the headers that ReadAnswer reads. It uses text, which must have
// VerdictTextBytes bytes, for the texts of address and key.
func (a *VerdictRecord) AppendHeaders(headers []kgo.RecordHeader, text []byte) []kgo.RecordHeader {
	headers = append(headers,
		kgo.RecordHeader{Key: HeaderReplyTo, Value: a.To.AppendText(text[:0:dedup.AddressTextBytes])},
		kgo.RecordHeader{Key: HeaderVerdict, Value: VerdictText(a.Verdict)})
	if a.Key != nil {
		text = text[dedup.AddressTextBytes:]
		hex.Encode(text, a.Key[:])
		headers = append(headers, kgo.RecordHeader{Key: HeaderKey, Value: text})
	}
	if a.Row != nil {
		headers = append(headers,
			kgo.RecordHeader{Key: HeaderFirst, Value: a.First},
			kgo.RecordHeader{Key: HeaderFirstTime, Value: strconv.AppendInt(nil, a.Row.First, 10)})
	}
	if a.Status != "" {
		headers = append(headers, kgo.RecordHeader{Key: HeaderClaimStatus, Value: []byte(a.Status)})
	}
	if a.Claim != nil {
		headers = append(headers,
			kgo.RecordHeader{Key: HeaderAttempt, Value: strconv.AppendUint(nil, uint64(a.Row.Attempt), 10)})
		if a.Claim.Original != nil {
			headers = append(headers, kgo.RecordHeader{Key: HeaderFirstRequest, Value: a.Claim.Original})
		}
	}
	if a.Reason != "" {
		headers = append(headers, kgo.RecordHeader{Key: HeaderReason, Value: []byte(a.Reason)})
	}
	for _, flag := range [...]struct {
		name string
		set  bool
	}{{headerHasOutcome, a.HasOutcome}, {headerForwarded, a.Forwarded}, {headerOutcomeFollows, a.OutcomeFollows}, {headerOmitted, a.Omitted}} {
		if flag.set {
			headers = append(headers, kgo.RecordHeader{Key: flag.name})
		}
	}
	return headers
}

// Answer is a decoded verdict record, with the outcome if the record has one.
type Answer struct {
	Verdict dedup.Verdict
	// Status is the status of the claim, or the kind of the outcome; "" outside of claim mode.
	Status string
	// HasOutcome reports that Value and Headers come from the executor's outcome.
	HasOutcome bool
	Key        string // the dedup key as text; "" for a missing key
	Attempt    uint32 // of the claim
	// First is the topic/partition/offset of the key's first event, FirstTime the event time of that
	// event, and FirstRequest the request id of its client. Each may be empty.
	First        string
	FirstTime    time.Time
	FirstRequest string
	Reason       string // in words, where the verdict needs one
	Value        []byte // nil for a null value
	Headers      []dedup.Header
	// Omitted reports that the outcome's result was too long to store or to send.
	Omitted bool
	// Forwarded reports that the event itself is in the output topic.
	Forwarded bool

	OutcomeFollows bool // a further record with the outcome follows
	// Awaited reports that the request waited for an outcome before it got this answer. The ingress
	// client sets it.
	Awaited bool

	// Token is the token of a start or renewal, and Granted the answer to it; "" and false in a
	// verdict.
	Token   string
	Granted bool
	// StartedBy is the start id to which the current attempt was granted; "" for none.
	StartedBy string
}

// Waits reports whether the request waits for an outcome. If the outcome follows, only the request of a
// duplicate waits for it.
func (a *Answer) Waits() bool { return a.OutcomeFollows && a.Verdict == dedup.InProgress }

// AwaitsOutcome reports whether the request waits for an outcome on a route where the first request of
// a key waits for it, too.
func (a *Answer) AwaitsOutcome() bool { return a.OutcomeFollows }

// AddressOf reads the address of a verdict record; false if the record has none.
func AddressOf(rec *kgo.Record) (dedup.Address, bool) {
	// The last header is the one that the task wrote; headers of the outcome come before it.
	for i := len(rec.Headers) - 1; i >= 0; i-- {
		if rec.Headers[i].Key == HeaderReplyTo {
			return dedup.ParseAddress(rec.Headers[i].Value)
		}
	}
	return dedup.Address{}, false
}

// ReadAnswer reads a verdict, or the answer to a start or renewal; false if this build does not know
// the verdict or answer.
func ReadAnswer(rec *kgo.Record) (Answer, bool) {
	a := Answer{Value: rec.Value}
	known := false
	for i := range rec.Headers {
		h := &rec.Headers[i]
		if !IsReserved(h.Key) {
			a.Headers = append(a.Headers, dedup.Header{Key: h.Key, Value: h.Value})
			continue
		}
		text := string(h.Value)
		switch h.Key {
		case HeaderVerdict:
			for _, v := range dedup.Verdicts {
				if v.String() == text {
					a.Verdict, known = v, true
				}
			}
		case HeaderAnswer:
			a.Granted, known = text == AnswerGranted, text == AnswerGranted || text == AnswerSuperseded
		case HeaderClaimToken:
			a.Token = text
		case HeaderStartedBy:
			a.StartedBy = text
		case HeaderClaimStatus:
			a.Status = text
		case HeaderKey:
			a.Key = text
		case HeaderAttempt:
			n, _ := strconv.ParseUint(text, 10, 32) // a task wrote it; 0 without one
			a.Attempt = uint32(n)
		case HeaderFirst:
			a.First = text
		case HeaderFirstTime:
			if ms, err := strconv.ParseInt(text, 10, 64); err == nil {
				a.FirstTime = time.UnixMilli(ms)
			}
		case HeaderFirstRequest:
			a.FirstRequest = text
		case HeaderReason:
			a.Reason = text
		case headerHasOutcome:
			a.HasOutcome = true
		case headerForwarded:
			a.Forwarded = true
		case headerOutcomeFollows:
			a.OutcomeFollows = true
		case headerOmitted:
			a.Omitted = true
		}
	}
	return a, known
}
