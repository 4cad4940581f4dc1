package wire

import (
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// The values of HeaderAnswer.
const (
	AnswerGranted    = "granted"
	AnswerSuperseded = "superseded"
)

// QuestionHeadersMax is the largest number of oncebus headers in the answer to a start or renewal.
const QuestionHeadersMax = 10

// QuestionAnswer is the answer to a start or a renewal. It becomes a record on the route's answers
// topic, or a verdict record for the HTTP request that asked.
type QuestionAnswer struct {
	To      dedup.Address // address of the request; zero for the answers topic
	Route   []byte
	Outcome *OutcomeEnvelope
	Key     *[32]byte // the dedup key; nil without a claim
	Attempt uint32    // current attempt of the key; 0 without a claim
	Reason  string    // why the attempt is superseded; "" if the question is granted
	// StartedBy is the start id to which the current attempt was granted; nil for none.
	StartedBy []byte
}

// Supersession is an answer that nobody asked for: it announces that an attempt in progress is no
// longer the current attempt of its key. It has no kind and no start id, so an executor that waits for
// the answer to a question does not mistake it for that answer.
type Supersession struct {
	Route   []byte
	Token   *dedup.Token // token of the superseded attempt
	Key     *[32]byte    // the dedup key
	Attempt uint32       // current attempt of the key
	Reason  string
}

// AppendHeaders appends the headers of the answer.
func (s *Supersession) AppendHeaders(headers []kgo.RecordHeader) []kgo.RecordHeader {
	return append(headers,
		kgo.RecordHeader{Key: HeaderRoute, Value: s.Route},
		kgo.RecordHeader{Key: HeaderClaimToken, Value: s.Token.Append(nil)},
		kgo.RecordHeader{Key: HeaderAnswer, Value: []byte(AnswerSuperseded)},
		kgo.RecordHeader{Key: HeaderKey, Value: []byte(KeyText(s.Key))},
		kgo.RecordHeader{Key: HeaderAttempt, Value: strconv.AppendUint(nil, uint64(s.Attempt), 10)},
		kgo.RecordHeader{Key: HeaderReason, Value: []byte(s.Reason)})
}

// Text returns the value of the header HeaderAnswer.
func (a *QuestionAnswer) Text() string {
	if a.Reason != "" {
		return AnswerSuperseded
	}
	return AnswerGranted
}

// AppendHeaders appends the headers of the answer.
func (a *QuestionAnswer) AppendHeaders(headers []kgo.RecordHeader) []kgo.RecordHeader {
	headers = append(headers, kgo.RecordHeader{Key: HeaderRoute, Value: a.Route})
	headers = append(headers, a.Outcome.Headers()...)
	headers = append(headers, kgo.RecordHeader{Key: HeaderAnswer, Value: []byte(a.Text())})
	if a.Outcome.StartID != nil {
		headers = append(headers, kgo.RecordHeader{Key: HeaderStartID, Value: a.Outcome.StartID})
	}
	if a.Key != nil {
		headers = append(headers, kgo.RecordHeader{Key: HeaderKey, Value: []byte(KeyText(a.Key))})
	}
	if a.Attempt > 0 {
		headers = append(headers, kgo.RecordHeader{Key: HeaderAttempt, Value: strconv.AppendUint(nil, uint64(a.Attempt), 10)})
	}
	if a.Reason != "" {
		headers = append(headers, kgo.RecordHeader{Key: HeaderReason, Value: []byte(a.Reason)})
	}
	if a.StartedBy != nil {
		headers = append(headers, kgo.RecordHeader{Key: HeaderStartedBy, Value: a.StartedBy})
	}
	if a.To.IsSet() {
		headers = append(headers, kgo.RecordHeader{Key: HeaderReplyTo, Value: a.To.AppendText(nil)})
	}
	return headers
}
