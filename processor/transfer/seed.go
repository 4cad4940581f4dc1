package transfer

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

const (
	// chunkSeeds is how many seeds are produced before their offsets are recorded in the progress. windowSeeds
	// is how many seeds may wait for the tasks: events that arrive behind these seeds have to wait until the
	// tasks have decided on them, some 0.1 s.
	chunkSeeds, windowSeeds = 10_000, 30_000
	// saveEvery is the default of SeedOptions.SaveEvery.
	saveEvery = time.Second
	// followPause is the pause between two readings of the changelogs if the first one has found nothing new.
	followPause = 20 * time.Millisecond
	// If no task has decided on a seed for stalledAfter, a line in the log says so.
	stalledAfter = 10 * time.Second
)

// SeedOptions are the options of Seed.
type SeedOptions struct {
	// Open opens the source at its start. Seed calls it twice, because it checks the whole file before it
	// writes the first seed.
	Open func() (Source, func(), error)
	// Name identifies the source, for example by the SHA-256 of the file and the route. It is "" for a source
	// that can be read only once: such a source has no progress, and is not checked before the first seed is
	// written.
	Name string
	File string // SHA-256 of the file, if the source is a file
	By   string // person or host that runs the command, for people
	Rate int    // largest number of seeds per second; 0 for no bound
	// If no task decides on a seed for the time Wait, Seed ends with an error; 0 for no bound.
	Wait time.Duration
	// SaveEvery is the time between two writes of the progress; 0 means a second.
	SaveEvery time.Duration
	// Checked and Decided, if not nil, are called with the progress of the check of the source, and with the
	// progress of the decisions on its seeds.
	Checked, Decided func(done, total int64)
}

// Seeded is the result of Seed: what the tasks did with the seeds of a source.
type Seeded struct {
	Lines       int64 `json:"lines"` // or rows; empty lines are not counted
	Keys        int64 `json:"keys"`
	Taken       int64 `json:"taken"`
	Known       int64 `json:"known"`
	OutOfWindow int64 `json:"out_of_window"`
	TooLate     int64 `json:"too_late"`
	InFuture    int64 `json:"in_future"`
	// TooLateLines has the numbers of the lines that came too late, at most 10,000.
	TooLateLines []int64 `json:"too_late_lines"`
	// Resumed is the number of the line after which this run continued; 0 for a run that began anew.
	Resumed int64 `json:"resumed_after"`
	// Cut reports that a task trimmed some counts from its changelog before they were read.
	Cut bool `json:"cut"`
	// Arrived reports that the app was moved to this cluster with this file, and that it now has all rows of
	// the file.
	Arrived bool `json:"arrived,omitempty"`
}

// seeding is one run of Seed.
type seeding struct {
	*journal

	o        *SeedOptions
	p        *progress
	total    int64
	producer *kgo.Client
	last     int64            // number of the last seed
	lines    int64            // lines that have a seed
	written  map[seedKey]bool // seeds after p.Lines that an earlier command has written
	sent     map[int32]int64  // seeds since this command began, by partition
	readers  []*kafka.Reader  // of the changelogs
	mu       sync.Mutex       // guards p while several changelogs are read
	saved    time.Time
	began    time.Time
	resumed  int64
}

// seedKey identifies a seed within a run.
type seedKey struct {
	number int64
	digest dedup.Digest
}

// Seed writes the seeds of a source to the repartition topic, and waits until the tasks have decided on every
// seed. If it is killed and run again, it continues where it stopped. If it is repeated, the seeds that the app
// already has count as known.
func (c *Client) Seed(ctx context.Context, o *SeedOptions) (*Seeded, error) {
	report, err := c.seed(ctx, o)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("interrupted: run it again, it goes on where it stopped: %w", err)
	}
	return report, c.explain(err)
}

