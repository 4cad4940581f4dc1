package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	pollRecords  = 10_000 // maximal number of events of one poll
	batchRecords = 50_000 // maximal number of events between two commits of offsets
)

// store has the keys of the window.
type store interface {
	// claim stores the keys of the records, and returns the records whose key was new.
	claim(ctx context.Context, records []*kgo.Record) ([]*kgo.Record, error)
	// commit makes the claims since the last commit permanent. The worker calls it after the broker has acknowledged
	// the events.
	commit(ctx context.Context) error
	close(ctx context.Context)
}

// worker is one member of the group.
type worker struct {
	settings

	client *kgo.Client
	store  store
}

// work runs one worker until ctx ends. Its client has the same settings as the passthrough, which is the limit
// in the benchmarks, but no transactions.
func (s settings) work(ctx context.Context, number int) error {
	keys, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer keys.close(context.WithoutCancel(ctx))
	client, err := kgo.NewClient(
		kgo.SeedBrokers(s.brokers...), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.input),
		// The worker is a static member: if it starts again within the session timeout, it keeps its partitions.
		kgo.InstanceID(fmt.Sprintf("%s-%d", s.instance, number)), kgo.SessionTimeout(s.session),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.BlockRebalanceOnPoll(), kgo.DisableAutoCommit(),
		kgo.MaxBufferedRecords(200_000), kgo.MaxBufferedBytes(256<<20), kgo.ProducerLinger(min(s.commit/4, 25*time.Millisecond)),
		kgo.FetchMaxWait(500*time.Millisecond))
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	w := worker{s, client, keys}
	for ctx.Err() == nil {
		if err := w.interval(ctx); err != nil && ctx.Err() == nil {
			return err
		}
		client.AllowRebalance()
	}
	return nil
}

// interval processes events until the commit interval is over, and commits their offsets. It commits the
// offsets even if ctx ends meanwhile.
func (w worker) interval(ctx context.Context) error {
	fetches := w.poll(ctx)
	if fetches.NumRecords() == 0 {
		return nil
	}
	whole := context.WithoutCancel(ctx)
	promise := kgo.AbortingFirstErrPromise(w.client)
	bounded, cancel := context.WithTimeout(ctx, w.commit)
	defer cancel()
	for n := 0; ; fetches = w.poll(bounded) {
		fresh, err := w.store.claim(whole, fetches.Records())
		if err != nil {
			return fmt.Errorf("claim %d keys: %w", fetches.NumRecords(), err)
		}
		for _, r := range fresh {
			w.client.Produce(whole, &kgo.Record{Topic: w.output, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}, promise.Promise())
		}
		if n += fetches.NumRecords(); n >= batchRecords || bounded.Err() != nil {
			break
		}
	}
	if err := promise.Err(); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	if err := w.store.commit(whole); err != nil {
		return fmt.Errorf("commit the keys: %w", err)
	}
	if err := w.client.CommitUncommittedOffsets(whole); err != nil {
		// Either the group has a newer generation, or the broker does not respond. In both cases this process
		// or another process reads the events again.
		fmt.Fprintln(os.Stderr, "handwritten: commit the offsets:", err)
	}
	return nil
}

// poll returns the next records. It ignores errors of a partition or of the group, because the client retries by
// itself.
func (w worker) poll(ctx context.Context) kgo.Fetches {
	fetches := w.client.PollRecords(ctx, pollRecords)
	fetches.EachError(func(topic string, partition int32, err error) {
		if !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			fmt.Fprintf(os.Stderr, "handwritten: poll %s/%d: %v\n", topic, partition, err)
		}
	})
	return fetches
}
