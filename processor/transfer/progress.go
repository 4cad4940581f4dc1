package transfer

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/hanging"
	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// tooLateMax is how many numbers of seeds that came too late a progress and a report have at most.
const tooLateMax = 10_000

// progress is how many seeds of a file are written and counted. It is stored as a row of the manifest topic.
type progress struct {
	File string `json:"file"` // SHA-256 of the file
	Run  string `json:"run"`  // hexadecimal digits
	By   string `json:"by"`
	At   string `json:"at"` // RFC 3339
	Done bool   `json:"done"`
	// Lines is the number of a line or row: all seeds of the file up to this line are in the repartition topic.
	// Keys is the number of these seeds.
	Lines int64 `json:"lines"`
	Keys  int64 `json:"keys"`
	// Ends has, for each partition of the repartition topic, the offset from which on there may be seeds that
	// the progress does not include.
	Ends []int64 `json:"ends"`
	// Changelog has, for each partition, the offset up to which the counts in the changelog are included in
	// Fates.
	Changelog []int64 `json:"changelog"`
	// Fates is in the order of dedup.SeedFate.
	Fates   [dedup.SeedFates]int64 `json:"fates"`
	TooLate []int64                `json:"too_late"`
	// Cut reports that the task trimmed counts from its changelog before they were read.
	Cut bool `json:"cut,omitempty"`
}

func (p *progress) run() (run wire.SeedRun) {
	_, _ = hex.Decode(run[:], []byte(p.Run))
	return run
}

// counted returns how many seeds the tasks have decided on.
func (p *progress) counted() int64 {
	c := wire.SeedCounts{Fates: p.Fates}
	return c.Total()
}

// add adds the counts of a transaction.
func (p *progress) add(c *wire.SeedCounts) {
	for i, n := range c.Fates {
		p.Fates[i] += n
	}
	if room := tooLateMax - len(p.TooLate); room > 0 {
		p.TooLate = append(p.TooLate, c.TooLate[:min(room, len(c.TooLate))]...)
	}
}

// TransactionalID returns the transactional id under which the progress of seeds is written. The id is fixed,
// so that a new command fences an earlier one.
func TransactionalID(appID string) string { return appID + "-seed" }

// ErrFenced means that another seed command of the app has taken over.
var ErrFenced = errors.New("another seed of this app took over; what was written stays, so run it again")

// A journal writes the progress. At most one journal of an app can write.
type journal struct {
	*Client

	writer *hanging.Writer
	key    string
}

// openJournal registers the transactional id, which fences any other journal, and then reads the progress of a
// file; nil if there is none.
func (c *Client) openJournal(ctx context.Context, key string) (*journal, *progress, error) {
	conn := c.conn()
	w, err := conn.OpenWriter(ctx, TransactionalID(c.cfg.AppID), c.cfg.TransactionTimeout, []string{c.app.Topology.Manifest})
	if err != nil {
		return nil, nil, err
	}
	j := &journal{Client: c, writer: w, key: key}
	p, err := j.read(ctx)
	if err != nil {
		w.Close()
		return nil, nil, err
	}
	return j, p, nil
}

// read returns the newest progress in the manifest topic; nil if there is none.
func (j *journal) read(ctx context.Context) (newest *progress, err error) {
	t := j.app.Topology
	reader := j.leaders.NewReader(t.Manifest, t.Topics[t.Manifest].ID, 0)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	err = reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if string(rec.Key) != j.key {
				continue
			}
			newest = &progress{}
			if err := json.Unmarshal(rec.Value, newest); err != nil {
				return kafka.OperatorErrorf("decode %s/%d/%d: %v", rec.Topic, rec.Partition, rec.Offset, err)
			}
		}
		return nil
	})
	return newest, err
}

// write writes the progress in its own transaction.
func (j *journal) write(p *progress) error {
	p.At = time.Now().UTC().Format(time.RFC3339)
	value, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode the progress: %w", err)
	}
	// The caller's context must not be used here: if it were cancelled, a record whose production is cancelled
	// might have been written nevertheless (A2).
	ctx, cancel := context.WithTimeout(context.Background(), 2*j.cfg.TransactionTimeout)
	defer cancel()
	return asFenced(j.writer.Write(ctx, func() error {
		j.writer.Produce(&kgo.Record{Topic: j.app.Topology.Manifest, Key: []byte(j.key), Value: value})
		return nil
	}))
}

// asFenced wraps ErrFenced around the error of a producer that was fenced.
func asFenced(err error) error {
	if hanging.IsFenced(err) {
		return fmt.Errorf("%w: %w", ErrFenced, err)
	}
	return err
}
