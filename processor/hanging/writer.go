package hanging

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// ErrUnknown reports that a transaction may or may not have been committed.
var ErrUnknown = errors.New("whether the last transaction is committed is unknown: run it again, it goes on where it stopped")

// IsFenced reports whether the error of a Writer says that another Writer has registered its
// transactional id.
func IsFenced(err error) bool {
	return slices.ContainsFunc([]error{kerr.ProducerFenced, kerr.InvalidProducerEpoch, kerr.InvalidTxnState, kerr.TransactionCoordinatorFenced},
		func(code error) bool { return errors.Is(err, code) })
}

// Writer writes transactions that commit no offsets, one after the other: for a command, or for the
// manifest. No transaction begins before the last one is known to be closed in each of its partitions.
// Only Produce may be called by several goroutines.
type Writer struct {
	Client *kgo.Client // with the transactional id

	closer   *Closer
	id       string
	producer int64
	denied   map[string]bool // topics that the user has no right to read

	mu      sync.Mutex
	written kadm.TopicsSet // partitions that the open transaction wrote to
	failed  error          // error of the first of its records that was not accepted
}

// Open closes what the last transaction of an id left open, and registers the id. The registration aborts an
// open transaction of another Writer with the same id, and fences that Writer. partitions are all partitions
// that a Writer of the id may have written to. Open waits for the leaders of these partitions until ctx is done.
//
// timeout bounds each transaction. options are added to the options of the Closer.
func (s *Closer) Open(ctx context.Context, id string, partitions kadm.TopicsSet, timeout time.Duration, options ...kgo.Opt) (*Writer, error) {
	client, err := kgo.NewClient(append(slices.Concat(s.Options, options),
		kgo.TransactionalID(id), kafka.TransactionTimeout(timeout), kafka.EndOnce(timeout))...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	w := &Writer{Client: client, closer: s, id: id, denied: map[string]bool{}, written: kadm.TopicsSet{}}
	if err = s.Close(ctx, &Last{ID: id, Partitions: partitions, TakesOver: true}); err == nil {
		w.producer, _, err = client.ProducerID(ctx)
	}
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("register %s: %w", id, kafka.Denied(err, "Write", kafka.ResourceTransactionalID, id))
	}
	return w, nil
}

// Close closes the Writer's client.
func (w *Writer) Close() { w.Client.Close() }

// Write runs one transaction. It calls produce, which calls Produce for each record. If produce or a record
// fails, Write aborts the transaction. After an error the Writer must not be used any more: the next Open ends
// what is still open. An error that wraps [ErrUnknown] says that the transaction may have been committed. An
// error that wraps [ErrHangs] says that the transaction was committed but is still open in some partition.
func (w *Writer) Write(ctx context.Context, produce func() error) error {
	if err := w.Client.BeginTransaction(); err != nil {
		return fmt.Errorf("begin a transaction: %w", err)
	}
	err := produce()
	if flushed := w.Client.Flush(ctx); flushed != nil {
		// Write sends no end here: a record that is still in flight might arrive after the end (A2).
		return errors.Join(err, fmt.Errorf("the brokers did not accept the records of %s in time: %w", w.id, flushed))
	}
	written, failed := w.take()
	if err = errors.Join(err, failed); err != nil {
		return errors.Join(err, w.Client.EndTransaction(ctx, kgo.TryAbort))
	}
	if err := kafka.AwaitStored(ctx, w.Client, written); err != nil {
		return fmt.Errorf("before the commit of %s: %w", w.id, err)
	}
	if err := w.Client.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	last := &Last{ID: w.id, Partitions: written}
	if err := w.closer.AwaitClosed(ctx, last, w.producer, w.denied); err != nil {
		return fmt.Errorf("the last transaction is committed, run it again, which closes it where it is open: %w", err)
	}
	return nil
}

// Produce hands a record of the open transaction to the client.
func (w *Writer) Produce(rec *kgo.Record) {
	// The context must never end: the broker may still write a record that was cancelled (A2).
	w.Client.Produce(context.Background(), rec, w.note)
}

// note records to which partition a record went, and the first error.
func (w *Writer) note(rec *kgo.Record, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.written.Add(rec.Topic, rec.Partition)
	if err != nil && w.failed == nil {
		w.failed = fmt.Errorf("produce to %s/%d: %w", rec.Topic, rec.Partition, kafka.Denied(err, "Write", kafka.ResourceTopic, rec.Topic))
	}
}

// take returns what note has recorded, and clears it.
func (w *Writer) take() (written kadm.TopicsSet, failed error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	written, failed = w.written, w.failed
	w.written, w.failed = kadm.TopicsSet{}, nil
	return written, failed
}
