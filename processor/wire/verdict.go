package wire

import (
	"encoding/hex"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// verdictTexts are the verdicts as headers have them.
var verdictTexts = func() (texts [256][]byte) {
	for _, v := range dedup.Verdicts {
		texts[v] = []byte(v.String())
	}
	return texts
}()

// VerdictText returns a verdict as headers have it. Nobody may change it.
func VerdictText(v dedup.Verdict) []byte { return verdictTexts[v] }

// VerdictHeadersMax is the most headers of ours on a verdict.
const VerdictHeadersMax = 14

// VerdictRecord is a verdict on its way to who asked.
type VerdictRecord struct {
	To         dedup.Address
	Verdict    dedup.Verdict
	Key        *[32]byte    // nil if none could be derived
	Row        *dedup.Row   // of the first event; nil if there is none
	First      []byte       // where that one stands, as text; nil if there is none
	Claim      *dedup.Claim // of row, in claim mode
	Status     string       // in claim mode
	Reason     string
	Value      []byte
	Headers    []dedup.Header // of the outcome
	BrokerTime int64          // ms

	HasOutcome, Forwarded, OutcomeFollows, Omitted bool
}

// VerdictTextBytes is how long the texts of address and key are together.
const VerdictTextBytes = dedup.AddressTextBytes + 2*32

// AppendHeaders appends the headers that readAnswer reads. The texts of address
// and key are written to text, of verdictTextBytes.
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
	if a.Claim != nil {
		headers = append(headers,
			kgo.RecordHeader{Key: HeaderClaimStatus, Value: []byte(a.Status)},
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
	}{{headerSettled, a.HasOutcome}, {headerPassed, a.Forwarded}, {headerWaits, a.OutcomeFollows}, {headerOmitted, a.Omitted}} {
		if flag.set {
			headers = append(headers, kgo.RecordHeader{Key: flag.name})
		}
	}
	return headers
}

// Answer is what became of an event that was asked for.
type Answer struct {
	Verdict dedup.Verdict
	// Status is that of the claim, or the kind of the outcome; "" outside of
	// claim mode.
	Status string
	// HasOutcome says that there is an outcome: Value and Headers are the
	// executor's.
	HasOutcome bool
	Key        string // the dedup key as text; "" if none could be derived
	Attempt    uint32 // of the claim
	// First is where the first copy stands, FirstTime its event time, and
	// FirstRequest the id its sender has for it; where there is one.
	First        string
	FirstTime    time.Time
	FirstRequest string
	Reason       string // why, where the verdict alone does not say it
	Value        []byte // nil is null
	Headers      []dedup.Header
	// Omitted says that the outcome's result was too long to be kept or told.
	Omitted bool
	// Forwarded says that the event itself went on to the output.
	Forwarded bool

	OutcomeFollows bool // the outcome will be told as well
}

// AddressOf reads the address of a verdict.
func AddressOf(rec *kgo.Record) (dedup.Address, bool) {
	// The last one is ours: an outcome's headers stand before.
	for i := len(rec.Headers) - 1; i >= 0; i-- {
		if rec.Headers[i].Key == HeaderReplyTo {
			return dedup.ParseAddress(rec.Headers[i].Value)
		}
	}
	return dedup.Address{}, false
}

// ReadAnswer reads a verdict; false for one that this build does not know.
func ReadAnswer(rec *kgo.Record) (Answer, bool) {
	a := Answer{Value: rec.Value}
	known := false
	for i := range rec.Headers {
		h := &rec.Headers[i]
		if !IsOurs(h.Key) {
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
		case HeaderClaimStatus:
			a.Status = text
		case HeaderKey:
			a.Key = text
		case HeaderAttempt:
			n, _ := strconv.ParseUint(text, 10, 32) // ours: 0 where it is not there
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
		case headerSettled:
			a.HasOutcome = true
		case headerPassed:
			a.Forwarded = true
		case headerWaits:
			a.OutcomeFollows = true
		case headerOmitted:
			a.Omitted = true
		}
	}
	return a, known
}
