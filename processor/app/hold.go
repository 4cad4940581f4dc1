package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/switchover"
)

// holdKey is the key of the hold's row in the manifest topic. heldPrefix begins the keys of the rows of held
// partitions.
const holdKey, heldPrefix = "hold", "held/"

// A Hold stops the input of an app while it is in force. The routing stage of every process commits its
// transaction and pauses, and so do the tasks of prepartitioned topics. The ingress accepts no event. The tasks
// of the repartition topic still judge what was routed before.
type Hold struct {
	ID     string    `json:"id"`
	Reason string    `json:"reason"`
	By     string    `json:"by,omitempty"`
	At     time.Time `json:"at"`
	// LimitMS is the time, in ms, after which the processes release the hold by themselves; 0 for never.
	LimitMS int64 `json:"limit_ms,omitempty"`
	// Switch is the id of the switch (a move or a promotion) to which the hold belongs; "" for none. Only the
	// switch ends such a hold.
	Switch string `json:"switch,omitempty"`
	// Set is the route set that the switch has put in force; 0 before the switch has acted.
	Set int64 `json:"set,omitempty"`
	// Leaving reports that the app leaves this cluster: only TakeBack ends the hold. Left reports that the app
	// now runs in another cluster: nothing ends the hold. Arriving reports that the app comes from another
	// cluster: the hold can end once the app's keys are stored in this cluster.
	Leaving  bool `json:"leaving,omitempty"`
	Left     bool `json:"left,omitempty"`
	Arriving bool `json:"arriving,omitempty"`

	// Since is the broker time of the hold's row; zero if the hold was not read from its record.
	Since time.Time `json:"-"`
}

// NewHold returns a hold with a new random id. With a limit of zero the processes never release the hold by
// themselves.
func NewHold(reason, by string, limit time.Duration) *Hold {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return &Hold{ID: hex.EncodeToString(id[:]), Reason: reason, By: by, At: time.Now().UTC().Truncate(time.Second), LimitMS: limit.Milliseconds()}
}

// Began returns when the hold began: the broker time of its row or, if the hold was not read from its record,
// the time by the clock of the machine that wrote it.
func (h *Hold) Began() time.Time {
	if h.Since.IsZero() {
		return h.At
	}
	return h.Since
}

// Expired reports whether the time limit of the hold has passed at the broker time now.
func (h *Hold) Expired(now time.Time) bool {
	return h.LimitMS > 0 && !h.Since.IsZero() && now.Sub(h.Since).Milliseconds() > h.LimitMS
}

// Held is the row of a partition that is held. Until the hold is released, the app does not route records from
// Offset on or, if the topic is prepartitioned, does not judge them.
type Held struct {
	Hold   string `json:"hold"` // id of the hold
	Offset int64  `json:"offset"`
}

// Record returns the record of a held partition in the manifest topic.
func (h Held) Record(t *Topology, id TaskID) *kgo.Record {
	value, err := json.Marshal(h)
	if err != nil {
		panic(err) // a struct of a string and a number
	}
	return &kgo.Record{Topic: t.Manifest, Key: []byte(heldPrefix + id.String()), Value: value}
}

// HoldIn returns the hold in force from the rows of the manifest topic; nil for none.
func HoldIn(rows Rows) (*Hold, error) {
	h, ok, err := decodeRow[Hold](rows, holdKey)
	if err != nil || !ok {
		return nil, err
	}
	return &h, nil
}

// HeldIn returns the partitions that a hold holds, each with the first offset that is held.
func HeldIn(rows Rows, hold string) (map[TaskID]int64, error) {
	held := map[TaskID]int64{}
	for key := range rows {
		name, ok := strings.CutPrefix(key, heldPrefix)
		if !ok {
			continue
		}
		row, _, err := decodeRow[Held](rows, key)
		if err != nil {
			return nil, err
		}
		if id, ok := parseTaskID(name); ok && row.Hold == hold {
			held[id] = row.Offset
		}
	}
	return held, nil
}

// NotHeld returns the partitions of the app's inputs that a hold does not hold yet.
func NotHeld(ctx context.Context, admin *kadm.Client, t *Topology, held map[TaskID]int64) ([]TaskID, error) {
	inputs := slices.Concat(t.Routed, t.Prepartitioned)
	topics, err := DescribeTopics(ctx, admin, inputs...)
	if err != nil {
		return nil, err
	}
	var missing []TaskID
	for _, topic := range inputs {
		count := topics[topic].Partitions
		if slices.Contains(t.Prepartitioned, topic) {
			count = t.Topics[topic].Partitions // no task reads a partition that was added
		}
		for p := range count {
			id := TaskID{Topic: topic, Partition: p}
			if _, ok := held[id]; !ok {
				missing = append(missing, id)
			}
		}
	}
	return missing, nil
}

// holdLevel is the lowest level at which an app can be held: every build that can run such an app obeys holds.
const holdLevel = 2

