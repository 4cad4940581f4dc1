//go:build unix

package kafkatest

import (
	"cmp"
	"fmt"
	"slices"
)

// Option changes how the nodes of a cluster are started.
type Option func(*options)

type options struct {
	properties map[string]string
	heapMiB    int // 0 for the default of the cluster's size
	listeners  []Listener
	apart      bool // the controller of a single broker is a process of its own
	shortLived bool // Java compiles for a fast start
}

func newOptions(opts []Option) options {
	o := options{properties: map[string]string{}}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithProperty sets one line of every node's server.properties, over the harness's own settings: broker settings, and with the
// prefix `log.` the defaults of new topics (log.message.timestamp.after.max.ms and its like). A controller of its own gets the
// line too.
func WithProperty(name, value string) Option {
	return func(o *options) { o.properties[name] = value }
}

// WithHeapMiB sets the size of each broker's Java heap; unless said 512 MiB for a node that is alone, else 384 MiB.
func WithHeapMiB(mib int) Option {
	return func(o *options) { o.heapMiB = mib }
}

// WithShortLife lets Java compile with its fast compiler alone. A start takes half the CPU time, and the code of a broker that runs for
// minutes stays slower. [Start] and [Shared] include it; a benchmark leaves it out.
func WithShortLife() Option {
	return func(o *options) { o.shortLived = true }
}

// WithController gives a broker that is alone a controller in a process of its own, as several brokers have: the controller then
// sees the broker leave, instead of leaving with it.
func WithController() Option {
	return func(o *options) { o.apart = true }
}

// Listener is a further way for clients to reach every node, besides the plain one that [Broker.Seeds] and the harness use.
// Settings of its own are properties: listener.name.<name in lower case>.<setting>.
type Listener struct {
	// Name is Kafka's name for it, such as PROXIED: capital letters, digits and _; not PLAINTEXT or CONTROLLER, which are taken.
	Name string
	// Protocol is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; PLAINTEXT if empty.
	Protocol string
	// Advertise are the addresses (host:port) that clients which came in here are sent to, one for each broker in the order of
	// their ids, such as a proxy's. None means where the node listens.
	Advertise []string
}

// WithListener opens a further listener on every broker, on a port of its own; see [Cluster.ListenAddrs].
func WithListener(l Listener) Option {
	return func(o *options) {
		l.Protocol = cmp.Or(l.Protocol, "PLAINTEXT")
		o.listeners = append(o.listeners, l)
	}
}

// validate reports options that cannot be for a cluster of n brokers.
func (o options) validate(n int) error {
	names := []string{plainListener, controllerListener}
	for _, l := range o.listeners {
		if l.Name == "" || slices.Contains(names, l.Name) {
			return fmt.Errorf("listener name %q: empty or taken; taken are %v", l.Name, names)
		}
		names = append(names, l.Name)
		if len(l.Advertise) > 0 && len(l.Advertise) != n {
			return fmt.Errorf("listener %s advertises %v: need one address for each of %d brokers, or none", l.Name, l.Advertise, n)
		}
	}
	return nil
}