// seed checks the whole source, takes over the progress from earlier commands, and then writes the seeds. If
// the app was moved to this cluster with this file, seed writes the stream times before the seeds, and records
// the end of the arrival in the manifest topic after them.
func (c *Client) seed(ctx context.Context, o *SeedOptions) (*Seeded, error) {
	s := &seeding{o: o, written: map[seedKey]bool{}, sent: map[int32]int64{}, began: time.Now(), saved: time.Now()}
	if c.app.Topology.Repartition == "" {
		return nil, kafka.OperatorErrorf("all routes are prepartitioned: their producers choose the partition of a key, and a seed does not know it")
	}
	if o.Name != "" {
		source, stop, err := o.Open()
		if err != nil {
			return nil, err
		}
		s.total, err = c.checkSource(ctx, source, func(n int64) { report(o.Checked, n, n) })
		stop()
		if err != nil {
			return nil, fmt.Errorf("%w; nothing was written", err)
		}
	}
	var err error
	if s.journal, s.p, err = c.openJournal(ctx, app.SeedPrefix+o.Name); err != nil {
		return nil, err
	}
	defer s.journal.writer.Close()
	if err := c.refuseMoving(ctx); err != nil {
		return nil, err
	}
	if err := s.prepare(ctx); err != nil {
		return nil, err
	}
	defer s.producer.Close()
	source, stop, err := o.Open()
	if err != nil {
		return nil, err
	}
	defer stop()
	rows, _ := source.(*rowsSource)
	arriving := rows != nil && rows.arriving
	if arriving {
		if err := s.sendStreamTimes(ctx, rows.header); err != nil {
			return nil, err
		}
	}
	if err := s.run(ctx, source); err != nil {
		return nil, err
	}
	report := s.report()
	if arriving {
		err = s.concludeArrival(ctx, rows.header)
		report.Arrived = err == nil
	}
	return report, err
}

// refuseMoving returns an operator error while the keys of the app move to other partitions: the counts of a
// seed must all be in the changelogs of the same generation of partitions.
func (c *Client) refuseMoving(ctx context.Context) error {
	rows, err := app.ReadRows(ctx, c.client, c.app.Topology)
	if err != nil {
		return err
	}
	moving, err := app.SwitchIn(rows)
	if err == nil && moving != nil && !moving.Phase.IsOver() {
		err = kafka.OperatorErrorf("the keys of the app move to %d partitions: let 'oncebus move' end first, or undo it with 'oncebus abort'", moving.To)
	}
	return err
}

func report(watch func(done, total int64), done, total int64) {
	if watch != nil {
		watch(done, total)
	}
}

// prepare takes over the progress of an earlier command, if there is one; otherwise it begins a new run.
func (s *seeding) prepare(ctx context.Context) (err error) {
	limits, err := app.ReadInputLimits(ctx, s.admin, s.app.Topology.Repartition)
	if err != nil {
		return err
	}
	most := limits[s.app.Topology.Repartition].MaxBytes
	s.producer, err = kgo.NewClient(append(append([]kgo.Opt{}, s.options...),
		kgo.ProducerBatchMaxBytes(max(1<<20, most)), kgo.ProducerLinger(2*time.Millisecond), kgo.ProducerBatchCompression(kgo.ZstdCompression(), kgo.NoCompression()),
		kgo.MaxBufferedRecords(2*chunkSeeds))...)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	defer func() { closeAfter(err, s.producer) }()
	partitions := s.app.Topology.Topics[s.app.Topology.Repartition].Partitions
	for p := range partitions {
		s.readers = append(s.readers, s.changelog(app.TaskID{Topic: s.app.Topology.Repartition, Partition: p}))
	}
	if s.p != nil && !s.p.Done && s.o.Name != "" && len(s.p.Ends) == int(partitions) {
		s.resumed = s.p.Lines
		return s.findWritten(ctx)
	}
	s.p = &progress{File: s.o.Name, By: s.o.By}
	var run wire.SeedRun
	_, _ = rand.Read(run[:]) // never fails
	s.p.Run = runText(run)
	for p := range partitions {
		_, end, err := s.repartition(p).Bounds(ctx)
		if err != nil {
			return err
		}
		s.p.Ends = append(s.p.Ends, end)
		if _, end, err = s.readers[p].Bounds(ctx); err != nil {
			return err
		}
		s.p.Changelog = append(s.p.Changelog, end)
	}
	return s.save()
}

// repartition returns a reader for a partition of the repartition topic.
func (s *seeding) repartition(partition int32) *kafka.Reader {
	t := s.app.Topology
	return s.leaders.NewReader(t.Repartition, t.Topics[t.Repartition].ID, partition)
}

