package processor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// unsentBytesMax is how many bytes a worker produces before it waits for the brokers.
// franz-go encodes the records of a batch into memory of its own, and a batch of an internal
// topic may have 64 MiB.
const unsentBytesMax = 8 << 20

// produced sends the records of a worker's transactions and collects the first
// error of the open one.
type produced struct {
	client   *kgo.Client
	topology *app.Topology
	// unsent is the bytes since the last flush, unsentMax the most of them without one.
	// So no batch has more, unless it is a single record.
	unsent, unsentMax int

	// alone are the topics whose records are sent one at a time, and until when the
	// worker waits for each. Only the worker uses both.
	alone map[string]bool
	until time.Time

	mu        sync.Mutex
	firstErr  error
	refused   map[string]bool // topics that refused a record for good
	single    *kgo.Record     // sent alone
	singleErr error           // for which its topic refused it for good

	promise func(*kgo.Record, error) // one for all records: a closure for each is an allocation for each
}

// newProduced returns the records of a worker without any. The batches that it produces
// decompress to batchMax bytes at most.
func newProduced(client *kgo.Client, topology *app.Topology, batchMax int) *produced {
	p := &produced{client: client, topology: topology, refused: map[string]bool{}, unsentMax: min(unsentBytesMax, batchMax/2)}
	p.promise = func(r *kgo.Record, err error) {
		if err == nil {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if kafka.RefusesRecord(err) {
			p.refused[r.Topic] = true
			if r == p.single {
				p.singleErr = err
			}
		}
		if p.firstErr == nil {
			p.firstErr = fmt.Errorf("produce to %s/%d: %w", r.Topic, r.Partition, p.explain(r.Topic, err))
		}
	}
	return p
}

// explain returns what the worker has to do about the error of a record. A client never
// adopts the new id of a recreated topic, so that every transaction would abort.
func (p *produced) explain(topic string, err error) error {
	switch {
	case !errors.Is(err, kerr.UnknownTopicID):
		return kafka.Denied(err, "Write", kafka.ResourceTopic, topic)
	case p.topology.HasState(topic):
		return kafka.OperatorErrorf("topic %s was deleted and recreated while oncebus ran: offsets and state do not belong to it; stop all processes and run: oncebus accept --recreated %s", topic, topic)
	}
	return fmt.Errorf("%w: %w", kafka.ErrStaleTopic, err)
}

// send gives a record to the client, with a context without cancellation: the broker may
// still write a record that was cancelled in flight (A2). If it sends the record alone, it
// returns the error of a topic that refuses the record for good.
func (p *produced) send(r *kgo.Record) error {
	if p.alone[r.Topic] {
		return p.sendAlone(r)
	}
	p.sendBatched(r)
	return nil
}

// sendBatched gives a record to the client, which sends it with others.
func (p *produced) sendBatched(r *kgo.Record) {
	size := len(r.Key) + len(r.Value)
	for i := range r.Headers {
		size += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	if p.unsent > 0 && p.unsent+size > p.unsentMax {
		p.flush()
	}
	p.unsent += size
	p.client.Produce(context.Background(), r, p.promise)
}

// flush waits until the brokers have all records. end flushes again and returns the error.
func (p *produced) flush() {
	ctx, cancel := context.WithDeadline(context.Background(), p.until)
	defer cancel()
	_ = p.client.Flush(ctx)
	p.unsent = 0
}

// err returns the first produce error of the open transaction.
func (p *produced) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.firstErr
}

// reset drops the errors after the end of the transaction.
func (p *produced) reset() {
	p.mu.Lock()
	p.firstErr, p.single, p.singleErr = nil, nil, nil
	clear(p.refused)
	p.mu.Unlock()
	p.unsent = 0
}