// Begin puts the hold in force. It returns an operator error if another hold is in force, or if a build that
// ignores holds may run the app.
func (h *Hold) Begin(ctx context.Context, c Conn, cfg Config, t *Topology) error {
	return ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		m, _, err := decodeRow[Manifest](rows, ManifestKey)
		before, residenceErr := ResidenceIn(rows)
		switch err := errors.Join(err, residenceErr); {
		case err != nil:
			return nil, err
		case m.level() < holdLevel:
			return nil, kafka.OperatorErrorf("app %s is at level %d, so a process of an earlier build may run, which does not hold: run oncebus finalize once all processes have this build", cfg.AppID, m.level())
		}
		after, err := before.Begin(h)
		if err != nil {
			return nil, err
		}
		return after.records(before)
	})
}

// Release ends the hold with an id; with the id "" it ends the hold in force, unless the hold is part of a
// switch. It returns the hold that it ended; nil if there was none.
func Release(ctx context.Context, c Conn, cfg Config, t *Topology, id string) (ended *Hold, err error) {
	before, after, err := changeResidence(ctx, c, cfg, t, func(r Residence) (Residence, error) { return r.Release(id) })
	if err != nil || after.Hold == before.Hold {
		return nil, err
	}
	return before.Hold, nil
}

// Holds has the newest rows about holds and switches that a process has read. Several readers of the manifest
// topic may feed it, each in the topic's order: an older row than the known one changes nothing.
type Holds struct {
	mu   sync.Mutex
	at   int64 // offset of the hold's row; -1 before the first one
	hold *Hold
	// switchAt is the offset of the switch's row; -1 before the first one.
	switchAt int64
	change   switchover.Seen
	inputs   []SwitchInput // the inputs that the switch changes
}

// NewHolds returns a Holds without a hold.
func NewHolds() *Holds { return &Holds{at: -1, switchAt: -1} }

// Switch returns the newest switch that was read.
func (h *Holds) Switch() switchover.Seen {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.change
}

// SwitchOf returns the newest switch that was read, and whether it closes the tasks of a topic. A switch closes
// the tasks of the repartition topic, and of a prepartitioned topic that becomes routed.
func (h *Holds) SwitchOf(topic string, repartitioned bool) (seen switchover.Seen, closes bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.change, repartitioned || slices.ContainsFunc(h.inputs, func(in SwitchInput) bool { return in.Topic == topic })
}

// For returns the hold that applies to a process which works with the partitions of a generation; nil for none.
// Under a hold the process must not route, and must not judge a prepartitioned topic. Once a switch has acted, a
// hold applies to the generation before it for ever, because the process must first change over to the new
// generation.
func (h *Holds) For(generation int64) *Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hold == nil && generation < h.change.Number {
		to, routes := switchover.Route(h.change.Phase)
		if routes && to == switchover.New || generation < h.change.Base {
			return &Hold{ID: fmt.Sprintf("generation-%d", h.change.Number), Reason: "the partitions of the app have changed"}
		}
	}
	return h.hold
}

// Take takes a record of the manifest topic, and reports whether it changed the hold in force. The error is
// about a row that no build of oncebus could have written.
func (h *Holds) Take(rec *kgo.Record) (changed bool, err error) {
	switch string(rec.Key) {
	case switchKey:
		return h.takeSwitch(rec)
	case holdKey:
	default:
		return false, nil
	}
	var hold *Hold
	if rec.Value != nil {
		hold = new(Hold)
		if err := json.Unmarshal(rec.Value, hold); err != nil {
			return false, unreadableRow(rec, err)
		}
		hold.Since = rec.Timestamp
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if rec.Offset <= h.at {
		return false, nil // another reader has read a newer row
	}
	h.at, h.hold = rec.Offset, hold
	return true, nil
}

// InForce returns the hold in force; nil for none.
func (h *Holds) InForce() *Hold {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.hold
}

// Read reads the manifest topic up to its end.
func (h *Holds) Read(ctx context.Context, client *kgo.Client, t *Topology) error {
	_, err := h.readFrom(ctx, kafka.NewReader(client, t.Manifest, t.Topics[t.Manifest].ID, 0), 0)
	return err
}

// Follow reads the manifest topic at intervals until ctx is done. It calls failed with each error, and reads
// again.
func (h *Holds) Follow(ctx context.Context, client *kgo.Client, t *Topology, interval time.Duration, failed func(error)) {
	reader := kafka.NewReader(client, t.Manifest, t.Topics[t.Manifest].ID, 0)
	for position := int64(0); ; {
		next, err := h.readFrom(ctx, reader, position)
		if err != nil && ctx.Err() == nil {
			failed(err)
			next = 0
		}
		position = next
		if kafka.Pause(ctx, interval) != nil {
			return
		}
	}
}

// readFrom reads the manifest topic from position up to its end, and returns this end as the next position.
func (h *Holds) readFrom(ctx context.Context, reader *kafka.Reader, position int64) (int64, error) {
	start, end, err := reader.ListBounds(ctx)
	if err != nil {
		return position, fmt.Errorf("read the hold: %w", err)
	}
	unread := unreadRows{}
	err = reader.Read(ctx, max(start, position), end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			_, err := h.Take(rec)
			unread.note(rec, err)
		}
		return nil
	})
	return end, cmp.Or(err, unread.first())
}
