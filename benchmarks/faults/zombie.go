//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"oncebus/processor/kafkatest"
)

// playZombie stops one of two processes for longer than both timeouts and resumes it while its successor runs.
// The process is recognised by the ids of its producers. No transaction that it began before the stop may be
// committed after the successor's first commit. Later the same process must commit again.
func playZombie(ctx context.Context, e *epoch, round int) ([]time.Duration, error) {
	if err := e.two(ctx); err != nil {
		return nil, err
	}
	s := e.base[round%2]
	proc := s.current()
	if err := s.signal(syscall.SIGSTOP); err != nil {
		return nil, err
	}
	stopped := time.Now()
	frozen, err := e.producers(ctx, s)
	err = errors.Join(err, kafkatest.Pause(ctx, max(sessionTimeout, transactionTimeout)+4*time.Second), s.signal(syscall.SIGCONT))
	if err != nil {
		return nil, err
	}
	woken := time.Now()
	if e.obs.firstCommits(frozen, stopped) == nil {
		return nil, fmt.Errorf("no other process took over from process %s while it was stopped", s.name)
	}
	waiting, cancel := context.WithTimeout(ctx, quietMax)
	defer cancel()
	err = kafkatest.Await(waiting, "the zombie commits again", func(context.Context) error {
		if !e.obs.wroteAgain(frozen, woken) {
			return errors.New("it has no checkpoint")
		}
		return nil
	})
	took := time.Since(woken)
	if err != nil {
		return nil, err
	}
	if err := proc.Ended(); err != nil {
		return nil, err
	}
	if s.current() != proc {
		return nil, fmt.Errorf("process %s was replaced", s.name)
	}
	if late := e.obs.lateCommits(frozen, stopped); len(late) > 0 {
		return nil, fmt.Errorf("%d transactions of the zombie come after its successor's first commit, the first at %s/%d/%d",
			len(late), e.app.changelog(), late[0].partition, late[0].offset)
	}
	e.h.note("zombie", map[string]any{"process": s.name, "producers": len(frozen), "late": 0, "took": took.Seconds()})
	return []time.Duration{took}, nil
}

// producers returns the producer ids of a process in the dedup stage.
func (e *epoch) producers(ctx context.Context, s *slot) (map[int64]bool, error) {
	var transactions []string
	for worker := range workers {
		transactions = append(transactions, fmt.Sprintf("%s-dedup-%d/%s", e.app.id, worker, s.name))
	}
	described, err := e.h.admin.DescribeTransactions(ctx, transactions...)
	if err != nil {
		return nil, fmt.Errorf("describe the transactions of process %s: %w", s.name, err)
	}
	ids := map[int64]bool{}
	for _, t := range described {
		if t.Err != nil {
			return nil, fmt.Errorf("describe transaction %s: %w", t.TxnID, t.Err)
		}
		ids[t.ProducerID] = true
	}
	return ids, nil
}

// firstCommits returns, by partition, the first checkpoint that another producer committed after the time stopped. It
// returns nil if there is none.
func (o *observer) firstCommits(frozen map[int64]bool, stopped time.Time) map[int32]write {
	o.mu.Lock()
	defer o.mu.Unlock()
	var first map[int32]write
	had := map[int32]bool{} // partitions that these producers had before the stop
	for _, w := range o.writers {
		zombie := frozen[w.producer]
		switch {
		case w.seen.Before(stopped):
			had[w.partition] = zombie // the last write before the stop counts
		case !zombie && had[w.partition]:
			if first == nil {
				first = map[int32]write{}
			}
			if _, ok := first[w.partition]; !ok {
				first[w.partition] = w
			}
		}
	}
	return first
}

// wroteAgain reports whether these producers have committed since the time woken.
func (o *observer) wroteAgain(frozen map[int64]bool, woken time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.ContainsFunc(o.writers, func(w write) bool { return frozen[w.producer] && w.seen.After(woken) })
}

// lateCommits returns the transactions that the producers had begun before the stop and that come after the
// first commit of their successor. Such a transaction is recognised by its sequence, which does not follow the
// sequence of the previous transaction in the log. The producer's epoch would not show it, because a client
// that was stopped between two transactions continues with the same epoch.
func (o *observer) lateCommits(frozen map[int64]bool, stopped time.Time) []write {
	first := o.firstCommits(frozen, stopped)
	o.mu.Lock()
	defer o.mu.Unlock()
	var late []write
	last := map[int32]int64{} // the highest sequence so far, by partition
	for _, w := range o.writers {
		successor, taken := first[w.partition]
		if frozen[w.producer] && taken && w.offset > successor.offset && w.sequence <= last[w.partition] {
			late = append(late, w)
		}
		last[w.partition] = max(last[w.partition], w.sequence)
	}
	return late
}
