//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"oncebus/processor/kafkatest"
	"oncebus/processor/oracle"
)

const (
	// drainMax limits the time until the app has processed all records, once all faults have ended and no new
	// records come. If the app takes longer, that breaks the promises K8 and K9.
	drainMax = transactionTimeout + time.Minute
	// seeMax limits the time until the observer has read the records that the final read has found.
	seeMax = 20 * time.Second
)

// close ends an epoch while no fault is active: it waits until all records are processed, stops the processes and
// checks the history. If there is a violation, it keeps the history.
func (e *epoch) close(ctx context.Context) (epochResult, error) {
	res := epochResult{Name: e.name}
	sent, err := e.traffic.end(ctx)
	if err != nil {
		return res, errors.Join(err, e.abandon())
	}
	res.Records, res.Traffic, res.Rows = len(sent), time.Since(e.began), e.traffic.rows
	h := &oracle.History{Sent: sent, Requests: e.traffic.senders.end()}
	began := time.Now()
	if err := e.drain(ctx, h); err != nil && ctx.Err() == nil {
		e.h.violate("heal", "at the end of epoch %s, without faults: %v", e.name, err)
	}
	res.Drain = time.Since(began)
	if err := errors.Join(e.stopAll(), e.obs.sampleOnce(ctx)); err != nil {
		e.h.violate("process", "at the end of epoch %s: %v", e.name, err)
	}
	cfg, err := e.collect(ctx, h)
	if err != nil {
		return res, errors.Join(err, e.killAll())
	}
	began = time.Now()
	report, violations := oracle.Check(cfg, h)
	counts, wrong := judgeClaims(&cfg, h)
	violations, res.Claims = append(violations, wrong...), e.app.tellClaims(counts)
	res.Check, res.Report, res.LongestStall = time.Since(began), report.String(), e.obs.stall.took
	res.Outputs, res.Delays = e.obs.outputs, quantilesOf(e.obs.delays)
	for _, v := range violations {
		e.h.violate(v.Invariant, "epoch %s: %s", e.name, v.Message)
	}
	e.h.note("checked", map[string]any{"epoch": e.name, "report": res.Report, "claims": res.Claims, "violations": len(violations)})
	if n, err := e.h.cluster.lostMarkers(); err != nil {
		e.h.violate("markers", "read the logs of the brokers: %v", err)
	} else if n > 0 { // oncebus closes its own transactions, but the run's executor does not
		e.h.note("markers", map[string]any{"epoch": e.name, "skipped": n, "cause": "KAFKA-20734"})
	}
	if len(e.h.violated()) > 0 {
		return res, e.keep(cfg, h)
	}
	return res, e.app.drop(ctx)
}

// drain waits until all sent records are judged and no transaction is open. If this takes too long, drain
// stores the open transactions and the lag in the history, and the oracle reports them as K8 and K9.
func (e *epoch) drain(ctx context.Context, h *oracle.History) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainMax, fmt.Errorf("%v are over", drainMax))
	defer cancel()
	return kafkatest.Await(ctx, "everything is processed", func(ctx context.Context) error {
		open, err := kafkatest.OpenTransactions(ctx, e.h.admin, e.app.observed()...)
		if err != nil {
			return err
		}
		lag, err := e.lag(ctx)
		if err != nil {
			return err
		}
		h.Open, h.Lag = open, lag
		if len(open)+len(lag) > 0 {
			return fmt.Errorf("open transactions on %v, lag %v", open, lag)
		}
		return e.obs.drained()
	})
}

// lag returns, for each raw topic, how many records the groups have not committed. For the repartition topic
// the observer gives the progress instead, because the topic ends in control records, and groups do not commit
// offsets behind these.
func (e *epoch) lag(ctx context.Context) (map[string]int64, error) {
	group := e.app.group("route")
	committed, err := e.h.admin.FetchOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	ends, err := e.h.admin.ListEndOffsets(ctx, e.app.rawTopics()...)
	if err != nil {
		return nil, err
	}
	lag := map[string]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		at, _ := committed.Lookup(o.Topic, o.Partition)
		if at.At < o.Offset {
			lag[fmt.Sprintf("%s %s/%d", group, o.Topic, o.Partition)] = o.Offset - at.At
		}
	})
	return lag, ends.Error()
}

