package deadletter

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// Cause groups the dead letters that cannot be redriven, by the reason why.
type Cause string

// The causes.
const (
	AtBound      Cause = "at_bound"      // redriven as often as the bound allows
	NoEvent      Cause = "no_event"      // not about an event or an outcome
	UnknownRoute Cause = "unknown_route" // its route is not in the routes file
	UnknownTopic Cause = "unknown_topic" // its input is not in the routes file, or the partition no longer exists
	NotWhole     Cause = "not_whole"     // the dead letter lacks a part of the record, and the original was deleted
	Unfit        Cause = "unfit"         // its topic would refuse the record, or delete it
	OtherRoute   Cause = "other_route"   // an event by HTTP that would go to another route of its topic
)

// Skip says why a dead letter cannot be redriven, and what the operator can do about it.
type Skip struct {
	Cause Cause
	Why   string
}

func skipf(cause Cause, format string, args ...any) *Skip {
	return &Skip{cause, fmt.Sprintf(format, args...)}
}

// refuse returns why a dead letter cannot be redriven, as far as that is known without its original; nil if it
// can.
func (c *Client) refuse(l *Letter, attemptsMax int) *Skip {
	switch l.Class {
	case Foreign:
		return skipf(NoEvent, "oncebus did not write it: its headers name no route, reason and source")
	case Reply:
		return skipf(NoEvent, "it is a reply, its event was processed: raise max.message.bytes of the replies topic; the sender that repeats the event gets the result")
	case Answer:
		return skipf(NoEvent, "it is an answer: raise max.message.bytes of the answers topic; the executor asks again")
	case Batch:
		return skipf(NoEvent, "it names a batch that was not read, and has none of its records: raise ONCEBUS_MAX_DECOMPRESSED_BATCH_BYTES, then produce the records of %v again in smaller batches", l.Origin)
	case MissingKey, Late, Limited, Collision, Invalid, Future, TooLarge, Refused, Outcome:
	}
	route := c.routes.Route(l.Route)
	if route == nil {
		return skipf(UnknownRoute, "its route %s is not in the routes file: add the route, or use the file of its app", l.Route)
	}
	topic, _ := c.target(l, route)
	present, exists := c.topics[topic]
	switch {
	case !slices.Contains(c.inputs(), topic):
		return skipf(UnknownTopic, "topic %s is no input of the routes file: add it to the topics of route %s", topic, l.Route)
	case !exists:
		return skipf(UnknownTopic, "topic %s does not exist: create it", topic)
	case topic == l.Origin.Topic && l.Origin.Partition >= present.Partitions:
		return skipf(UnknownTopic, "topic %s has %d partitions and no partition %d any more: it was recreated; add partitions", topic, present.Partitions, l.Origin.Partition)
	case l.Attempt >= attemptsMax:
		return skipf(AtBound, "it was redriven %d times and turned away again: mend its cause, then raise --max-attempts, or drop it", l.Attempt)
	}
	return nil
}

// byHTTP reports whether the original came by HTTP and therefore has no record in an input topic.
func (c *Client) byHTTP(l *Letter) bool { return l.Origin.Topic == c.found.Topology.Repartition }

// target returns the topic and the partition to which a dead letter goes back. An event that came by HTTP goes
// to the topic for which the ingress has derived its key, because the router then derives the same key. Its
// partition follows from the partition of the dead letter: the dead letters of a key are all in one partition,
// so the redriven records of a key are in one partition, too.
func (c *Client) target(l *Letter, route *rules.Route) (topic string, partition int32) {
	if !c.byHTTP(l) {
		return l.Origin.Topic, l.Origin.Partition
	}
	topic = route.Topics[0]
	if route.HTTP != nil {
		topic = route.HTTP.Topic
	}
	if n := c.topics[topic].Partitions; n > 0 {
		partition = l.At.Partition % n
	}
	return topic, partition
}

// originals returns the original records of dead letters, as far as the input topics still have them. A batch
// that is too large to decompress has no original.
func (c *Client) originals(ctx context.Context, letters []*Letter) (map[Position]*kgo.Record, error) {
	wanted := map[Position][]int64{} // offsets by partition; the offset in the key is 0
	for _, l := range letters {
		if !c.byHTTP(l) {
			partition := Position{Topic: l.Origin.Topic, Partition: l.Origin.Partition}
			wanted[partition] = append(wanted[partition], l.Origin.Offset)
		}
	}
	found := map[Position]*kgo.Record{}
	for of, offsets := range wanted {
		slices.Sort(offsets)
		records, err := c.fetch(ctx, of.Topic, of.Partition, slices.Compact(offsets))
		var large *kgo.ErrDecompressTooLarge
		if err != nil && !errors.As(err, &large) {
			return nil, err
		}
		for offset, rec := range records {
			found[Position{of.Topic, of.Partition, offset}] = rec
		}
	}
	return found, nil
}

