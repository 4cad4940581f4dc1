package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// clockTolerance is how much two clocks may differ without a finding. The requests that read the clocks take
// time, so the tolerance includes that time.
const clockTolerance = time.Minute

// clockFacts are the readings of all clocks at the time of a diagnosis.
type clockFacts struct {
	machine time.Time
	// broker is the brokers' time; zero if nothing shows it. If exact is false, broker is only a lower bound:
	// the brokers' clock shows this time or a later one.
	broker time.Time
	exact  bool
	inputs []newestEvent
}

// newestEvent is the event with the highest record timestamp of an input topic.
type newestEvent struct {
	topic string
	at    time.Time // its event time
	// recorded is the record's timestamp if the event time comes from a field of the event, and zero otherwise.
	recorded time.Time
	invalid  string // why the event has no event time; "" if it has one
	route    *rules.Route
}

// readClocks reads the clocks. The active controller of Kafka states its time in the state of the controller
// quorum. If the user may not read this state, the newest records with broker timestamps (LogAppendTime) show a
// time that the brokers' clock has passed.
func (f *Facts) readClocks(ctx context.Context, c Conn) error {
	if f.Broker != nil {
		f.clocks.broker, f.clocks.exact = time.UnixMilli(f.Broker.Now()), true
	} else if at, ok := quorumTime(ctx, c.Client); ok {
		f.clocks.broker, f.clocks.exact = at, true
	}
	f.clocks.machine = f.Clock()
	t := f.topology
	appended, inputs := f.present(t.internal()), f.present(slices.Concat(t.Routed, t.Prepartitioned))
	newest, err := f.newest(ctx, c, appended)
	if err != nil {
		return err
	}
	for _, o := range newest {
		if at := time.UnixMilli(o.Timestamp); t.settings[o.Topic]["message.timestamp.type"] == "LogAppendTime" && at.After(f.clocks.broker) {
			f.clocks.broker = at
		}
	}
	if newest, err = f.newest(ctx, c, inputs); err != nil {
		return err
	}
	for _, o := range newest {
		if event := f.eventAt(ctx, c, o); event.route != nil { // no route: the topic has outcomes
			f.clocks.inputs = append(f.clocks.inputs, event)
		}
	}
	return nil
}

// present returns the topics that exist.
func (f *Facts) present(topics []string) []string {
	return slices.DeleteFunc(slices.Clone(topics), func(name string) bool {
		_, ok := f.topology.Topics[name]
		return !ok
	})
}

// newest returns, for each topic that has a record, the record with the highest timestamp.
func (f *Facts) newest(ctx context.Context, c Conn, topics []string) (newest []kadm.ListedOffset, err error) {
	if len(topics) == 0 {
		return nil, nil
	}
	listed, err := c.Admin.ListMaxTimestampOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list the newest records: %w", err)
	}
	for _, topic := range topics {
		var highest kadm.ListedOffset
		for _, o := range listed[topic] {
			if o.Err == nil && o.Offset >= 0 && o.Timestamp > highest.Timestamp {
				highest = o
			}
		}
		if highest.Timestamp > 0 {
			newest = append(newest, highest)
		}
	}
	return newest, nil
}

// eventAt returns the event time of an input record by the rule of its route, or the record's timestamp if the
// event cannot be read.
func (f *Facts) eventAt(ctx context.Context, c Conn, o kadm.ListedOffset) newestEvent {
	event := newestEvent{topic: o.Topic, at: time.UnixMilli(o.Timestamp)}
	for _, r := range f.Routes.Routes {
		if slices.Contains(r.Topics, o.Topic) {
			event.route = cmp.Or(event.route, r)
		}
	}
	if !slices.ContainsFunc(f.Routes.Routes, func(r *rules.Route) bool { return r.Time != nil && slices.Contains(r.Topics, o.Topic) }) {
		return event
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	reader := kafka.NewReader(c.Client, o.Topic, f.topology.Topics[o.Topic].ID, o.Partition)
	// If the user may not read the topic, the record's timestamp is used as the event time.
	_ = reader.Read(ctx, o.Offset, o.Offset+1, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			in := rules.Input{Topic: rec.Topic, Key: rec.Key, Value: rec.Value, Headers: (*wire.Headers)(&rec.Headers), Timestamp: rec.Timestamp.UnixMilli()}
			d, err := f.Config.Derive(ctx, f.Config.NewDeriver(f.Routes), &in)
			switch {
			case err != nil || rec.Offset != o.Offset:
			case d.Finding == rules.Keyed && d.Route.Time != nil:
				event.at, event.recorded, event.route = time.UnixMilli(d.Time), rec.Timestamp, d.Route
			case d.Finding == rules.Keyed:
				event.route = d.Route
			case d.Finding == rules.Malformed:
				event.invalid, event.route = d.Reason, d.Route
			}
		}
		return nil
	})
	return event
}

