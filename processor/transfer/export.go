package transfer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/portable"
	"oncebus/processor/wire"
)

// File is the file to which an export writes. If the export has to begin again, it truncates the file.
type File interface {
	io.WriteSeeker
	Truncate(size int64) error
}

// Exported is the result of an export.
type Exported struct {
	Rows       int64            `json:"rows"`
	Bytes      int64            `json:"bytes"`
	Namespaces map[string]int64 `json:"namespaces"`
	Tasks      int              `json:"tasks"`
	// Open counts the claims without a result. Such claims cannot be seeds.
	Open int64 `json:"open_claims"`
	// Behind counts the events that the app had not judged: in the inputs, and in the topics of the tasks.
	Behind int64 `json:"behind"`
}

// readAttempts is how often an export or a comparison reads the changelogs, if the app compacts one of them in
// the meantime.
const readAttempts = 10

// Export writes the live rows of the app to a file, exactly as of the newest transaction that each task had
// when Export began. It only reads, and the app keeps running. watch is called with how many changelog offsets
// were read.
func (c *Client) Export(ctx context.Context, to File, watch func(done, total int64)) (*Exported, error) {
	exported, err := c.exportWith(ctx, to, nil, watch)
	return exported, c.explain(err)
}

// exportWith writes a file. leaving has the additional data of an app that leaves its cluster; nil for an app
// that stays.
func (c *Client) exportWith(ctx context.Context, to File, leaving *portable.Leaving, watch func(done, total int64)) (*Exported, error) {
	for attempt := 1; ; attempt++ {
		exported, err := c.export(ctx, to, leaving, watch)
		if !errors.Is(err, errMoved) || attempt == readAttempts {
			return exported, err
		}
		c.log.Info("export begins again", "reason", err)
		if _, err := to.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		if err := to.Truncate(0); err != nil {
			return nil, err
		}
	}
}

// export writes a file once. It returns errMoved if the app compacted or trimmed a changelog while it was read.
func (c *Client) export(ctx context.Context, to File, leaving *portable.Leaving, watch func(done, total int64)) (*Exported, error) {
	h, snapshots, err := c.header(ctx)
	if err != nil {
		return nil, err
	}
	if leaving != nil {
		if err := c.takeAlong(h, snapshots); err != nil {
			return nil, err
		}
		h.Leaving = leaving
	}
	buffered := bufio.NewWriterSize(to, 1<<20)
	w, err := portable.NewWriter(buffered, h)
	if err != nil {
		return nil, err
	}
	var done, total int64
	for _, s := range snapshots {
		total += (s.end - s.start) * 2 * int64(s.slices(c.SliceKeys))
	}
	for i, s := range snapshots {
		last := s.start
		position := func(p int64) {
			if p < last { // the changelog is being read for the second time
				last = s.start
			}
			done, last = done+p-last, p
			watch(done, total)
		}
		err := s.live(ctx, c.SliceKeys, position, func(row *dedup.Row) error { return w.Add(&portable.Row{Row: row.Unlinked(), Task: i}) })
		if err != nil {
			return nil, err
		}
	}
	trailer, err := w.Close()
	if err == nil {
		err = buffered.Flush()
	}
	if err != nil {
		return nil, fmt.Errorf("write the file: %w", err)
	}
	size, err := to.Seek(0, io.SeekCurrent)
	if err != nil {
		return nil, err
	}
	exported := &Exported{Rows: trailer.Rows, Bytes: size, Namespaces: map[string]int64{}, Tasks: len(snapshots), Open: trailer.Open}
	for i, n := range trailer.ByNamespace {
		exported.Namespaces[h.Namespaces[i].Name] = n
	}
	exported.Behind, err = c.behind(ctx, h)
	return exported, err
}

