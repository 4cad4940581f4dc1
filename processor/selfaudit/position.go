package selfaudit

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/oracle"
	"oncebus/processor/wire"
)

// Position is the point at which an audit ended and from which the next audit continues: by topic and
// partition, the first offset that was not read.
type Position struct {
	App     string            `json:"app"`
	Cluster string            `json:"cluster"`
	Topics  map[string]string `json:"topics"` // ids of the topics
	At      time.Time         `json:"at"`
	// Set is the newest route set that all processes had taken over; 0 at level 1.
	Set int64 `json:"set"`
	// Edge reports that the range before the position was not audited.
	Edge       bool               `json:"edge,omitempty"`
	Inputs     map[string][]int64 `json:"inputs"`
	Changelogs map[string][]int64 `json:"changelogs"`
	Emissions  map[string][]int64 `json:"emissions"`
	// Waiting has the records below Inputs that were not judged yet.
	Waiting []oracle.Position `json:"waiting,omitempty"`

	waits       map[oracle.Position]bool
	sure        map[string][]int64 // changelog ends below which all rows have their outputs below Emissions
	checkpoints map[app.TaskID]wire.Checkpoint
	ledger      []byte
	start       bool
}

// Waits returns how many records below Inputs were not judged yet.
func (p *Position) Waits() int { return len(p.waits) }

// IsStart reports whether the position is the start of the app, from which the whole app can be audited.
func (p *Position) IsStart() bool { return p.start }

func (a *Auditor) newPosition() *Position {
	p := &Position{
		App: a.cfg.AppID, Cluster: a.app.Topology.Cluster, Topics: map[string]string{}, At: time.Now().UTC().Truncate(time.Second),
		Inputs: map[string][]int64{}, waits: map[oracle.Position]bool{}, checkpoints: map[app.TaskID]wire.Checkpoint{},
	}
	for _, topic := range a.everyTopic() {
		p.Topics[topic] = app.TopicIDText(a.topics[topic].ID)
	}
	for _, topic := range a.inputs() {
		p.Inputs[topic] = make([]int64, a.topics[topic].Partitions)
	}
	return p
}

// whole returns the position of the app's start. If a range from there cannot be checked, why has the reasons.
func (a *Auditor) whole(ctx context.Context) (p *Position, why []string, err error) {
	p = a.newPosition()
	p.start, p.Set = true, a.firstSet()
	p.Changelogs, p.Emissions = map[string][]int64{}, map[string][]int64{}
	for _, topic := range a.inputs() {
		for partition := range p.Inputs[topic] {
			p.Inputs[topic][partition] = a.start(topic, int32(partition))
		}
	}
	for _, topic := range a.changelogs() {
		p.Changelogs[topic] = make([]int64, a.topics[topic].Partitions)
	}
	for _, topic := range a.emissions() {
		p.Emissions[topic] = make([]int64, a.topics[topic].Partitions)
	}
	if why, err = a.deleted(ctx, p); err != nil {
		return nil, nil, err
	}
	p.ledger = oracle.NewLedger(a.ledgerConfig(p.Set, Options{})).AppendState(nil, &[256]int64{})
	if topic := a.app.Topology.Repartition; app.GenerationOf(a.cfg.AppID, topic) > 1 {
		why = append(why, moved(topic))
	}
	return p, append(why, a.changedSince(p.Set)...), nil
}

// deleted returns texts that say which records from a position on were deleted.
func (a *Auditor) deleted(ctx context.Context, p *Position) (deleted []string, err error) {
	for _, offsets := range []map[string][]int64{p.lowest(a), p.Changelogs, p.Emissions} {
		topics := slices.Sorted(maps.Keys(offsets))
		starts, err := a.list(ctx, a.admin.ListStartOffsets, topics)
		if err != nil {
			return nil, err
		}
		for _, topic := range topics {
			for partition, start := range starts[topic] {
				if from := offsets[topic][partition]; start > from {
					deleted = append(deleted, fmt.Sprintf("%s/%d: offsets %d to %d", topic, partition, from, start-1))
				}
			}
		}
	}
	return deleted, nil
}

