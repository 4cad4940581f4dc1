package processor

import (
	"context"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// produced sends the records of a worker's transactions and collects the first
// error of the open one.
type produced struct {
	client *kgo.Client

	mu       sync.Mutex
	firstErr error

	promise func(*kgo.Record, error) // one for all records: a closure each would be an allocation each
}

func newProduced(client *kgo.Client) *produced {
	p := &produced{client: client}
	p.promise = func(r *kgo.Record, err error) {
		if err == nil {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.firstErr == nil {
			p.firstErr = fmt.Errorf("produce to %s/%d: %w", r.Topic, r.Partition, kafka.Denied(err, "Write", kafka.ResourceTopic, r.Topic))
		}
	}
	return p
}

// send gives a record to the client. The context can never be cancelled: a
// record that was cancelled in flight may still be written (A2).
func (p *produced) send(r *kgo.Record) { p.client.Produce(context.Background(), r, p.promise) }

// err returns the first produce error of the open transaction.
func (p *produced) err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.firstErr
}

// reset forgets the error: the transaction has ended.
func (p *produced) reset() {
	p.mu.Lock()
	p.firstErr = nil
	p.mu.Unlock()
}