// header returns the header of a file with the rows of all tasks.
func (c *Client) header(ctx context.Context) (*portable.Header, []*snapshot, error) {
	m := c.app.Manifest
	h := &portable.Header{
		Level: c.app.Level, Cluster: c.app.Topology.Cluster, App: c.cfg.AppID, At: time.Now().UTC().Format(time.RFC3339), SecretCheck: m.SecretCheck,
		Namespaces: []portable.Namespace{}, Tasks: []portable.Task{}, Offsets: []portable.Offset{},
	}
	for id, n := range m.Namespaces {
		one := portable.Namespace{Name: n.Name, KeyRule: n.KeyRule, Mode: n.Mode, WindowMS: -1, GraceMS: -1}
		for _, r := range c.app.Routes {
			if int(r.NamespaceID) == id {
				one.WindowMS, one.GraceMS, one.Adjacent = r.Span.Size, r.Span.Grace, r.AdjacentStepMS > 0
			}
		}
		h.Namespaces = append(h.Namespaces, one)
	}
	var err error
	if h.Offsets, err = c.routerOffsets(ctx); err != nil {
		return nil, nil, err
	}
	var snapshots []*snapshot
	for _, id := range c.tasks() {
		s, err := c.snapshotOf(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		snapshots = append(snapshots, s)
		h.Tasks = append(h.Tasks, c.taskOf(s))
	}
	return h, snapshots, nil
}

func (c *Client) taskOf(s *snapshot) portable.Task {
	t := portable.Task{
		Topic: s.id.Topic, Partition: s.id.Partition, End: s.end, Sequence: s.checkpoint.Sequence, Next: s.checkpoint.Next,
		ChangelogID: app.TopicIDText(c.app.Topology.Topics[c.app.ChangelogOf(s.id.Topic)].ID),
	}
	for id, has := range s.checkpoint.StreamTimes.Has {
		if has && id < len(c.app.Namespaces) {
			if t.StreamTimes == nil {
				t.StreamTimes = map[string]int64{}
			}
			t.StreamTimes[c.app.Namespaces[id]] = s.checkpoint.StreamTimes.At[id]
		}
	}
	return t
}

// routerOffsets returns the committed offsets of the routing stage, and the end offsets of its topics.
func (c *Client) routerOffsets(ctx context.Context) ([]portable.Offset, error) {
	offsets := []portable.Offset{}
	t := c.app.Topology
	if len(t.Routed) == 0 {
		return offsets, nil
	}
	partitions := map[string][]int32{}
	for _, topic := range t.Routed {
		for p := range t.Topics[topic].Partitions {
			partitions[topic] = append(partitions[topic], p)
		}
	}
	// If an offset is too low, the only effect is that events are read again, and these are then duplicates of
	// exported keys.
	committed, err := kafka.CommittedOffsets(ctx, c.client, app.GroupName(c.cfg.AppID, app.StageRoute), partitions)
	if err != nil {
		return nil, err
	}
	ends, err := c.admin.ListEndOffsets(ctx, t.Routed...)
	if err != nil {
		return nil, fmt.Errorf("list the ends of the inputs: %w", err)
	}
	for _, topic := range t.Routed {
		for _, p := range partitions[topic] {
			end, _ := ends.Lookup(topic, p)
			if end.Err != nil {
				return nil, fmt.Errorf("list the end of %s/%d: %w", topic, p, end.Err)
			}
			at := int64(-1)
			if o, ok := committed[topic][p]; ok && o.At >= 0 {
				at = o.At
			} else if first, pinned := c.app.Manifest.Start(topic, t.Topics[topic].ID, p); pinned {
				at = first // the routing stage has committed nothing since the topic became routed
			}
			offsets = append(offsets, portable.Offset{Topic: topic, TopicID: app.TopicIDText(t.Topics[topic].ID), Partition: p, Offset: at, End: end.Offset})
		}
	}
	return offsets, nil
}

// behind returns how many records the app had not processed when the header was made: records of its inputs,
// and records of the topics of its tasks.
func (c *Client) behind(ctx context.Context, h *portable.Header) (n int64, err error) {
	for _, o := range h.Offsets {
		left, err := c.unread(ctx, o.Topic, o.Partition, o.Offset)
		if err != nil {
			return 0, err
		}
		n += left
	}
	for _, t := range h.Tasks {
		left, err := c.unread(ctx, t.Topic, t.Partition, t.Next)
		if err != nil {
			return 0, err
		}
		n += left
	}
	return n, nil
}

// unreadMax is the largest number of offsets for which unread really counts the records; for more, it takes the
// difference of the offsets.
const unreadMax = 10_000

// unread counts the committed records of a partition from an offset on, without progress records. Records that
// are deleted in the meantime do not count.
func (c *Client) unread(ctx context.Context, topic string, partition int32, from int64) (n int64, err error) {
	for range readAttempts {
		if n, err = c.unreadNow(ctx, topic, partition, from); !errors.Is(err, kerr.OffsetOutOfRange) {
			break
		}
	}
	return n, err
}

// unreadNow is a single attempt of unread. Control records use offsets too, so it reads the records if the
// distance is short. The error wraps kerr.OffsetOutOfRange if records were deleted before they were read.
func (c *Client) unreadNow(ctx context.Context, topic string, partition int32, from int64) (n int64, err error) {
	reader := c.leaders.NewReader(topic, c.app.Topology.Topics[topic].ID, partition)
	reader.BoundBatches(c.cfg.BatchBytesMax())
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return 0, err
	}
	if from = max(start, from); end-from > unreadMax {
		return end - from, nil
	}
	err = reader.Read(ctx, from, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			var env wire.Envelope
			if topic == c.app.Topology.Repartition && wire.ReadEnvelope(rec, &env) == nil && (env.IsProgress || env.IsQuery) {
				continue
			}
			n++
		}
		return nil
	})
	return n, err
}
