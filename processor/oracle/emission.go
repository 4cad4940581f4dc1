package oracle

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Headers of an emitted record that the checks read:
const (
	headerRoute     = "oncebus-route"
	headerVerdict   = "oncebus-verdict"
	headerKey       = "oncebus-key"
	headerReason    = "oncebus-reason"
	headerSource    = "oncebus-source"
	headerFirst     = "oncebus-first"
	headerFirstTime = "oncebus-first-time"
	headerTimestamp = "oncebus-timestamp"
	headerValueSize = "oncebus-value-bytes"
	headerValueHash = "oncebus-value-sha256"
	headerReplyTo   = "oncebus-reply-to"
	headerForwarded = "oncebus-forwarded"
	headerAttempt   = "oncebus-redrive-attempt"
)

// A builder makes the records that oncebus should emit.
type builder struct {
	cfg        *Config
	topicNames map[uint16]string
	headers    []Header // headers of the last record; the memory is reused
	refusals   map[refusalID]string
}

// foreign reports whether a header was not set by oncebus.
func foreign(h Header) bool {
	return len(h.Key) < 8 || !strings.EqualFold(h.Key[:8], "oncebus-")
}

// carried reports whether the repartition topic keeps a header as it was sent: a foreign header, or the header
// that tells how often a record was redriven, with up to six digits.
func carried(h Header) bool {
	if h.Key != headerAttempt {
		return foreign(h)
	}
	digits := strings.Trim(string(h.Value), "0123456789") == ""
	return digits && len(h.Value) > 0 && len(h.Value) <= 6
}

// redriven returns the first header that tells how often a record was redriven, if the record has one.
func redriven(headers []Header) []Header {
	at := slices.IndexFunc(headers, func(h Header) bool { return h.Key == headerAttempt && carried(h) })
	if at < 0 {
		return nil
	}
	return headers[at : at+1 : at+1]
}

func (o *builder) positionText(at position) string {
	name, ok := o.topicNames[at.topic]
	if at.topic == seedTopic {
		name, ok = "seeded key", true
	}
	if !ok {
		name = fmt.Sprintf("topic#%d", at.topic)
	}
	return fmt.Sprintf("%s/%d/%d", name, at.partition, at.offset)
}

// A draft has everything from which a record to be emitted is made.
type draft struct {
	record  *Record // as it is in the repartition topic, unwrapped
	env     *envelope
	route   *Route
	verdict string
	reason  string
	first   *row
}

// build returns the record for the topic and true; if the topic refuses that record, it returns the record for
// the dead-letter topic and false. The headers are valid until the next call. Partition is -1 if the number of
// partitions is unknown.
func (o *builder) build(l *draft, topic string) (Record, bool) {
	r := Record{Topic: topic, Timestamp: l.env.timestamp, Key: l.record.Key, Value: l.record.Value}
	o.headers = o.headers[:0]
	for _, h := range l.record.Headers {
		if foreign(h) {
			o.headers = append(o.headers, h)
		}
	}
	if topic == l.route.DeadLetter {
		o.headers = append(o.headers, redriven(l.record.Headers)...)
	}
	o.addOwnHeaders(l)
	r.Headers = o.headers
	why := o.refusal(&r, l.env.from, l.record.Timestamp)
	switch {
	case why == "":
	case topic != l.route.DeadLetter:
		l.verdict, l.reason = "invalid", why
		r, _ = o.build(l, l.route.DeadLetter)
		return r, false
	default:
		r = o.pointer(l, topic, why)
	}
	r.Partition = o.partition(&r, l.env)
	return r, why == ""
}

// addOwnHeaders appends the headers that oncebus sets.
func (o *builder) addOwnHeaders(l *draft) {
	unique := l.verdict == "unique"
	if !unique || l.route.Headers.Route {
		o.headers = append(o.headers, Header{headerRoute, []byte(l.route.Name)})
	}
	if !unique || l.route.Headers.Verdict {
		o.headers = append(o.headers, Header{headerVerdict, []byte(l.verdict)})
	}
	if !unique || l.route.Headers.Key {
		o.headers = append(o.headers, Header{headerKey, []byte(hex.EncodeToString(l.env.key[:]))})
	}
	if l.reason == "" {
		return
	}
	first, firstTime := l.env.from, l.env.timestamp
	if l.first != nil {
		first, firstTime = l.first.at, l.first.first
	}
	o.headers = append(o.headers, Header{headerReason, []byte(l.reason)}, Header{headerSource, []byte(o.positionText(l.env.from))},
		Header{headerFirst, []byte(o.positionText(first))}, Header{headerFirstTime, []byte(strconv.FormatInt(firstTime, 10))})
}