// collect reads all topics again from the beginning, and also the local stores.
func (e *epoch) collect(ctx context.Context, h *oracle.History) (oracle.Config, error) {
	cfg, err := e.app.oracleConfig(ctx)
	if err != nil {
		return cfg, err
	}
	if err := e.acknowledged(ctx, h.Sent); err != nil {
		e.h.violate("traffic", "epoch %s: %v", e.name, err)
	}
	final, err := e.h.readCommitted(ctx, e.app.observed()...)
	if err != nil {
		return cfg, fmt.Errorf("read the topics of %s again: %w", e.app.id, err)
	}
	last := map[string]int64{} // newest offset, by topic/partition
	h.Final = map[string][]oracle.Record{}
	for i, r := range final {
		h.Final[r.Topic] = append(h.Final[r.Topic], toRecord(r))
		last[r.Topic+"/"+strconv.Itoa(int(r.Partition))] = r.Offset
		final[i] = nil
	}
	// If the observer has not read all records, the oracle reports that as K7.
	seeCtx, cancel := context.WithTimeout(ctx, seeMax)
	_ = kafkatest.Await(seeCtx, "the observer has read all records", func(context.Context) error { return e.obs.hasSeen(last) })
	cancel()
	e.obs.end()
	if e.obs.lost != nil {
		e.h.violate("observer", "epoch %s: %v", e.name, e.obs.lost)
	}
	h.Live, h.Offsets = e.obs.live, e.obs.samples
	shareEqual(h.Live, h.Final)
	h.Stores, err = e.readStores(ctx, h.Live[e.app.changelog()])
	return cfg, err
}

// hasSeen returns nil once the observer has read the newest record of every partition.
func (o *observer) hasSeen(last map[string]int64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := map[string]bool{}
	for topic, records := range o.live {
		// The newest records are at the end, so the search starts there. It reaches old records only if a partition
		// is nearly empty.
		for i := len(records) - 1; i >= 0 && len(seen) < len(last); i-- {
			place := topic + "/" + strconv.Itoa(int(records[i].Partition))
			if records[i].Offset == last[place] {
				seen[place] = true
			}
		}
	}
	if len(seen) < len(last) {
		return fmt.Errorf("%d of %d partitions are read to their end", len(seen), len(last))
	}
	return nil
}

// shareEqual makes records that are equal in both readings share their memory.
func shareEqual(live, final map[string][]oracle.Record) {
	type place struct {
		partition int32
		offset    int64
	}
	for topic, records := range final {
		at := make(map[place]*oracle.Record, len(live[topic]))
		for i := range live[topic] {
			r := &live[topic][i]
			at[place{r.Partition, r.Offset}] = r
		}
		for i := range records {
			f := &records[i]
			l := at[place{f.Partition, f.Offset}]
			if l == nil || l.Timestamp != f.Timestamp || (l.Key == nil) != (f.Key == nil) || (l.Value == nil) != (f.Value == nil) ||
				!bytes.Equal(l.Key, f.Key) || !bytes.Equal(l.Value, f.Value) || !slices.EqualFunc(l.Headers, f.Headers, sameHeader) {
				continue
			}
			*f = *l
		}
	}
}

func sameHeader(a, b oracle.Header) bool {
	return a.Key == b.Key && (a.Value == nil) == (b.Value == nil) && bytes.Equal(a.Value, b.Value)
}

// acknowledged checks that the raw topics contain exactly the records that the broker acknowledged. Otherwise the
// broker or the producer has failed, not the app.
func (e *epoch) acknowledged(ctx context.Context, sent []oracle.Sent) error {
	type place struct {
		topic     string
		partition int32
	}
	count := map[place]int64{}
	for i := range sent {
		count[place{sent[i].Topic, sent[i].Partition}]++
	}
	ends, err := e.h.admin.ListEndOffsets(ctx, e.app.rawTopics()...)
	if err != nil {
		return err
	}
	var errs []error
	ends.Each(func(o kadm.ListedOffset) {
		if n := count[place{o.Topic, o.Partition}]; n != o.Offset {
			errs = append(errs, fmt.Errorf("%s/%d has %d records, %d were acknowledged", o.Topic, o.Partition, o.Offset, n))
		}
	})
	return errors.Join(append(errs, ends.Error())...)
}