// isOf reports whether a record is the original of a dead letter. The check is necessary because, after its
// topic was deleted and recreated, another record may be at the same position.
func isOf(rec *kgo.Record, l *Letter) bool {
	if rec == nil || l.TimeKnown && rec.Timestamp.UnixMilli() != l.Time {
		return false
	}
	if l.IsPointer() {
		sum := sha256.Sum256(rec.Value)
		return hex.EncodeToString(sum[:]) == l.Hash
	}
	return bytes.Equal(rec.Value, l.Record.Value) && (rec.Value == nil) == (l.Record.Value == nil) &&
		bytes.Equal(rec.Key, l.Record.Key)
}

// restore returns the record to produce for a dead letter. original is the original record; nil if it no longer
// exists.
func (c *Client) restore(l *Letter, original *kgo.Record) (*kgo.Record, *Skip) {
	if !isOf(original, l) {
		original = nil
	}
	rec := &kgo.Record{Key: l.Record.Key, Value: l.Record.Value, Timestamp: time.UnixMilli(l.Time)}
	var headers []kgo.RecordHeader
	switch {
	case original != nil:
		rec.Key, rec.Value, rec.Timestamp = original.Key, original.Value, original.Timestamp
		headers = original.Headers
	case l.IsPointer():
		return nil, skipf(NotWhole, "it was not carried whole, and its original %v is deleted: raise max.message.bytes of the dead-letter topic; send the event again", l.Origin)
	case !l.TimeKnown:
		return nil, skipf(NotWhole, "its topic has message.timestamp.type=LogAppendTime, and its original %v is deleted, so the timestamp is lost: send the event again", l.Origin)
	default:
		from := ownFrom(l.Record.Headers)
		headers = l.Record.Headers[:from]
		if l.Class == Outcome {
			own, ok := outcomeHeaders(l.Record.Headers[from:])
			if !ok {
				return nil, skipf(NotWhole, "its claim token or kind was shortened, and its original %v is deleted: send the outcome again", l.Origin)
			}
			headers = slices.Concat(headers, own)
		}
	}
	rec.Headers = make([]kgo.RecordHeader, 0, len(headers)+1)
	for _, h := range headers {
		// The header oncebus-reply-to is left out, because the request that waited for the verdict is over. The
		// count of attempts is left out, because the redrive appends a new one.
		if !strings.EqualFold(h.Key, wire.HeaderReplyTo) && !strings.EqualFold(h.Key, wire.HeaderRedriveAttempt) {
			rec.Headers = append(rec.Headers, h)
		}
	}
	rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: wire.HeaderRedriveAttempt, Value: strconv.AppendInt(nil, int64(l.Attempt)+1, 10)})
	rec.Topic, rec.Partition = c.target(l, c.routes.Route(l.Route))
	return rec, nil
}

// outcomeHeaders returns the headers of an outcome, which are among the headers that oncebus has added to its
// dead letter. It returns false if one of them may have been shortened.
func outcomeHeaders(own []kgo.RecordHeader) (headers []kgo.RecordHeader, whole bool) {
	for _, h := range own {
		switch h.Key {
		case wire.HeaderClaimToken, wire.HeaderOutcome, wire.HeaderStartID:
			if len(h.Value) >= wire.OutcomeHeaderMax {
				return nil, false
			}
			headers = append(headers, h)
		}
	}
	return headers, true
}

