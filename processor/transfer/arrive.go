package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/portable"
)

// ArriveOptions are the options of Arrive.
type ArriveOptions struct {
	// Open opens the file of ExportLeaving at its start. File is the SHA-256 of that file.
	Open func() (io.ReadCloser, error)
	File string
	By   string // person or host that runs the command, for people
	// RepeatUnchecked says that the operator accepts a repetition: events that a policy has forwarded without
	// storing a row may be emitted again.
	RepeatUnchecked bool
	// Checked, if not nil, is called with how many rows of the file were read.
	Checked func(rows int64)
}

// Arrived describes an app that was moved to this cluster from another cluster, and where it continues to read.
type Arrived struct {
	Cluster string `json:"cluster"` // id of the cluster that the app came from
	Keys    int64  `json:"keys"`    // number of keys in the file
	// Before reports that an earlier command has already created the app.
	Before bool    `json:"before"`
	Starts []Start `json:"starts"`
}

// Start is a partition of an input, with its held offset in the other cluster and the first offset to read in
// this cluster. Again is the number of offsets from that offset up to the copy of the last record before the
// held offset: the app reads them a second time.
type Start struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Held      int64  `json:"held"`
	Start     int64  `json:"start"`
	Again     int64  `json:"again"`
}

// Arrive creates an app in this cluster from its file. The app is held, so that a process that starts reads no
// event before the release. Arrive first reads the whole file, compares the settings in it, and finds the held
// offsets in the mirrored topics. It changes nothing unless all these checks succeed.
func Arrive(ctx context.Context, cfg app.Config, routes *rules.Routes, log *slog.Logger, o *ArriveOptions, extra ...kgo.Opt) (*Arrived, error) {
	c, err := connect(cfg, routes, log, extra)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	arrived, err := c.arrive(ctx, o)
	return arrived, c.explain(err)
}

// arrive makes all checks, and creates the app only at its end. If an earlier command has created the app, it
// changes nothing.
func (c *Client) arrive(ctx context.Context, o *ArriveOptions) (*Arrived, error) {
	file, err := o.Open()
	if err != nil {
		return nil, err
	}
	checked, err := Check(ctx, file, func(n int64) {
		if o.Checked != nil {
			o.Checked(n)
		}
	})
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	h := &checked.Header
	if h.Leaving == nil {
		return nil, kafka.OperatorErrorf("the file is not one of an app that leaves its cluster: write it by 'oncebus export --leaving'")
	}
	arrived := &Arrived{Cluster: h.Cluster, Keys: checked.Trailer.Rows, Starts: []Start{}}
	before, err := app.CheckArrival(ctx, c.conn(), c.cfg.AppID, c.routes, o.File)
	if err != nil {
		return nil, err
	}
	if before != nil {
		arrived.Before = true
		return arrived, nil
	}
	if err := c.mayArrive(ctx, h, o); err != nil {
		return nil, err
	}
	if arrived.Starts, err = c.mirroredStarts(ctx, h); err != nil {
		return nil, err
	}
	a := &app.Arriving{
		Arrival:    app.Arrival{File: o.File, Cluster: h.Cluster, Hold: h.Leaving.Hold, By: o.By, At: time.Now().UTC().Truncate(time.Second)},
		HashSecret: h.Leaving.HashSecret, SecretCheck: h.SecretCheck, Starts: map[string][]int64{},
	}
	for _, s := range arrived.Starts {
		a.Starts[s.Topic] = append(a.Starts[s.Topic], s.Start)
	}
	return arrived, app.Arrive(ctx, c.conn(), c.cfg, c.routes, a)
}

// mayArrive returns an operator error if the settings and routes of this command would not create the app that
// is in the file.
func (c *Client) mayArrive(ctx context.Context, h *portable.Header, o *ArriveOptions) error {
	var mistakes []error
	refuse := func(format string, args ...any) {
		mistakes = append(mistakes, kafka.OperatorErrorf(format, args...))
	}
	if h.App != c.cfg.AppID {
		refuse("the file is of app %s: set ONCEBUS_APP_ID=%s", h.App, h.App)
	}
	if int(c.cfg.Partitions) != len(h.Tasks) {
		refuse("the app has %d tasks, and keys keep their tasks: set ONCEBUS_PARTITIONS=%d", len(h.Tasks), len(h.Tasks))
	}
	if h.Leaving.Routes != c.routes.Digest {
		refuse("the routes file is not the one that app %s had in force: take the file of the other cluster, and change it after the release by 'oncebus apply'", h.App)
	}
	for _, r := range c.routes.Routes {
		for i := range h.Namespaces {
			if n := &h.Namespaces[i]; n.Name == r.Namespace && n.KeyRule != r.KeyRule() {
				refuse("namespace %s: the file has keys of another rule:\n  %s\nthis build has\n  %s\nuse the build of the other cluster", n.Name, n.KeyRule, r.KeyRule())
			}
		}
		if r.ForwardsWithoutRow() && !o.RepeatUnchecked {
			refuse("route %s has a policy that forwards events without storing a key: what the mirror repeats of them is emitted again; accept it by --repeat-unchecked", r.Name)
		}
	}
	if len(mistakes) > 0 {
		return errors.Join(mistakes...)
	}
	return c.checkMirror(ctx, h)
}