// refusal returns why the topic refuses the record; "" if it accepts it.
func (o *builder) refusal(r *Record, from position, present int64) string {
	e, known := o.cfg.Emissions[r.Topic]
	if why := o.refusals[refusalID{o.positionText(from), r.Topic}]; why != "" {
		return why
	}
	ahead := r.Timestamp - present
	switch size := recordBytes(r); {
	case !known:
	case e.MaxBytes > 0 && size > e.MaxBytes:
		return fmt.Sprintf("too large for topic %s: %d bytes with headers, max.message.bytes is %d, and it takes more compressed", r.Topic, size, e.MaxBytes)
	case e.Compacted && r.Key == nil:
		return fmt.Sprintf("no record key: topic %s is compacted and takes none without", r.Topic)
	case e.AppendTime:
	case e.After > 0 && ahead > e.After:
		return fmt.Sprintf("timestamp %d is %d ms ahead of the broker, topic %s allows %d (message.timestamp.after.max.ms)", r.Timestamp, ahead, r.Topic, e.After)
	case e.Before > 0 && -ahead > e.Before:
		return fmt.Sprintf("timestamp %d is %d ms behind the broker, topic %s allows %d (message.timestamp.before.max.ms)", r.Timestamp, -ahead, r.Topic, e.Before)
	}
	return ""
}

// recordBytes returns the size of a record as it counts against max.message.bytes.
func recordBytes(r *Record) int {
	n := 101 + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += 10 + len(h.Key) + len(h.Value)
	}
	return n
}

// pointer returns the record for a dead-letter topic that refuses the whole record: it has the parts that fit,
// and headers that identify the parts that are left out. Its timestamp is set by the broker.
func (o *builder) pointer(l *draft, topic, why string) Record {
	if l.reason == "" {
		l.reason = why
	} else {
		l.reason += "; not carried whole: " + why
	}
	o.headers = append(o.headers[:0], redriven(l.record.Headers)...)
	o.addOwnHeaders(l)
	o.headers = append(o.headers, description(l.record.Value, l.env.timestamp)...)
	r := Record{Topic: topic, Headers: o.headers}
	e := o.cfg.Emissions[topic]
	fits := func(b []byte) bool { return e.MaxBytes <= 0 || recordBytes(&r)+len(b) <= e.MaxBytes }
	switch {
	case l.record.Key != nil && fits(l.record.Key):
		r.Key = l.record.Key
	case e.Compacted:
		r.Key = []byte(o.positionText(l.env.from))
	}
	if fits(l.record.Value) {
		r.Value = l.record.Value
	}
	return r
}

// description returns the headers that identify a record whose value did not fit.
func description(value []byte, timestamp int64) []Header {
	hash := sha256.Sum256(value)
	return []Header{
		{headerTimestamp, []byte(strconv.FormatInt(timestamp, 10))}, {headerValueSize, []byte(strconv.Itoa(len(value)))},
		{headerValueHash, []byte(hex.EncodeToString(hash[:]))},
	}
}

// partition returns the partition of an emitted record. It follows from the record key as in Kafka clients;
// without a record key it follows from the first four bytes of the dedup key.
func (o *builder) partition(r *Record, e *envelope) int32 {
	n := o.cfg.Emissions[r.Topic].Partitions
	switch {
	case n <= 0:
		return -1
	case r.Key == nil:
		return int32(binary.BigEndian.Uint32(e.key[:]) % uint32(n))
	}
	return int32((murmur2(r.Key) & 0x7fffffff) % uint32(n))
}

// murmur2 is Kafka's variant of Austin Appleby's hash, as in org.apache.kafka.common.utils.Utils.
func murmur2(b []byte) uint32 {
	const m = 0x5bd1e995
	h := uint32(0x9747b28c) ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := binary.LittleEndian.Uint32(b) * m
		k ^= k >> 24
		h = h*m ^ k*m
	}
	if len(b) > 0 {
		for i := len(b) - 1; i >= 0; i-- {
			h ^= uint32(b[i]) << (8 * i)
		}
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}

// own returns the value of the last header with this name, because oncebus appends its headers after all
// others.
func own(r *Record, name string) (string, bool) {
	for _, h := range slices.Backward(r.Headers) {
		if h.Key == name {
			return string(h.Value), true
		}
	}
	return "", false
}

// same compares two byte strings as Kafka does: null differs from empty.
func same(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func sameHeaders(a, b []Header) bool {
	return slices.EqualFunc(a, b, func(x, y Header) bool { return x.Key == y.Key && same(x.Value, y.Value) })
}

// sameRecord reports whether two readings of the same offset are equal.
func sameRecord(a, b *Record) bool {
	return a.Timestamp == b.Timestamp && same(a.Key, b.Key) && same(a.Value, b.Value) && sameHeaders(a.Headers, b.Headers)
}

// A fingerprint identifies the content of an emitted record, but not its offset.
type fingerprint [16]byte

// printer makes fingerprints.
type printer struct {
	cfg     *Config
	scratch []byte
}

func (p *printer) of(r *Record) fingerprint {
	b := p.scratch[:0]
	put := func(s []byte) {
		if s == nil {
			b = append(b, 0)
			return
		}
		b = append(binary.AppendUvarint(b, uint64(len(s))+1), s...)
	}
	b = append(append(b, r.Topic...), 0)
	put(r.Key)
	put(r.Value)
	pointer := false
	for _, h := range r.Headers {
		b = append(append(b, h.Key...), 0)
		put(h.Value)
		pointer = pointer || h.Key == headerValueHash
	}
	if !pointer && r.Topic != p.cfg.Verdicts && !p.cfg.Emissions[r.Topic].AppendTime {
		b = binary.AppendVarint(b, r.Timestamp)
	}
	p.scratch = b
	sum := sha256.Sum256(b)
	return fingerprint(sum[:16])
}
