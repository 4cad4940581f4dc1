package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/hanging"
	"oncebus/processor/kafka"
)

// hangingPause is the time between the two looks of a diagnosis at open transactions. The transaction of a live
// worker ends in between, so a transaction that both looks see may hang.
const hangingPause = 2 * time.Second

// OpenWriter registers a transactional id, which fences any other Writer with this id. topics are all topics to
// which a Writer of the id may have written: OpenWriter first closes what the id's last transaction left open
// in them.
func (c *Conn) OpenWriter(ctx context.Context, id string, timeout time.Duration, topics []string, options ...kgo.Opt) (*hanging.Writer, error) {
	partitions, err := PartitionsOf(ctx, c.Admin, topics...)
	if err != nil {
		return nil, err
	}
	return c.closer(id).Open(ctx, id, partitions, timeout, options...)
}

// CloseLast closes what the last transaction of a transactional id left open in topics. It does not register
// the id, so that the coordinator still knows how this transaction ended.
func (c *Conn) CloseLast(ctx context.Context, id string, topics ...string) error {
	partitions, err := PartitionsOf(ctx, c.Admin, topics...)
	if err != nil {
		return err
	}
	return c.closer(id).Close(ctx, &hanging.Last{ID: id, Partitions: partitions, TakesOver: true})
}

func (c *Conn) closer(id string) *hanging.Closer {
	return &hanging.Closer{Client: c.Client, Admin: c.Admin, Options: c.Options, Log: c.Log, Waits: func(reason string) {
		if reason != "" {
			c.Log.Warn("nothing is written before the last transaction is known to be closed", "transactional_id", id, "reason", reason)
		}
	}}
}

// PartitionsOf returns the partitions that topics have now, including partitions that were added since the
// start.
func PartitionsOf(ctx context.Context, admin *kadm.Client, topics ...string) (kadm.TopicsSet, error) {
	found, err := DescribeTopics(ctx, admin, topics...)
	if err != nil {
		return nil, err
	}
	all := kadm.TopicsSet{}
	for name, topic := range found {
		for p := range topic.Partitions {
			all.Add(name, p)
		}
	}
	return all, nil
}

// OffsetsOf returns the group of a stage, with the partitions for which the group commits offsets.
func OffsetsOf(app, stage string, t *Topology) hanging.Group {
	return hanging.Group{Name: GroupName(app, stage), Of: t.Numbers(t.StageTopics(stage)), Commits: func(id string) bool { return StageOf(app, id) == stage }}
}

// hangingFacts are what leaders and coordinators say about open transactions.
type hangingFacts struct {
	hangs   []hanging.Hang
	pending []hanging.Pending // pending offset commits of the groups
	denied  []string          // topics that the user has no right to read
	looked  int               // number of partitions that were looked at
}

// readTransactions finds the transactions that hang in the topics of the app and in the offsets of its groups.
func (f *Facts) readTransactions(ctx context.Context, c Conn) error {
	partitions := f.topology.Partitions(f.present(f.topology.all()))
	partitions.Each(func(string, int32) { f.hanging.looked++ })
	first := hanging.Look(ctx, c.Client, partitions, nil)
	for topic := range first.Denied {
		f.hanging.denied = append(f.hanging.denied, topic)
	}
	slices.Sort(f.hanging.denied)
	before, err := f.lookAtGroups(ctx, c)
	if err != nil {
		return err
	}
	if len(first.Open) == 0 && len(before) == 0 {
		return nil
	}
	if err := kafka.Pause(ctx, hangingPause); err != nil {
		return err
	}
	second := hanging.Look(ctx, c.Client, partitions, first.Denied)
	if f.hanging.hangs, err = hanging.Owned(ctx, c.Client, c.Admin, hanging.Staying(first.Open, second.Open)); err != nil || len(before) == 0 {
		return err
	}
	now, err := f.lookAtGroups(ctx, c)
	for stage, sight := range now {
		pending, failed := sight.Hangs(ctx, c.Client, c.Admin, OffsetsOf(f.Config.AppID, stage, f.topology), before[stage])
		f.hanging.pending, err = append(f.hanging.pending, pending...), errors.Join(err, failed)
	}
	return err
}

// lookAtGroups looks at the offsets of the stages' groups. It returns the looks that found pending offset
// commits.
func (f *Facts) lookAtGroups(ctx context.Context, c Conn) (map[string]*hanging.GroupSight, error) {
	sights := map[string]*hanging.GroupSight{}
	for _, stage := range []string{StageRoute, StageDedup} {
		sight, err := hanging.LookAtGroup(ctx, c.Client, c.Admin, OffsetsOf(f.Config.AppID, stage, f.topology))
		if err != nil {
			return nil, err
		}
		if len(sight.Pending) > 0 {
			sights[stage] = sight
		}
	}
	return sights, nil
}

// judgeTransactions names the transactions that hang, and the topics in which a hanging transaction would not
// be seen because the user may not read them.
func (f *Facts) judgeTransactions() []Finding {
	var findings []Finding
	for _, h := range f.hanging.hangs {
		finding := Finding{Level: Fails, Text: h.String() + ": readers wait before it", Action: h.Abort()}
		switch {
		case StageOf(f.Config.AppID, h.ID) != "":
			finding.Action = "a running process of the app closes it within seconds, as the coordinator recorded: start one, and repeat the command"
		case h.ID == "":
			finding.Level, finding.Action = AtRisk, "it ends by its timeout, at most transaction.max.timeout.ms, unless it hangs: repeat the command after that"
		}
		findings = append(findings, finding)
	}
	for _, p := range f.hanging.pending {
		findings = append(findings, Finding{
			Level: Fails, Text: p.String() + ": no worker can go on there",
			Action: "a running process of the app closes it within a minute if it is one of its own: repeat the command after that; else " + p.Command(),
		})
	}
	for _, topic := range f.hanging.denied {
		if slices.Contains(f.topology.emissions, topic) {
			findings = append(findings, Finding{
				Level: AtRisk, Text: fmt.Sprintf("no right to Read on topic %s: a marker that Kafka forgets to write there is not missed, so the next transaction decides about the records of both", topic),
				Action: kafka.Grant("Read", kafka.ResourceTopic, topic),
			})
		}
	}
	if len(findings) == 0 {
		findings = append(findings, Finding{Text: fmt.Sprintf("no transaction hangs in %d partitions", f.hanging.looked)})
	}
	return findings
}