// checkMirror returns an operator error if the mirrored topics are not as the file requires.
func (c *Client) checkMirror(ctx context.Context, h *portable.Header) error {
	meta, err := c.admin.Metadata(ctx)
	if err != nil {
		return fmt.Errorf("read the metadata of the cluster: %w", err)
	}
	if meta.Cluster == h.Cluster {
		return kafka.OperatorErrorf("this is cluster %s, where the app is: set ONCEBUS_BROKERS to those of the other one", h.Cluster)
	}
	partitions := map[string]int32{}
	for _, in := range h.Leaving.Inputs {
		partitions[in.Topic]++
	}
	inputs, _ := c.routes.Inputs()
	topics, err := app.DescribeTopics(ctx, c.admin, inputs...)
	if err != nil {
		return err
	}
	var mistakes []error
	for _, name := range inputs {
		switch have, ok := topics[name]; {
		case !ok:
			mistakes = append(mistakes, kafka.OperatorErrorf("topic %s does not exist: mirror it under the same name", name))
		case have.Partitions != partitions[name]:
			mistakes = append(mistakes, kafka.OperatorErrorf("topic %s has %d partitions, %d in the other cluster: the mirror must keep the partition of a record", name, have.Partitions, partitions[name]))
		}
	}
	return errors.Join(mistakes...)
}

// mirroredStarts returns, for all input partitions, where the app begins to read. The error names the
// partitions that the mirror has not copied up to their held offset yet.
func (c *Client) mirroredStarts(ctx context.Context, h *portable.Header) ([]Start, error) {
	inputs, _ := c.routes.Inputs()
	topics, err := app.DescribeTopics(ctx, c.admin, inputs...)
	if err != nil {
		return nil, err
	}
	starts := []Start{}
	var mistakes []error
	for i := range h.Leaving.Inputs {
		in := &h.Leaving.Inputs[i]
		s, err := c.mirroredStart(ctx, in, topics[in.Topic].ID)
		if kafka.IsOperatorError(err) {
			mistakes = append(mistakes, err)
			continue
		}
		if err != nil {
			return nil, err
		}
		starts = append(starts, s)
	}
	return starts, errors.Join(mistakes...)
}

// errSearched ends the reading of a mirrored partition because the position is found.
var errSearched = errors.New("the place is found")

// mirroredStart finds the held offset of a partition in the partition's mirror.
//
// A partition of outcomes begins at its end: the app has dispatched nothing in this cluster, so no outcome that
// is already in the topic belongs to a claim of the app. A partition without a record before the held offset
// begins at its start.
func (c *Client) mirroredStart(ctx context.Context, in *portable.Input, topicID [16]byte) (Start, error) {
	reader := c.leaders.NewReader(in.Topic, topicID, in.Partition)
	reader.BoundBatches(c.cfg.BatchBytesMax())
	begin, end, err := reader.Bounds(ctx)
	s := Start{Topic: in.Topic, Partition: in.Partition, Held: in.Held, Start: begin}
	switch {
	case err != nil:
		return s, err
	case in.Outcomes:
		s.Start = end
		return s, nil
	case len(in.Tail) == 0:
		s.Again = end - begin
		return s, nil
	}
	from, err := reader.FirstAt(ctx, in.Earliest)
	if err != nil {
		return s, err
	}
	search := newMirrorSearch(in.Tail)
	if from >= 0 {
		err = reader.Read(ctx, from, end, func(records []*kgo.Record, _ int64) error {
			for _, rec := range records {
				if rec.Attrs.TimestampType() == kafka.TimestampAppend {
					return kafka.OperatorErrorf("topic %s has message.timestamp.type=LogAppendTime: the mirror's records have lost the time of their events; set CreateTime, and mirror it again", in.Topic)
				}
				if search.add(rec.Offset, sumOf(rec)) {
					s.Again = rec.Offset + 1
					return errSearched
				}
			}
			return nil
		})
	}
	if err != nil && !errors.Is(err, errSearched) {
		return s, err
	}
	if !search.found {
		return s, kafka.OperatorErrorf("%s/%d: the mirror has not copied the record before the held offset %d yet, or it changes key, value, headers or timestamps: wait, and run this again", in.Topic, in.Partition, in.Held)
	}
	s.Start = search.start
	s.Again -= s.Start
	return s, nil
}

// cameWith reports whether the app was created in this cluster from the file with this header.
func (c *Client) cameWith(h *portable.Header) bool {
	return h.Leaving != nil && c.arrival != nil && c.arrival.Hold == h.Leaving.Hold && bytes.Equal(c.app.Manifest.HashSecret, h.Leaving.HashSecret)
}
