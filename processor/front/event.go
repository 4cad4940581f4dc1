package front

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// FirstEvent returns the first event of an entry as it is in the output of its route; nil if the output no
// longer has it. It derives the keys of the output's records again: events in the output have no oncebus
// header, and the input and the repartition topic may have been purged. It first reads from the offsets that
// belong to the event's time. Only if it does not find the event there, it reads from the start of the topic.
func (i *Inspector) FirstEvent(ctx context.Context, route *rules.Route, e *Entry) (*kgo.Record, error) {
	admin := kadm.NewClient(i.client)
	meta, err := admin.Metadata(ctx, route.Output)
	if err != nil {
		return nil, fmt.Errorf("read the metadata of %s: %w", route.Output, err)
	}
	topic := meta.Topics[route.Output]
	if topic.Err != nil {
		return nil, fmt.Errorf("describe %s: %w", route.Output, kafka.Denied(topic.Err, "Describe", kafka.ResourceTopic, route.Output))
	}
	after, err := admin.ListOffsetsAfterMilli(ctx, e.Row.First, route.Output)
	if err != nil {
		return nil, fmt.Errorf("list offsets of %s: %w", route.Output, kafka.Denied(err, "Describe", kafka.ResourceTopic, route.Output))
	}
	search := eventSearch{ctx: ctx, cfg: i.cfg, route: route, entry: e, deriver: i.cfg.NewDeriver(i.routes)}
	leaders := kafka.NewLeaders(i.client)
	var earlier []func() error
	for _, partition := range topic.Partitions.Numbers() {
		reader := leaders.NewReader(route.Output, topic.ID, partition)
		start, end, err := reader.Bounds(ctx)
		if err != nil {
			return nil, fmt.Errorf("list offsets of %s/%d: %w", route.Output, partition, err)
		}
		middle := end
		if o, ok := after.Lookup(route.Output, partition); ok && o.Err == nil && o.Offset >= 0 {
			middle = min(max(o.Offset, start), end)
		}
		if err := reader.Read(ctx, middle, end, i.progress.tracked(middle, end, search.look)); err != nil {
			return search.result(err)
		}
		earlier = append(earlier, func() error { return reader.Read(ctx, start, middle, i.progress.tracked(start, middle, search.look)) })
	}
	for _, read := range earlier {
		if err := read(); err != nil {
			return search.result(err)
		}
	}
	return search.result(nil)
}

// errFound makes a Reader stop.
var errFound = errors.New("found")

// eventSearch looks for the event of an entry in the output.
type eventSearch struct {
	ctx     context.Context //nolint:containedctx // of the search
	cfg     app.Config
	route   *rules.Route
	entry   *Entry
	deriver *rules.Deriver
	// nearest is the event of the key whose time is nearest to the time in the row. The two times may differ,
	// because on_future: clamp changes the time in the row.
	nearest *kgo.Record
	away    int64 // distance of nearest from the row's time, in ms
}

func (s *eventSearch) result(err error) (*kgo.Record, error) {
	if err == nil || errors.Is(err, errFound) {
		return s.nearest, nil
	}
	return nil, err
}

// look checks the records of a fetch. It returns errFound when it has found the event itself.
func (s *eventSearch) look(records []*kgo.Record, _ int64) error {
	for _, rec := range records {
		at, ok, err := s.timeOf(rec)
		if err != nil {
			return err
		}
		if !ok {
			continue
		}
		away := max(at-s.entry.Row.First, s.entry.Row.First-at)
		if s.nearest == nil || away < s.away {
			s.nearest, s.away = rec, away
		}
		if away == 0 {
			return errFound
		}
	}
	return nil
}

// timeOf returns the event time of a record that has the entry's key and was emitted as the first event of its
// key; false for any other record.
func (s *eventSearch) timeOf(rec *kgo.Record) (int64, bool, error) {
	headers := wire.Headers(rec.Headers)
	if verdict, ok := headers.Header(wire.HeaderVerdict); ok && !isFirst(string(verdict)) {
		return 0, false, nil
	}
	for _, topic := range s.entry.inputsOf(s.route) {
		in := rules.Input{Topic: topic, Key: rec.Key, Value: rec.Value, Headers: &headers, Timestamp: rec.Timestamp.UnixMilli()}
		d, err := s.cfg.Derive(s.ctx, s.deriver, &in)
		if err != nil {
			return 0, false, err
		}
		if d.Finding == rules.Keyed && d.Route == s.route && d.Digest == s.entry.Row.Digest {
			return d.Time, true, nil
		}
	}
	return 0, false, nil
}

// inputsOf returns the input topics that the first event may be from: the topic that the row names, if it names
// one, because an event of another topic may belong to another route.
func (e *Entry) inputsOf(route *rules.Route) []string {
	topic, _, _ := strings.Cut(e.First, "/")
	switch {
	case slices.Contains(route.Topics, topic):
		return []string{topic}
	case route.HTTP != nil: // the row of an event that came by HTTP has a position in the repartition topic
		return []string{route.HTTP.Topic}
	}
	return route.Topics
}

// isFirst reports whether an event with this verdict is a first event, for which a row was made.
func isFirst(verdict string) bool {
	for _, v := range []dedup.Verdict{dedup.Unique, dedup.AfterWindow, dedup.Bypassed} {
		if v.String() == verdict {
			return true
		}
	}
	return false
}