// misfit returns why the topic of a record would refuse the record, or delete it before it is read; nil if the
// topic accepts it.
func misfit(rec *kgo.Record, limits *app.InputLimits, now time.Time) *Skip {
	age := now.Sub(rec.Timestamp).Milliseconds()
	shown := now.Sub(rec.Timestamp).Round(time.Second).Abs()
	alter := func(setting string) string {
		return fmt.Sprintf("alter it with kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config %s=...", rec.Topic, setting)
	}
	packed := *rec // a copy: commitRecords compresses the record again
	switch n := wire.RecordBytes(rec); {
	case n > int(limits.MaxBytes) && !kafka.Precompress(&packed, int(limits.MaxBytes), limits.ReadMax):
		return skipf(Unfit, "%d bytes with headers, topic %s has max.message.bytes=%d, which it exceeds compressed too: %s", n, rec.Topic, limits.MaxBytes, alter("max.message.bytes"))
	case limits.Compacted && rec.Key == nil:
		return skipf(Unfit, "no record key: topic %s is compacted and takes none without", rec.Topic)
	case limits.AppendTime || rec.Timestamp.UnixMilli() < 0: // a record without a timestamp has no age
		return nil
	case limits.AfterMaxMS < app.Forever && -age > limits.AfterMaxMS:
		return skipf(Unfit, "its timestamp is %v ahead, topic %s allows %d ms: %s", shown, rec.Topic, limits.AfterMaxMS, alter("message.timestamp.after.max.ms"))
	case limits.BeforeMaxMS < app.Forever && age > limits.BeforeMaxMS:
		return skipf(Unfit, "its timestamp is %v old, topic %s allows %d ms: %s", shown, rec.Topic, limits.BeforeMaxMS, alter("message.timestamp.before.max.ms"))
	case age > limits.RetentionMS:
		return skipf(Unfit, "its timestamp is %v old, topic %s has retention.ms=%d and may delete the record before it is read: raise it until the redrive has ended; %s", shown, rec.Topic, limits.RetentionMS, alter("retention.ms"))
	}
	return nil
}

// Fate is what the routes file would do with a record. It does not say whether the event is late, a collision
// or over a limit, because that depends on the state of the task.
type Fate struct {
	Route   string // "" if the topic belongs to no route
	Finding string // keyed, missing_key, malformed, or outcome
	Key     string // 64 hex digits, if keyed
	Reason  string // unless keyed
}

// fate derives the key of a record by the routes file.
func (c *Client) fate(ctx context.Context, l *Letter, rec *kgo.Record) (Fate, error) {
	if l.Class == Outcome {
		return Fate{Route: l.Route, Finding: string(Outcome), Reason: "its claim token decides, with the state of the claim"}, nil
	}
	in := wire.InputOf(rec)
	derived, err := c.cfg.Derive(ctx, c.deriver, &in)
	if err != nil {
		return Fate{}, err
	}
	fate := Fate{Finding: derived.Finding.String(), Reason: derived.Reason}
	if derived.Route != nil {
		fate.Route = derived.Route.Name
	}
	if derived.Finding == rules.Keyed {
		fate.Key = hex.EncodeToString(derived.Key[:])
	}
	return fate, nil
}

// Prospect is what a redrive would do with a dead letter now.
type Prospect struct {
	Record *kgo.Record // the record to produce; nil if there is a Skip
	Fate   Fate        // of Record
	Skip   *Skip
}

// prospect returns what a redrive would do with a dead letter.
func (c *Client) prospect(ctx context.Context, l *Letter, original *kgo.Record, limits map[string]app.InputLimits, now time.Time) (Prospect, error) {
	rec, skip := c.restore(l, original)
	if skip != nil {
		return Prospect{Skip: skip}, nil
	}
	if of, ok := limits[rec.Topic]; ok {
		if skip := misfit(rec, &of, now); skip != nil {
			return Prospect{Skip: skip}, nil
		}
	}
	fate, err := c.fate(ctx, l, rec)
	if err != nil {
		return Prospect{}, err
	}
	p := Prospect{Record: rec, Fate: fate}
	if c.byHTTP(l) && p.Fate.Route != l.Route {
		return Prospect{Skip: skipf(OtherRoute, "it came by HTTP, for route %s, and topic %s would give it to route %s: send the request again", l.Route, rec.Topic, p.Fate.Route)}, nil
	}
	return p, nil
}

// Prospect returns what a redrive with this bound of attempts would do with a dead letter now. The user needs
// only the right to Read. Without the right to DescribeConfigs on the input, Prospect does not check the limits
// of that topic.
func (c *Client) Prospect(ctx context.Context, l *Letter, attemptsMax int) (Prospect, error) {
	if skip := c.refuse(l, attemptsMax); skip != nil {
		return Prospect{Skip: skip}, nil
	}
	originals, err := c.originals(ctx, []*Letter{l})
	if err != nil {
		return Prospect{}, c.explain(err)
	}
	topic, _ := c.target(l, c.routes.Route(l.Route))
	limits, err := app.ReadInputLimits(ctx, c.admin, topic)
	if err != nil && kafka.Classify(err) != kafka.Stop {
		return Prospect{}, c.explain(err)
	}
	return c.prospect(ctx, l, originals[l.Origin], limits, time.Now())
}
