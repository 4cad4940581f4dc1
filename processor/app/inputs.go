package app

import (
	"context"
	"fmt"
	"time"

	"oncebus/dedup"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// inputFacts are the facts about the inputs of the app, and about the stream times that wait for inputs.
type inputFacts struct {
	hold *Hold
	// lags has, for each partition, the number of records that wait to be routed or, if its topic is
	// prepartitioned, to be judged; -1 for a partition without a leader.
	lags    map[TaskID]int64
	readers map[TaskID]string // id of the client to which each partition is assigned
	held    []HeldTime
}

// readInputs reads how many records wait in the inputs, and whether a hold is the reason.
func (f *Facts) readInputs(ctx context.Context, c Conn) error {
	if f.manifest == nil {
		return nil
	}
	holds := NewHolds()
	if err := holds.Read(ctx, c.Client, f.topology); err != nil {
		return err
	}
	f.inputs = inputFacts{hold: holds.InForce(), lags: map[TaskID]int64{}, readers: map[TaskID]string{}}
	if err := f.readLags(ctx, c, StageRoute, f.topology.Routed); err != nil {
		return err
	}
	return f.readLags(ctx, c, StageDedup, f.topology.Prepartitioned)
}

// readLags reads the lag of topics that a stage reads, and which clients read them.
func (f *Facts) readLags(ctx context.Context, c Conn, stage string, topics []string) error {
	topics = f.present(topics)
	if len(topics) == 0 {
		return nil
	}
	partitions := f.topology.Numbers(topics)
	group := GroupName(f.Config.AppID, stage)
	committed, err := kafka.CommittedOffsets(ctx, c.Client, group, partitions)
	if err != nil {
		return err
	}
	leaders := kafka.NewLeaders(c.Client)
	for topic, numbers := range partitions {
		id := f.topology.Topics[topic].ID
		for _, p := range numbers {
			at := committed[topic][p].At
			if _, known := committed[topic][p]; !known || at < 0 {
				at, _ = f.manifest.Start(topic, id, p)
			}
			f.inputs.lags[TaskID{topic, p}] = waiting(ctx, leaders.NewReader(topic, id, p), max(0, at))
		}
	}
	f.readReaders(ctx, c, group)
	return nil
}

// waiting returns how many offsets wait from a position on; -1 if the partition's leader does not answer.
// Control records before the first waiting record do not count.
func waiting(ctx context.Context, r *kafka.Reader, at int64) int64 {
	end, err := r.StableEnd(ctx)
	if err != nil {
		return -1
	}
	for at < end {
		next, err := r.SkipUncommitted(ctx, at, end)
		if err != nil || next == at {
			break
		}
		at = next
	}
	return max(0, end-at)
}

// readReaders reads to which clients the partitions of a group are assigned. If the user lacks the right to
// describe the group, or the group does not exist, the readers stay unknown.
func (f *Facts) readReaders(ctx context.Context, c Conn, group string) {
	groups, err := c.Admin.DescribeGroups(ctx, group)
	if err != nil {
		return
	}
	for _, m := range groups[group].Members {
		assigned, ok := m.Assigned.AsConsumer()
		if !ok {
			continue
		}
		for _, topic := range assigned.Topics {
			for _, p := range topic.Partitions {
				f.inputs.readers[TaskID{topic.Topic, p}] = m.ClientID
			}
		}
	}
}

// judgeInputs says how many records wait in the inputs, and whether the inputs are held.
func (f *Facts) judgeInputs() []Finding {
	if f.manifest == nil {
		return nil
	}
	records := int64(0)
	for _, lag := range f.inputs.lags {
		records += max(0, lag)
	}
	text := fmt.Sprintf("records that wait in %d partitions of the inputs: %d", len(f.inputs.lags), records)
	h := f.inputs.hold
	if h == nil {
		return []Finding{{Text: text}}
	}
	held := "the inputs are held since " + h.Began().UTC().Format(time.RFC3339)
	if h.By != "" {
		held += " by " + h.By
	}
	level, kind, action := h.wayOut()
	return []Finding{{Level: level, Text: held + ": " + h.Reason + kind + "; " + text, Action: action}}
}

// wayOut returns what kind of hold this is, as text, how much it matters, and what the operator can do to end
// it.
func (h *Hold) wayOut() (level Level, kind, action string) {
	switch {
	case h.Left:
		return Fails, "; the app has left this cluster for good", "it runs in the other cluster: stop its processes here"
	case h.Leaving:
		return AtRisk, "; the app leaves this cluster", "oncebus export --leaving is next, or, if the app was not released in the other cluster, oncebus release --back"
	case h.Arriving:
		return AtRisk, "; the app arrives from another cluster", "oncebus seed with the file of oncebus arrive, then oncebus release"
	case h.Switch != "":
		return AtRisk, "", "the change that began the hold ends it: oncebus hold shows how far it is"
	}
	return AtRisk, "", "oncebus release ends the hold"
}

// readTime reads from the newest checkpoints which inputs keep stream times back.
func (f *Facts) readTime(ctx context.Context, c Conn) error {
	t := f.topology
	if f.manifest == nil || t.Repartition == "" {
		return nil
	}
	changelog := ChangelogName(t.App, t.Repartition)
	if len(f.present([]string{changelog})) == 0 {
		return nil
	}
	leaders := kafka.NewLeaders(c.Client)
	for p := range t.Topics[changelog].Partitions {
		newest, _, err := LastCheckpoint(ctx, leaders.NewReader(changelog, t.Topics[changelog].ID, p))
		if err != nil {
			return fmt.Errorf("read the checkpoint in %s/%d: %w", changelog, p, err)
		}
		if newest.IsWhole() {
			at := newest.Newest()
			f.addHeldTimes(&at)
		}
	}
	return nil
}

// addHeldTimes adds, for each namespace, the source that keeps its stream time back as of a checkpoint. If a
// namespace has no stream time, the time by which the source is behind is measured from the oldest wire.Sample
// that has an event time.
func (f *Facts) addHeldTimes(at *wire.Checkpoint) {
	for i := range at.Sources {
		s := &at.Sources[i]
		from := at.StreamTimes.Of(s.NamespaceID)
		for _, sample := range s.Samples {
			if from != dedup.NoStreamTime {
				break
			}
			from = sample.Highest
		}
		held := newHeldTime(s, from, 0, f.topicName)
		held.Namespace = f.manifest.Namespaces[s.NamespaceID].Name
		for _, r := range f.Routes.Routes {
			if r.Namespace == held.Namespace {
				held.Routes, held.grace = append(held.Routes, r.Name), max(held.grace, r.Span().Grace)
			}
		}
		if len(held.Routes) > 0 && held.Shows() {
			f.inputs.held = AddHeldTime(f.inputs.held, held)
		}
	}
}

// topicName returns the name of a topic by its number in the manifest.
func (f *Facts) topicName(number uint16) string {
	if int(number) < len(f.manifest.Topics) {
		return f.manifest.Topics[number].Name
	}
	return fmt.Sprintf("topic#%d", number)
}

// judgeTime finds the namespaces whose stream time an input keeps back.
func (f *Facts) judgeTime() (findings []Finding) {
	for i := range f.inputs.held {
		h := &f.inputs.held[i]
		text, action := f.whyHeld(h)
		findings = append(findings, Finding{Level: AtRisk, Text: h.Text() + ": " + text + "; rows are kept meanwhile, and no event is late", Action: action})
	}
	if len(findings) == 0 && f.manifest != nil && f.topology.Repartition != "" {
		findings = []Finding{{Text: "no input keeps stream time back by more than the grace"}}
	}
	return findings
}

// whyHeld returns why an input keeps stream time back, and what the operator can do.
func (f *Facts) whyHeld(h *HeldTime) (text, action string) {
	id, isPartition := parseTaskID(h.Source)
	lag, known := f.inputs.lags[id]
	reader := f.inputs.readers[id]
	switch {
	case f.inputs.hold != nil:
		return "the inputs are held", "end the hold"
	case !isPartition || !known:
		return "no process has said how many partitions it has", "start a process with the route, or look why those that run do not read the topic: their logs name it"
	case lag < 0:
		return "it has no leader", "start the brokers that are down; kafka-topics.sh --describe --unavailable-partitions lists the partitions"
	case reader == "":
		return fmt.Sprintf("no process reads it, and it has %d records", lag), "start a process, or wait until the group has given the partition to another one"
	case lag == 0:
		return "client " + reader + " has read it to its end", "nothing yet: repeat the command; if it remains, look at the log of that process"
	}
	return fmt.Sprintf("it has %d records, and client %s reads it", lag, reader), "repeat the command: in a catch-up the number falls; else look at the log of that process, and restart it"
}
