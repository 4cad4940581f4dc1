package front

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

// A largeSender sends events that fit into their topic only compressed, one at a time, since each
// has to be alone in its batch. The first such event makes its client.
type largeSender struct {
	sending sync.Mutex

	mu     sync.Mutex // not kept while an event is sent: close ends that
	client *kgo.Client
	closed bool
}

// send produces an event with a client that open makes, and drops that client after an error.
func (l *largeSender) send(rec *kgo.Record, open func() (*kgo.Client, error)) error {
	l.sending.Lock()
	defer l.sending.Unlock()
	client, err := l.use(open)
	if err != nil {
		return err
	}
	if err = client.ProduceSync(context.Background(), rec).FirstErr(); err != nil { // never cancelled, see IngressClient.send
		l.drop()
	}
	return err
}

func (l *largeSender) use(open func() (*kgo.Client, error)) (*kgo.Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, kgo.ErrClientClosed
	}
	if l.client != nil {
		return l.client, nil
	}
	client, err := open()
	l.client = client
	return client, err
}

func (l *largeSender) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.client != nil {
		l.client.Close()
		l.client = nil
	}
}

// close fails the event that is sent, and refuses later ones.
func (l *largeSender) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.drop()
}