// findWritten finds the seeds that an earlier command wrote after its last progress, so that no seed is written
// twice and the counts are exact.
func (s *seeding) findWritten(ctx context.Context) error {
	run := s.p.run()
	for p := range s.p.Ends {
		reader := s.repartition(int32(p))
		start, end, err := reader.Bounds(ctx)
		if err != nil {
			return err
		}
		err = reader.Read(ctx, max(start, s.p.Ends[p]), end, func(records []*kgo.Record, _ int64) error {
			for _, rec := range records {
				var env wire.Envelope
				if err := wire.ReadEnvelope(rec, &env); err != nil {
					return err
				}
				if env.IsSeed && env.Seed == run && env.From.Offset > s.p.Lines {
					s.written[seedKey{env.From.Offset, env.Digest}] = true
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// save writes the progress. A source without a name has no progress: for such a source the journal only fences
// other commands.
func (s *seeding) save() error {
	s.saved = time.Now()
	if s.o.Name == "" {
		return nil
	}
	return s.write(s.p)
}

// warnOfNoProcess logs at once if no process could decide on the seeds. It ignores errors, because follow warns
// later in any case.
func (s *seeding) warnOfNoProcess(ctx context.Context) {
	group := app.GroupName(s.app.Topology.App, app.StageDedup)
	groups, err := s.admin.DescribeGroups(ctx, group)
	if err == nil && groups[group].Err == nil && len(groups[group].Members) == 0 {
		s.log.Warn("no process of the app runs: start one, oncebus run; the seeds wait for it")
	}
}

// run writes all seeds and waits for the tasks.
func (s *seeding) run(ctx context.Context, source Source) error {
	s.warnOfNoProcess(ctx)
	for {
		n, end, err := s.chunk(ctx, source)
		if err != nil {
			return err
		}
		if n > 0 {
			if err := s.follow(ctx, windowSeeds); err != nil {
				return err
			}
		}
		if end {
			break
		}
		if time.Since(s.saved) >= cmp.Or(s.o.SaveEvery, saveEvery) {
			if err := s.save(); err != nil {
				return err
			}
		}
		if err := s.pace(ctx); err != nil {
			return err
		}
	}
	if err := s.save(); err != nil {
		return err
	}
	if err := s.follow(ctx, 0); err != nil {
		return err
	}
	s.p.Done = true
	return s.save()
}

// pace waits until the rate allows the next chunk.
func (s *seeding) pace(ctx context.Context) error {
	if s.o.Rate == 0 {
		return ctx.Err()
	}
	var sent int64
	for _, n := range s.sent {
		sent += n
	}
	due := s.began.Add(time.Duration(float64(sent) / float64(s.o.Rate) * float64(time.Second)))
	return kafka.Pause(ctx, time.Until(due))
}

// chunk produces the next seeds, and records them in the progress.
func (s *seeding) chunk(ctx context.Context, source Source) (n int, end bool, err error) {
	most := chunkSeeds
	if s.o.Rate > 0 {
		most = max(1, min(most, s.o.Rate/10))
	}
	d := &delivery{ends: append([]int64(nil), s.p.Ends...)}
	run := s.p.run()
	for n < most && !end {
		seeds, err := source.Next()
		if errors.Is(err, io.EOF) {
			end = true
			break
		}
		if err != nil {
			return n, false, err
		}
		s.last = seeds[0].Number
		s.lines++
		added, err := s.produce(seeds, run, d)
		n += added
		if err != nil {
			return n, false, err
		}
	}
	if err := s.producer.Flush(ctx); err != nil {
		return n, false, err
	}
	if d.failed != nil {
		return n, false, d.failed
	}
	s.p.Lines, s.p.Keys, s.p.Ends = max(s.p.Lines, s.last), s.p.Keys+int64(n), d.ends
	return n, end, nil
}

// produce produces the seeds of a line that are not in the progress yet. It returns the number of these seeds,
// including the seeds that an earlier command has already written.
func (s *seeding) produce(seeds []Seed, run wire.SeedRun, d *delivery) (n int, err error) {
	for i := range seeds {
		one := &seeds[i]
		if one.Number <= s.p.Lines {
			continue
		}
		if s.o.Name == "" { // such a source was not checked before
			if err := s.Seedable(one.Route); err != nil {
				return n, err
			}
		}
		n++
		partition := one.placed
		if partition < 0 {
			partition = s.app.Hasher.Partition(&one.routing)
		}
		s.sent[partition]++
		if s.written[seedKey{one.Number, one.Digest}] {
			continue
		}
		s.producer.Produce(context.Background(), s.record(one, run, partition), d.done)
	}
	return n, nil
}

// A delivery collects what happened to the records of a chunk.
type delivery struct {
	mu     sync.Mutex // the promises of different brokers run concurrently
	failed error      // the first error
	ends   []int64    // by partition, the offset behind these records
}

// done is the promise that the producer calls for each record.
func (d *delivery) done(rec *kgo.Record, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil && d.failed == nil {
		d.failed = fmt.Errorf("produce to %s/%d: %w", rec.Topic, rec.Partition, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
	}
	if err == nil {
		d.ends[rec.Partition] = max(d.ends[rec.Partition], rec.Offset+1)
	}
}

// record returns the record of a seed.
func (s *seeding) record(one *Seed, run wire.SeedRun, partition int32) *kgo.Record {
	env := wire.Envelope{
		IsSeed: true, Seed: run, Route: one.Route.WireName, Digest: one.Digest, EventTime: one.First, Timestamp: one.First,
		From: dedup.Position{Topic: dedup.SeedTopic, Offset: one.Number}, Details: one.details,
	}
	return &kgo.Record{Topic: s.app.Topology.Repartition, Partition: partition, Key: env.Append(make([]byte, 0, env.Size())), Value: one.value}
}

// follow reads the changelogs until the tasks have decided on all but left of the written seeds.
func (s *seeding) follow(ctx context.Context, left int64) error {
	said, since, counted := time.Now(), time.Now(), s.p.counted()
	for {
		if err := s.count(ctx); err != nil {
			return err
		}
		now := s.p.counted()
		report(s.o.Decided, now, max(s.total, s.p.Keys))
		if s.p.Keys-now <= left || s.p.Cut {
			return nil
		}
		if now > counted {
			said, since, counted = time.Now(), time.Now(), now
		} else if time.Since(said) > stalledAfter {
			s.log.Warn("no task decides on the seeds: start the service, or see its /readyz", "seeds", s.p.Keys-now)
			said = time.Now()
		}
		if s.o.Wait > 0 && time.Since(since) > s.o.Wait {
			return kafka.OperatorErrorf("no task decided on a seed for %v: start a process of the app, oncebus run, or see its /readyz; then run this again, it goes on where it stopped", s.o.Wait)
		}
		if err := kafka.Pause(ctx, followPause); err != nil {
			return err
		}
	}
}

// count adds to the progress the counts that the changelogs have got since the last call. It reads all
// partitions at the same time.
func (s *seeding) count(ctx context.Context) error {
	var all sync.WaitGroup
	errs := make([]error, len(s.readers))
	for p := range s.readers {
		all.Go(func() { errs[p] = s.countOf(ctx, p) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// countOf adds to the progress the counts of this run's seeds in the changelog of partition p.
func (s *seeding) countOf(ctx context.Context, p int) error {
	// This reads up to the last stable offset and not up to the high watermark. To reach the high watermark, it
	// would have to wait for the end of an open transaction, and the next seeds would have to wait, too.
	end, err := s.readers[p].StableEnd(ctx)
	switch {
	case err != nil && kafka.Classify(err) == kafka.Retry:
		return nil // the next call tries again
	case err != nil:
		return err
	}
	run := s.p.run()
	err = s.readers[p].Read(ctx, s.p.Changelog[p], end, func(records []*kgo.Record, position int64) error {
		for _, rec := range records {
			if !wire.IsSeedCounts(rec) {
				continue
			}
			counts, err := wire.ReadSeedCounts(rec)
			if err != nil {
				return err
			}
			if counts.Run == run {
				s.mu.Lock()
				s.p.add(&counts)
				s.mu.Unlock()
			}
		}
		s.p.Changelog[p] = position
		return nil
	})
	if !errors.Is(err, kerr.OffsetOutOfRange) {
		return err
	}
	start, _, err := s.readers[p].Bounds(ctx)
	if err == nil {
		s.mu.Lock()
		s.p.Changelog[p], s.p.Cut = max(start, s.p.Changelog[p]), true
		s.mu.Unlock()
	}
	return err
}

func (s *seeding) report() *Seeded {
	f := s.p.Fates
	tooLate := s.p.TooLate
	if tooLate == nil {
		tooLate = []int64{}
	}
	return &Seeded{
		Lines: s.lines, Keys: s.p.Keys, Taken: f[dedup.SeedTaken], Known: f[dedup.SeedKnown], OutOfWindow: f[dedup.SeedOutOfWindow],
		TooLate: f[dedup.SeedTooLate], InFuture: f[dedup.SeedInFuture], TooLateLines: tooLate, Resumed: s.resumed, Cut: s.p.Cut,
	}
}