// lowest returns the first offset to read in each input partition.
func (p *Position) lowest(a *Auditor) map[string][]int64 {
	lowest := map[string][]int64{}
	for topic, offsets := range p.Inputs {
		lowest[topic] = slices.Clone(offsets)
	}
	for at := range p.waits {
		if offsets := lowest[a.app.TopicName(at.Topic)]; int(at.Partition) < len(offsets) {
			offsets[at.Partition] = min(offsets[at.Partition], at.Offset)
		}
	}
	return lowest
}

// continues checks that an audit can continue at a position, and returns why the range from there cannot be
// checked, because routes have changed or keys have moved. If there are such reasons, deleted records are no
// error, because the next range begins later anyway; otherwise deleted records are an error.
func (a *Auditor) continues(ctx context.Context, p *Position) (why []string, err error) {
	switch {
	case p.App != a.cfg.AppID:
		return nil, kafka.OperatorErrorf("the saved position is of app %s, not %s", p.App, a.cfg.AppID)
	case p.Cluster != a.app.Topology.Cluster:
		return nil, kafka.OperatorErrorf("the saved position is of cluster %s, not %s", p.Cluster, a.app.Topology.Cluster)
	}
	for _, topic := range a.everyTopic() {
		if id, known := p.Topics[topic]; known && id != app.TopicIDText(a.topics[topic].ID) {
			return nil, kafka.OperatorErrorf("topic %s was deleted and recreated since the saved position; audit without --from to begin again", topic)
		}
	}
	if why = append(a.movedSince(p), a.changedSince(p.Set)...); len(why) > 0 {
		return why, nil
	}
	a.addNew(p.Inputs, a.inputs())
	a.addNew(p.Changelogs, a.changelogs())
	a.addNew(p.Emissions, a.emissions())
	deleted, err := a.deleted(ctx, p)
	if err != nil {
		return nil, err
	}
	if len(deleted) > 0 {
		return nil, fmt.Errorf("records were deleted before they were audited: %s; audit more often than the topics' retention and twice the shortest window, and begin again without --from", strings.Join(deleted, ", "))
	}
	return nil, nil
}

// addNew adds the topics and partitions that did not exist at a position.
func (a *Auditor) addNew(offsets map[string][]int64, topics []string) {
	for _, topic := range topics {
		for partition := int32(len(offsets[topic])); partition < a.topics[topic].Partitions; partition++ {
			offsets[topic] = append(offsets[topic], a.start(topic, partition))
		}
	}
}

// positionMagic begins the file of a saved position.
const positionMagic = "OBSA1\n"

// ErrPosition is wrapped by the errors about the file of a saved position.
var ErrPosition = errors.New("not a position of self-audit")

// Write writes the position: the magic, a line of JSON, the state of the ledger, and the SHA-256 of everything
// before it.
func (p *Position) Write(to io.Writer) error {
	p.Waiting = p.Waiting[:0]
	for at := range p.waits {
		p.Waiting = append(p.Waiting, at)
	}
	head, err := json.Marshal(p)
	if err != nil {
		return err
	}
	sum := sha256.New()
	w := bufio.NewWriter(io.MultiWriter(to, sum))
	for _, part := range [][]byte{[]byte(positionMagic), head, {'\n'}, p.ledger} {
		if _, err := w.Write(part); err != nil {
			return err
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	_, err = to.Write(sum.Sum(nil))
	return err
}

// ReadPosition reads what Write has written. Its errors wrap ErrPosition.
func ReadPosition(from io.Reader) (*Position, error) {
	b, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	rest, ok := bytes.CutPrefix(b, []byte(positionMagic))
	if !ok || len(rest) < sha256.Size {
		return nil, fmt.Errorf("%w: it does not begin with %q", ErrPosition, positionMagic)
	}
	n := len(b) - sha256.Size
	if sum := sha256.Sum256(b[:n]); !bytes.Equal(sum[:], b[n:]) {
		return nil, fmt.Errorf("%w: the checksum does not match: it was cut or changed", ErrPosition)
	}
	head, state, _ := bytes.Cut(rest[:len(rest)-sha256.Size], []byte{'\n'})
	p := &Position{waits: map[oracle.Position]bool{}}
	if err := json.Unmarshal(head, p); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPosition, err)
	}
	for _, at := range p.Waiting {
		p.waits[at] = true
	}
	p.ledger = state
	return p, nil
}
