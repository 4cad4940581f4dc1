package front

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// A largeSender sends events that fit into their topic only compressed. Each has to be alone in its
// batch, so a place gets one at a time: a partition of the repartition topic, or a topic whose client
// chooses the partition. An event that waits for a leader lets those of other places pass. The first
// such event makes the client of all.
type largeSender struct {
	mu     sync.Mutex // not kept while an event is sent: close ends that
	places map[app.TaskID]*sync.Mutex
	client *kgo.Client
	users  map[*kgo.Client]int // of a client that is open: how many events it sends
	closed bool
}

// send produces an event with a client that open makes, and drops that client after an error.
func (l *largeSender) send(rec *kgo.Record, open func() (*kgo.Client, error)) error {
	place := l.place(rec)
	place.Lock()
	defer place.Unlock()
	client, err := l.use(open)
	if err != nil {
		return err
	}
	err = client.ProduceSync(context.Background(), rec).FirstErr() // never cancelled, see IngressClient.send
	l.release(client, err != nil)
	return err
}

func (l *largeSender) place(rec *kgo.Record) *sync.Mutex {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := app.TaskID{Topic: rec.Topic, Partition: rec.Partition}
	if l.places[id] == nil {
		l.places[id] = new(sync.Mutex)
	}
	return l.places[id]
}

func (l *largeSender) use(open func() (*kgo.Client, error)) (*kgo.Client, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, kgo.ErrClientClosed
	}
	if l.client == nil {
		client, err := open()
		if err != nil {
			return nil, err
		}
		l.client = client
	}
	l.users[l.client]++
	return l.client, nil
}

// release ends the use of a client. One that failed gets no further event, and is closed with its last.
func (l *largeSender) release(client *kgo.Client, failed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.users[client]--
	if failed && l.client == client {
		l.client = nil
	}
	if l.client != client && l.users[client] == 0 {
		delete(l.users, client)
		client.Close()
	}
}

// close fails the events that are sent, and refuses later ones.
func (l *largeSender) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed, l.client = true, nil
	for client := range l.users {
		client.Close()
	}
}

func newLargeSender() *largeSender {
	return &largeSender{places: map[app.TaskID]*sync.Mutex{}, users: map[*kgo.Client]int{}}
}
