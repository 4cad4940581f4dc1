package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// offsetsTopic is the topic in which brokers store the offsets of consumer groups.
const offsetsTopic = "__consumer_offsets"

// watch reads a topic from its present end with read_committed, and calls see with each record, under the lock.
func (r *runner) watch(ctx, watch context.Context, topic string, see func(*kgo.Record)) error {
	ends, err := r.endsOf(ctx, topic)
	if err != nil {
		return err
	}
	if topic == r.Outcomes {
		r.ends = ends
	}
	from := map[int32]kgo.Offset{}
	for partition, end := range ends {
		from[partition] = kgo.NewOffset().At(end)
	}
	client, err := kgo.NewClient(append(slices.Clone(r.opts),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchIsolationLevel(kgo.ReadCommitted()))...)
	if err != nil {
		return err
	}
	r.watchers = append(r.watchers, client)
	r.watching.Go(func() {
		for watch.Err() == nil {
			fetches := client.PollFetches(watch)
			r.mu.Lock()
			if err := fetches.Err(); err != nil && watch.Err() == nil {
				r.watchErr = errors.Join(r.watchErr, fmt.Errorf("read topic %s: %w", topic, err))
			}
			fetches.EachRecord(see)
			r.mu.Unlock()
		}
	})
	return nil
}

// endsOf returns the end offset of each partition of a topic.
func (r *runner) endsOf(ctx context.Context, topic string) (map[int32]int64, error) {
	listed, err := r.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the end of topic %s: %w", topic, err)
	}
	ends := map[int32]int64{}
	for partition, end := range listed[topic] {
		ends[partition] = end.Offset
	}
	return ends, nil
}

// sawOutcome records an outcome, or answers a question.
func (r *runner) sawOutcome(rec *kgo.Record) {
	headers := wire.Headers(rec.Headers)
	own := func(name string) string { value, _ := headers.Own(name); return string(value) }
	e := Entry{
		Token: own(wire.HeaderClaimToken), ReplyTo: own(wire.HeaderReplyTo), Kind: own(wire.HeaderOutcome), StartID: own(wire.HeaderStartID), Value: rec.Value,
		Producer: Producer{rec.ProducerID, rec.ProducerEpoch, rec.Attrs.IsTransactional()},
	}
	st := r.attempts[e.Token]
	if kind, ok := dedup.ParseOutcomeKind([]byte(e.Kind)); ok && kind.Asks() {
		e.What = Asked
		r.add(e)
		r.answer(rec, &e, st)
		return
	}
	e.What = Outcome
	r.add(e)
	if st = r.attempts[cmp.Or(e.Token, e.ReplyTo)]; st != nil {
		st.outcomes++
	}
}

// answer answers a question as oncebus does. For an event whose start is to be refused, the kit first sends an
// answer that grants the start but lacks the headers of the question. Such an answer looks like the answer to a
// question that the executor asked before a restart, and the executor must ignore it. The caller holds the
// lock.
func (r *runner) answer(question *kgo.Record, e *Entry, st *state) {
	if st != nil && st.Refused && !st.asked {
		st.asked = true
		r.produceAnswer(&kgo.Record{Topic: r.Answers, Key: question.Key, Headers: header(
			wire.HeaderRoute, routeName, wire.HeaderClaimToken, e.Token, wire.HeaderOutcome, e.Kind, wire.HeaderAnswer, wire.AnswerGranted, wire.HeaderStartID, e.StartID)})
		return
	}
	reason := ""
	switch {
	case st == nil, st.Aborted:
		reason = "no claim: the key has no row"
	case st.superseded != "":
		reason = st.superseded
	case st.outcomes > 0:
		reason = e.Kind + " is too late: the key is completed"
	case st.Refused:
		reason = fmt.Sprintf("attempt %d was started with another start id", st.Attempt)
	case st.startID != "" && st.startID != e.StartID:
		reason = fmt.Sprintf("attempt %d was started with another start id", st.Attempt)
	case e.Kind == dedup.OutcomeStart.String():
		st.startID = e.StartID
	}
	if st != nil {
		st.asked = true
	}
	r.add(Entry{What: Answered, Token: e.Token, Kind: e.Kind, StartID: e.StartID, Granted: reason == ""})
	if r.Answers == "" {
		return
	}
	text := wire.AnswerGranted
	if reason != "" {
		text = wire.AnswerSuperseded
	}
	answer := &kgo.Record{Topic: r.Answers, Key: question.Key, Headers: header(
		wire.HeaderRoute, routeName, wire.HeaderClaimToken, e.Token, wire.HeaderOutcome, e.Kind, wire.HeaderAnswer, text,
		wire.HeaderStartID, e.StartID, wire.HeaderReason, reason)}
	for _, h := range question.Headers {
		if !wire.IsReserved(h.Key) {
			answer.Headers = append(answer.Headers, h)
		}
	}
	r.produceAnswer(answer)
}

func (r *runner) produceAnswer(answer *kgo.Record) {
	r.answers.Produce(context.Background(), answer, func(_ *kgo.Record, err error) {
		if err != nil && !errors.Is(err, kgo.ErrClientClosed) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.watchErr = errors.Join(r.watchErr, fmt.Errorf("write an answer to topic %s: %w", r.Answers, err))
		}
	})
}

// header returns record headers made of pairs of name and value. It leaves out headers with an empty value.
func header(pairs ...string) (headers []kgo.RecordHeader) {
	for pair := range slices.Chunk(pairs, 2) {
		if name, value := pair[0], pair[1]; value != "" {
			headers = append(headers, kgo.RecordHeader{Key: name, Value: []byte(value)})
		}
	}
	return headers
}

// watchOffsets reads the commits of offsets, if their topic exists and the kit may read it. The kit has fetched
// the group's offsets before, so a broker that keeps offsets in this topic has created it by now.
func (r *runner) watchOffsets(ctx, watch context.Context) error {
	listed, err := r.admin.ListTopicsWithInternal(ctx, offsetsTopic)
	if err != nil {
		return fmt.Errorf("list topics: %w", err)
	}
	if !listed.Has(offsetsTopic) {
		return nil
	}
	r.timeline.OffsetsRead = true
	return r.watch(ctx, watch, offsetsTopic, r.sawCommit)
}

// sawCommit records a commit of an offset by the executor's consumer group.
func (r *runner) sawCommit(rec *kgo.Record) {
	key, value := kmsg.NewOffsetCommitKey(), kmsg.NewOffsetCommitValue()
	if len(rec.Key) < 2 || rec.Key[0] != 0 || rec.Key[1] > 1 || key.ReadFrom(rec.Key) != nil || rec.Value == nil || value.ReadFrom(rec.Value) != nil {
		return // the record is about the group itself, about a removed offset, or malformed
	}
	if key.Group != r.Group || key.Topic != r.Topic {
		return
	}
	r.committed[key.Partition] = max(r.committed[key.Partition], value.Offset)
	r.add(Entry{What: Committed, Partition: key.Partition, Offset: value.Offset, Producer: Producer{rec.ProducerID, rec.ProducerEpoch, rec.Attrs.IsTransactional()}})
}
