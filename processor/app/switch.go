package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/switchover"
)

// switchKey is the record key of the newest switch in the manifest topic.
const switchKey = "switch"

// A Switch is the move of an app's keys to another generation of partitions, see package switchover. The
// transaction that writes a phase of the switch also makes the phase's change of the hold.
type Switch struct {
	// Number is the number of the new generation. Each attempt has a new number, so that the topics of an
	// aborted attempt are never used again.
	Number int64            `json:"number"`
	Phase  switchover.Phase `json:"phase"`
	// Leader names the run of the command that copies. A later run must become the leader before it copies,
	// because only the leader may act.
	Leader string `json:"leader"`
	// Base is the number of the generation that was in force when the switch began.
	Base int64 `json:"base,omitempty"`
	// From and To are the partition counts before and after. From is 0 for an app without a repartition topic.
	From int32 `json:"from"`
	To   int32 `json:"to"`
	// Inputs are the prepartitioned topics that become routed. Their tasks close, too. The route set that the
	// act puts in force has their routes.
	Inputs []SwitchInput `json:"inputs,omitempty"`
	// LimitMS is how long the switch may hold the input, in ms, before the processes abort the switch.
	LimitMS int64     `json:"limit_ms"`
	By      string    `json:"by,omitempty"`
	At      time.Time `json:"at"`
	// Reason says why the switch was aborted.
	Reason string `json:"reason,omitempty"`
}

// A SwitchInput is a prepartitioned topic that a switch makes routed, with its number of tasks. The topic may
// have more partitions than tasks, because no task reads a partition that was added. Once the topic is routed,
// the routing stage reads such a partition from its start (routeInput).
type SwitchInput struct {
	Topic      string `json:"topic"`
	Partitions int32  `json:"partitions"`
}

// Sources returns the tasks that the switch closes. Their order is their numbering: first the tasks of the
// repartition topic.
func (s *Switch) Sources(t *Topology) []TaskID {
	var ids []TaskID
	for _, in := range append([]SwitchInput{{t.Repartition, s.From}}, s.Inputs...) {
		for p := range in.Partitions {
			ids = append(ids, TaskID{Topic: in.Topic, Partition: p})
		}
	}
	return ids
}

// what returns what the switch does, for people to read.
func (s *Switch) what() string {
	if len(s.Inputs) == 0 {
		return fmt.Sprintf("move from %d to %d partitions", s.From, s.To)
	}
	return fmt.Sprintf("move of %s to a repartition topic with %d partitions", s.InputNames(), s.To)
}

// InputNames returns the names of the topics that become routed.
func (s *Switch) InputNames() string {
	var names []string
	for _, in := range s.Inputs {
		names = append(names, in.Topic)
	}
	return strings.Join(names, ", ")
}

// Command returns the command with which an operator continues the switch.
func (s *Switch) Command() string {
	if len(s.Inputs) == 0 {
		return fmt.Sprintf("oncebus move --partitions %d", s.To)
	}
	return "oncebus move --to-routed"
}

// SwitchIn returns the newest switch of an app from the rows of its manifest topic; nil for none.
func SwitchIn(rows Rows) (*Switch, error) {
	s, ok, err := decodeRow[Switch](rows, switchKey)
	if err != nil || !ok {
		return nil, err
	}
	return &s, nil
}

// holdID returns the id of the switch's hold.
func (s *Switch) holdID() string { return fmt.Sprintf("switch-%d", s.Number) }

// HoldID returns the id of the switch's hold.
func (s *Switch) HoldID() string { return s.holdID() }

