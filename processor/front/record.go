package front

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// ReadRecord returns the committed record at a position. It returns an operator error if there is none.
func (i *Inspector) ReadRecord(ctx context.Context, topic string, partition int32, offset int64) (*kgo.Record, error) {
	readers, err := i.readersOf(ctx, topic)
	if err != nil {
		return nil, err
	}
	at := slices.IndexFunc(readers, func(r *kafka.Reader) bool { return r.Partition == partition })
	if at < 0 {
		return nil, kafka.OperatorErrorf("topic %s has %d partitions, and none with the number %d", topic, len(readers), partition)
	}
	start, end, err := readers[at].Bounds(ctx)
	if err != nil {
		return nil, err
	}
	if offset < start || offset >= end {
		return nil, kafka.OperatorErrorf("%s/%d has the offsets %d to %d, so it has no record at %d", topic, partition, start, end-1, offset)
	}
	var found *kgo.Record
	err = readers[at].Read(ctx, offset, offset+1, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if rec.Offset == offset {
				found = rec
			}
		}
		return nil
	})
	if err == nil && found == nil {
		err = kafka.OperatorErrorf("%s/%d has no committed record at offset %d", topic, partition, offset)
	}
	return found, err
}

// readersOf returns a reader for each partition of a topic, in order. It returns an operator error if the topic
// does not exist.
func (i *Inspector) readersOf(ctx context.Context, topic string) ([]*kafka.Reader, error) {
	meta, err := kadm.NewClient(i.client).Metadata(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("read the metadata of %s: %w", topic, err)
	}
	described := meta.Topics[topic]
	if described.Err != nil {
		return nil, fmt.Errorf("describe %s: %w", topic, kafka.Denied(described.Err, "Describe", kafka.ResourceTopic, topic))
	}
	leaders := kafka.NewLeaders(i.client)
	var readers []*kafka.Reader
	for _, partition := range described.Partitions.Numbers() {
		readers = append(readers, leaders.NewReader(topic, described.ID, partition))
	}
	return readers, nil
}

// KeysOf returns the keys that a record may have. For a duplicate, a dead letter or another record that the app
// emitted, it is the key in the record's headers. For any other record of the routes' topics, it is what the
// routes derive. Without a key, KeysOf returns an operator error.
func (i *Inspector) KeysOf(ctx context.Context, rec *kgo.Record) ([]rules.Derived, error) {
	headers := wire.Headers(rec.Headers)
	text, hasKey := headers.Header(wire.HeaderKey)
	if !hasKey {
		return i.deriveOf(ctx, rec)
	}
	name, _ := headers.Header(wire.HeaderRoute)
	route := i.routes.Route(string(name))
	if route == nil {
		return nil, kafka.OperatorErrorf("record %s/%d/%d: header %s names route %q, which is not in the routes file", rec.Topic, rec.Partition, rec.Offset, wire.HeaderRoute, name)
	}
	b, err := hex.DecodeString(string(text))
	if err != nil || len(b) != len(rules.Derived{}.Key) {
		return nil, kafka.OperatorErrorf("record %s/%d/%d: header %s is %q, want 64 hexadecimal digits", rec.Topic, rec.Partition, rec.Offset, wire.HeaderKey, text)
	}
	key := [32]byte(b)
	// The record of the event is better than its key alone, because from the record the details and the
	// adjacent buckets can be derived, too.
	deriver := i.cfg.NewDeriver(i.routes)
	for _, topic := range inputsOf(&headers, route) {
		d, err := i.derive(ctx, deriver, rec, topic)
		if err != nil {
			return nil, err
		}
		if d.Finding == rules.Keyed && d.Route == route && d.Key == key {
			return []rules.Derived{d}, nil
		}
	}
	return route.OfKey(key), nil
}

// inputsOf returns the input topic from which a record came, if its headers name it, and otherwise all inputs
// of its route.
func inputsOf(headers *wire.Headers, route *rules.Route) []string {
	if source, ok := headers.Header(wire.HeaderSource); ok {
		if topic, _, _ := strings.Cut(string(source), "/"); slices.Contains(route.Topics, topic) {
			return []string{topic}
		}
	}
	return route.Topics
}

func (i *Inspector) derive(ctx context.Context, deriver *rules.Deriver, rec *kgo.Record, topic string) (rules.Derived, error) {
	headers := wire.Headers(rec.Headers)
	return i.cfg.Derive(ctx, deriver, &rules.Input{Topic: topic, Key: rec.Key, Value: rec.Value, Headers: &headers, Timestamp: rec.Timestamp.UnixMilli()})
}

// deriveOf returns the keys that the routes derive from a record of their inputs or outputs.
func (i *Inspector) deriveOf(ctx context.Context, rec *kgo.Record) ([]rules.Derived, error) {
	deriver := i.cfg.NewDeriver(i.routes)
	var all []rules.Derived
	reason := "topic " + rec.Topic + " is neither an input nor an output of a route"
	for _, route := range i.routes.Routes {
		topics := route.Topics
		switch {
		case slices.Contains(route.Topics, rec.Topic):
			topics = []string{rec.Topic}
		case route.Output != rec.Topic:
			continue
		}
		for _, topic := range topics {
			d, err := i.derive(ctx, deriver, rec, topic)
			if err != nil {
				return nil, err
			}
			switch {
			case d.Finding != rules.Keyed:
				reason = d.Reason
			case d.Route == route && !slices.ContainsFunc(all, func(have rules.Derived) bool { return have.Digest == d.Digest }):
				all = append(all, d)
			}
		}
	}
	if len(all) == 0 {
		return nil, kafka.OperatorErrorf("record %s/%d/%d has no header %s, and no route derives a key: %s", rec.Topic, rec.Partition, rec.Offset, wire.HeaderKey, reason)
	}
	return all, nil
}