// quorumTime returns the time of the active controller. The state of the quorum contains it as the time at which
// the controller was last caught up with itself. The request needs the right Describe on the cluster.
func quorumTime(ctx context.Context, client *kgo.Client) (at time.Time, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	req := kmsg.NewPtrDescribeQuorumRequest()
	topic := kmsg.NewDescribeQuorumRequestTopic()
	topic.Topic, topic.Partitions = "__cluster_metadata", []kmsg.DescribeQuorumRequestTopicPartition{kmsg.NewDescribeQuorumRequestTopicPartition()}
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, client)
	if err != nil || resp.ErrorCode != 0 {
		return at, false
	}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			for _, voter := range p.CurrentVoters {
				if voter.ReplicaID == p.LeaderID && voter.LastCaughtUpTimestamp > 0 {
					at, ok = time.UnixMilli(voter.LastCaughtUpTimestamp), true
				}
			}
		}
	}
	return at, ok
}

// judgeClocks compares this machine's clock, and the times of the newest events, with the brokers' clock.
func (f *Facts) judgeClocks() []Finding {
	c := f.clocks
	findings := []Finding{c.judgeMachine()}
	reference := c.machine
	if c.exact || c.broker.After(reference) {
		reference = c.broker
	}
	var newest []string
	for _, e := range c.inputs {
		ahead, retention := e.at.Sub(reference), e.route.Window+e.route.Grace
		switch {
		case e.invalid != "":
			findings = append(findings, Finding{
				Level: AtRisk, Text: fmt.Sprintf("topic %s: the newest event is invalid in route %s: %s", e.topic, e.route.Name, e.invalid),
				Action: "correct the sender or the route; 'oncebus key' shows what the route makes of an event",
			})
		case !e.recorded.IsZero() && e.recorded.Sub(e.at) > retention:
			findings = append(findings, Finding{
				Level: Note, Text: fmt.Sprintf("topic %s: the newest event is %v older than its record, more than the window and grace of route %s: is time.format right?", e.topic, round(e.recorded.Sub(e.at)), e.route.Name),
				Action: "compare the field of the event time with format; nothing is wrong if old events are imported",
			})
		case ahead > e.route.Skew:
			findings = append(findings, Finding{
				Level: AtRisk, Text: fmt.Sprintf("topic %s: the newest event is %v ahead of the brokers, more than the skew of route %s (%v): such events are not emitted, or with another time", e.topic, round(ahead), e.route.Name, e.route.Skew),
				Action: "correct the clock of the sender; on_future of the route says what happens to such events",
			})
		case ahead > clockTolerance:
			findings = append(findings, Finding{
				Level: AtRisk, Text: fmt.Sprintf("topic %s: the newest event is %v ahead of the brokers: it moves stream time, so that events of other senders are late sooner", e.topic, round(ahead)),
				Action: "correct the clock of the sender, or set a shorter skew in route " + e.route.Name,
			})
		default:
			newest = append(newest, fmt.Sprintf("%s %v ago", e.topic, round(max(-ahead, 0))))
		}
	}
	if len(newest) > 0 {
		findings = append(findings, Finding{Text: "newest events: " + strings.Join(newest, ", ")})
	}
	return findings
}

// judgeMachine compares this machine's clock with the brokers' clock.
func (c clockFacts) judgeMachine() Finding {
	off := c.machine.Sub(c.broker)
	const (
		means = "this machine judges the age of signatures, tokens and certificates by its clock"
		sync  = "synchronise the clocks of this machine and of the brokers (NTP)"
	)
	switch {
	case c.broker.IsZero():
		return Finding{Level: Unchecked, Text: "nothing shows the clock of the brokers", Action: "repeat the command after the first start, or as a user with Describe on the cluster"}
	case off < -clockTolerance && c.exact:
		return Finding{Level: AtRisk, Text: fmt.Sprintf("this machine is %v behind the brokers: %s", round(-off), means), Action: sync}
	case off < -clockTolerance:
		return Finding{Level: AtRisk, Text: fmt.Sprintf("this machine is at least %v behind the brokers: %s", round(-off), means), Action: sync}
	case off > clockTolerance && c.exact:
		return Finding{Level: AtRisk, Text: fmt.Sprintf("this machine is %v ahead of the brokers: %s", round(off), means), Action: sync}
	case off > clockTolerance:
		return Finding{
			Level: Unchecked, Text: fmt.Sprintf("the newest record of the brokers is %v old by this machine's clock, so a fast clock of this machine would not show", round(off)),
			Action: "repeat the command while events arrive, or as a user with Describe on the cluster",
		}
	}
	return Finding{Text: fmt.Sprintf("this machine and the brokers differ by less than %v", clockTolerance)}
}

// round rounds a duration to seconds, for people.
func round(d time.Duration) time.Duration { return d.Round(time.Second) }
