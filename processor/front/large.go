package front

import (
	"context"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// A largeSender sends events that fit into their topic only if they are compressed. Each of these events has to
// be alone in its batch, so the largeSender sends one event at a time to each place. A place is a partition of
// the repartition topic, or a topic for which the client chooses the partition. If an event has to wait for the
// leader of its partition, events for other places are sent meanwhile. The largeSender opens a Kafka client for
// the first such event, and uses it for all later ones.
type largeSender struct {
	mu     sync.Mutex // not held while an event is sent, because close must be able to end the sending
	places map[app.TaskID]*sync.Mutex
	client *kgo.Client
	users  map[*kgo.Client]int // for each open client, how many events it is sending
	closed bool
}

// send produces an event with the client that open makes, and closes the client after an error.
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

// place returns the lock of the place to which a record goes.
func (l *largeSender) place(rec *kgo.Record) *sync.Mutex {
	l.mu.Lock()
	defer l.mu.Unlock()
	id := app.TaskID{Topic: rec.Topic, Partition: rec.Partition}
	if l.places[id] == nil {
		l.places[id] = new(sync.Mutex)
	}
	return l.places[id]
}

// use returns the client, which the first call makes. The caller must call release.
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

// release ends the use of a client. A client that has failed gets no further event, and is closed when none of
// its events is being sent any more.
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

// close ends the sending of all events with an error, and refuses later events.
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