// takeSwitch takes the row of a switch, and reports whether it is newer than the known one.
func (h *Holds) takeSwitch(rec *kgo.Record) (changed bool, err error) {
	var s Switch
	if rec.Value == nil {
		return false, nil // no build writes a tombstone here
	}
	if err := json.Unmarshal(rec.Value, &s); err != nil {
		return false, unreadableRow(rec, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if rec.Offset <= h.switchAt {
		return false, nil // another reader has read a newer row
	}
	h.switchAt, h.change, h.inputs = rec.Offset, switchover.Seen{Number: s.Number, Phase: s.Phase, Base: s.Base}, s.Inputs
	return true, nil
}

// ErrReplaced says that another run of the command now leads the switch.
var ErrReplaced = errors.New("another run of 'oncebus move' took over")

// Lead begins a switch, or takes over a switch with the same aim that has begun already. Before that the caller
// must have fenced every earlier run that copies.
func (s Switch) Lead(ctx context.Context, c Conn, cfg Config, t *Topology) (led *Switch, err error) {
	err = ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		before, err := SwitchIn(rows)
		if err != nil {
			return nil, err
		}
		m, _, err := decodeRow[Manifest](rows, ManifestKey)
		if err != nil {
			return nil, err
		}
		if m.generation().number != t.Generation {
			return nil, kafka.OperatorErrorf("the partitions of app %s were changed meanwhile: run the command again", t.App)
		}
		next := s
		next.Base = t.Generation
		switch {
		case before == nil:
			next.Number = t.Generation + 1
		case before.Phase.IsOver():
			next.Number = max(before.Number, t.Generation) + 1
		case before.To != s.To || !slices.Equal(before.Inputs, s.Inputs):
			return nil, before.Other()
		default:
			next = *before
			next.Leader = s.Leader
		}
		hold, err := HoldIn(rows)
		if err == nil && hold != nil && hold.ID != next.holdID() {
			err = kafka.OperatorErrorf("the app is held, since %s: %s; end that first: oncebus release", hold.At.Format(time.RFC3339), hold.Reason)
		}
		if err != nil {
			return nil, err
		}
		led = &next
		rec, err := encodeRow(switchKey, led)
		return []*kgo.Record{rec}, err
	})
	return led, err
}

// Other returns the error of a command that wants a different switch from the one that has begun.
func (s *Switch) Other() error {
	return kafka.OperatorErrorf("a %s has begun: go on with '%s', or undo it with 'oncebus abort'", s.what(), s.Command())
}

// An Act is what a switch puts in force: the topics of the new generation and, for each old partition, the
// offset at which its task closed. Set is the route set of the closed tasks' checkpoints.
type Act struct {
	Topic, Changelog [16]byte // topic ids
	Starts           []int64
	Set              int64
	// Inputs has the same offsets for the topics that become routed. Routes is then the routes file that routes
	// them; it is nil if no topic becomes routed.
	Inputs map[string][]int64
	Routes *rules.Routes
}

// Advance writes the next phase of a switch, and what the phase does, in one transaction. act is needed only for
// the phase switchover.Acted. Advance returns ErrReplaced if the switch has another leader now. It does nothing
// if the phase has been written already.
func (s *Switch) Advance(ctx context.Context, c Conn, cfg Config, t *Topology, next switchover.Phase, act *Act) error {
	return ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		now, err := SwitchIn(rows)
		switch {
		case err != nil:
			return nil, err
		case now == nil || now.Number != s.Number || now.Leader != s.Leader:
			return nil, ErrReplaced
		case now.Phase == next:
			return nil, nil // an earlier attempt has written the phase
		case !now.Phase.May(next):
			return nil, fmt.Errorf("%w: the switch is %v", ErrReplaced, now.Phase)
		}
		return now.advance(rows, t, next, act)
	})
}

// advance returns the records of the next phase.
func (s *Switch) advance(rows Rows, t *Topology, next switchover.Phase, act *Act) ([]*kgo.Record, error) {
	s.Phase = next
	var records []*kgo.Record
	switch next {
	case switchover.Holding:
		hold := &Hold{ID: s.holdID(), Switch: s.holdID(), Reason: s.what(), By: s.By, At: time.Now().UTC().Truncate(time.Second), LimitMS: s.LimitMS}
		if before, err := HoldIn(rows); err != nil {
			return nil, err
		} else if before != nil {
			return nil, kafka.OperatorErrorf("the app is held already: %s; end that first: oncebus release", before.Reason)
		}
		rec, err := encodeRow(holdKey, hold)
		if err != nil {
			return nil, err
		}
		records = append(records, rec)
	case switchover.Acted:
		var err error
		if records, err = s.actRecords(rows, t, act); err != nil {
			return nil, err
		}
	case switchover.Done, switchover.Aborted:
		hold, err := HoldIn(rows)
		if err != nil {
			return nil, err
		}
		if hold != nil && hold.ID == s.holdID() {
			rec, err := encodeRow(holdKey, nil)
			if err != nil {
				return nil, err
			}
			records = append(records, rec)
		}
	case switchover.None, switchover.Preparing, switchover.Closing:
	}
	rec, err := encodeRow(switchKey, s)
	return append([]*kgo.Record{rec}, records...), err
}

