//go:build unix

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	transactionTimeout = 15 * time.Second // the default of oncebus
	pollRecords        = 10_000           // maximal number of events of one poll
	transactionRecords = 50_000           // maximal number of events of one transaction
)

// stage is one transactional consumer and producer of the passthrough.
type stage struct {
	group, id string // consumer group, transactional id
	from, to  string
	changelog string // topic that gets a small record for each event; empty: none
	commit    time.Duration
}

// passthrough is the limit: it only consumes, produces and commits, with the same client and the same settings as
// oncebus. Its last stage also writes the changelog.
func (t Task) passthrough(ctx context.Context) error {
	last := stage{group: t.dedupGroup(), from: t.Input, to: t.Output(), commit: t.Commit}
	if t.Role.Changelog {
		last.changelog = t.Side()
	}
	stages := []stage{last}
	if t.Role.Routed {
		stages[0].from = t.between()
		stages = append(stages, stage{group: t.routeGroup(), from: t.Input, to: t.between(), commit: t.Commit})
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(stages)*t.Workers)
	var wg sync.WaitGroup
	for i := range errs {
		s := stages[i/t.Workers]
		s.id = fmt.Sprintf("%s-%d", t.App, i)
		wg.Go(func() {
			if errs[i] = s.run(ctx, t.Brokers); errs[i] != nil {
				cancel() // the first failure ends all stages
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (s stage) run(ctx context.Context, brokers []string) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(brokers...), kgo.ConsumerGroup(s.group), kgo.ConsumeTopics(s.from),
		kgo.TransactionalID(s.id), kgo.TransactionTimeout(transactionTimeout),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.BlockRebalanceOnPoll(),
		kgo.MaxBufferedRecords(200_000), kgo.MaxBufferedBytes(256<<20), kgo.ProducerLinger(min(s.commit/4, 25*time.Millisecond)),
		kgo.FetchMaxWait(500*time.Millisecond),
		// If a produce request arrives before the markers of the previous transaction, franz-go retries it only after
		// the next update of the metadata. With franz-go's default of 5 s, the limit would sometimes wait for
		// seconds.
		kgo.MetadataMinAge(250*time.Millisecond))
	if err != nil {
		return err
	}
	defer session.CloseAllowingRebalance()
	for ctx.Err() == nil {
		if err := s.transaction(ctx, session); err != nil && ctx.Err() == nil {
			return err
		}
		session.AllowRebalance()
	}
	return nil
}

// transaction forwards events until the commit interval is over. If ctx ends meanwhile, it still commits the events
// that it has forwarded.
func (s stage) transaction(ctx context.Context, session *kgo.GroupTransactSession) error {
	fetches := session.PollRecords(ctx, pollRecords)
	if fetches.NumRecords() == 0 {
		return nil
	}
	if err := session.Begin(); err != nil {
		return err
	}
	whole := context.WithoutCancel(ctx)
	promise := kgo.AbortingFirstErrPromise(session.Client())
	bounded, cancel := context.WithTimeout(ctx, s.commit)
	defer cancel()
	for n := 0; ; fetches = session.PollRecords(bounded, pollRecords) {
		fetches.EachRecord(func(r *kgo.Record) {
			session.Produce(whole, &kgo.Record{Topic: s.to, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}, promise.Promise())
			if s.changelog != "" {
				session.Produce(whole, &kgo.Record{Topic: s.changelog, Key: r.Key[:changelogKey], Value: r.Value[:changelogValue]}, promise.Promise())
			}
		})
		if n += fetches.NumRecords(); n >= transactionRecords || bounded.Err() != nil {
			break
		}
	}
	failed := promise.Err()
	_, err := session.End(whole, failed == nil)
	return errors.Join(failed, err)
}

// The size of a record in the passthrough's changelog is about the size in oncebus's changelog.
const (
	changelogKey   = 16
	changelogValue = 20
)