// actRecords returns the records that the act of the switch writes, except the row of the switch itself.
func (s *Switch) actRecords(rows Rows, t *Topology, act *Act) ([]*kgo.Record, error) {
	m, err := s.manifest(rows, t, act)
	if err != nil {
		return nil, err
	}
	records, err := s.moveErasures(rows, t, m)
	if err != nil {
		return nil, err
	}
	if act.Routes != nil {
		before, _, err := decodeRow[RouteSet](rows, setPrefix+strconv.FormatInt(act.Set, 10))
		if err != nil {
			return nil, err
		}
		set := newRouteSet(act.Set+1, act.Routes, s.By)
		set.Outcomes = before.Outcomes
		setRecords, err := setRows(set)
		if err != nil {
			return nil, err
		}
		records = append(records, setRecords...)
	}
	rec, err := encodeRow(ManifestKey, m)
	return append(records, rec), err
}

// ErrSetChanged says that an operator put another route set in force while the tasks closed.
var ErrSetChanged = errors.New("the routes were changed meanwhile")

// manifest returns the manifest with the new generation in force.
func (s *Switch) manifest(rows Rows, t *Topology, act *Act) (*Manifest, error) {
	set, _, err := decodeRow[setInForce](rows, setKey)
	if err != nil {
		return nil, err
	}
	if set.Number != act.Set {
		return nil, fmt.Errorf("%w: the tasks closed by set %d, and set %d is in force", ErrSetChanged, act.Set, set.Number)
	}
	m, _, err := decodeRow[Manifest](rows, ManifestKey)
	if err != nil {
		return nil, err
	}
	err = m.moveTo(manifestTopic{Name: RepartitionName(t.App, s.Number), Partitions: s.To, ID: TopicIDText(act.Topic), ChangelogID: TopicIDText(act.Changelog)}, act.Starts)
	for _, in := range s.Inputs {
		err = errors.Join(err, m.routeInput(in, act.Inputs[in.Topic]))
	}
	return &m, err
}

// moveErasures returns records for the pending erasure requests to old tasks. They replace these requests by
// requests to the new tasks that have the rows.
func (s *Switch) moveErasures(rows Rows, t *Topology, m *Manifest) (records []*kgo.Record, err error) {
	sources := s.Sources(t)
	hasher := m.hasher(s.To)
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		name, isErasure := strings.CutPrefix(key, erasurePrefix)
		task, _ := parseTaskID(name[:max(0, strings.LastIndexByte(name, '/'))])
		if !isErasure || !slices.Contains(sources, task) {
			continue
		}
		request, _, err := decodeRow[ErasureRequest](rows, key)
		if err != nil {
			return nil, err
		}
		byPartition := map[int32][]RowRef{}
		for _, ref := range request.Rows {
			if digest, ok := ref.ParseDigest(); ok {
				p := hasher.Partition(&digest)
				byPartition[p] = append(byPartition[p], ref)
			}
		}
		for _, p := range slices.Sorted(maps.Keys(byPartition)) {
			moved := NewErasureRequest(TaskID{Topic: RepartitionName(t.App, s.Number), Partition: p}, request.NamespaceID, byPartition[p], request.By)
			rec, err := encodeRow(erasurePrefix+moved.Name, moved)
			if err != nil {
				return nil, err
			}
			records = append(records, rec)
		}
		rec, err := encodeRow(key, nil)
		if err != nil {
			return nil, err
		}
		records = append(records, rec)
	}
	return records, nil
}

// EndSwitch ends a switch that is not over: it completes the switch if it has acted, and undoes it otherwise.
// It returns the switch as it is afterwards; nil if there was no switch to end.
func EndSwitch(ctx context.Context, c Conn, cfg Config, t *Topology, reason string) (ended *Switch, err error) {
	err = ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		ended = nil
		now, err := SwitchIn(rows)
		if err != nil || now == nil || now.Phase.IsOver() {
			return nil, err
		}
		next, ok := switchover.Decide(now.Phase, switchover.Facts{Undo: true})
		if !ok {
			return nil, nil
		}
		if next == switchover.Aborted {
			now.Reason = reason
		}
		ended = now
		return now.advance(rows, t, next, nil)
	})
	return ended, err
}

// FinishGenerations stores two facts in the manifest. The topics of earlier generations get no records any more,
// so that the processes stop reading them. And the changelogs of topics which a move has routed are deleted.
func FinishGenerations(ctx context.Context, c Conn, cfg Config, t *Topology) error {
	return ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		m, _, err := decodeRow[Manifest](rows, ManifestKey)
		if err != nil {
			return nil, err
		}
		changed := false
		for i := range m.Topics {
			if one := &m.Topics[i]; one.Role == roleForwarded && slices.Contains(t.Forwarded, one.Name) {
				one.Role, one.Starts, changed = roleFinished, nil, true
			}
			if one := &m.Topics[i]; one.Role == roleRouted && slices.Contains(t.Moved, one.Name) {
				one.ChangelogID, one.Partitions, changed = "", 0, true
			}
		}
		if !changed {
			return nil, nil
		}
		rec, err := encodeRow(ManifestKey, m)
		return []*kgo.Record{rec}, err
	})
}

// CreateGeneration creates the topics of a new generation, unless they exist, and returns their descriptions.
func CreateGeneration(ctx context.Context, c Conn, cfg Config, t *Topology, number int64, partitions int32) (topic, changelog Topic, err error) {
	s := &setup{Conn: c, cfg: cfg}
	name := RepartitionName(t.App, number)
	names := []string{name, ChangelogName(t.App, name)}
	fresh := &Topology{App: t.App, Topics: map[string]Topic{}, brokers: t.brokers}
	maxMessage := internalMessageBytes(c.MaxDecompressedBatchBytes)
	for {
		if fresh.Topics, err = DescribeTopics(ctx, c.Admin, names...); err != nil {
			return topic, changelog, err
		}
		topic, changelog = fresh.Topics[names[0]], fresh.Topics[names[1]]
		if topic.Partitions > 0 && changelog.Partitions > 0 {
			break
		}
		if fresh.brokers == 0 {
			fresh.countBrokers(ctx, c.Client)
		}
		err := s.createTopics(ctx, fresh, []newTopic{{name, partitions, repartitionConfigs(maxMessage)}, {names[1], partitions, changelogConfigs(maxMessage)}})
		if err != nil {
			return topic, changelog, err
		}
		if err := kafka.Pause(ctx, kafka.ReadRetryPause); err != nil {
			return topic, changelog, err
		}
	}
	if topic.Partitions != partitions || changelog.Partitions != partitions {
		return topic, changelog, kafka.OperatorErrorf("topics %s and %s exist with %d and %d partitions: run oncebus abort, and begin again", names[0], names[1], topic.Partitions, changelog.Partitions)
	}
	return topic, changelog, nil
}

// OpenSeeds returns the record keys of the seeds that have begun and not ended.
func OpenSeeds(rows Rows) (open []string, err error) {
	for key := range rows {
		if !strings.HasPrefix(key, SeedPrefix) {
			continue
		}
		seed, _, err := decodeRow[struct {
			Done bool `json:"done"`
		}](rows, key)
		if err != nil {
			return nil, err
		}
		if !seed.Done {
			open = append(open, key)
		}
	}
	slices.Sort(open)
	return open, nil
}

// SeedPrefix begins the record keys of the rows about the progress of seeds, which package transfer writes to
// the manifest topic.
const SeedPrefix = "seed/"
