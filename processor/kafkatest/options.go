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
	version    string
	properties map[string]string
	heapMiB    int // 0 means the default for the size of the cluster
	listeners  []Listener
	apart      bool // the controller of a single broker is a separate process
	shortLived bool // Java compiles for a fast start
	stepped    bool // StepClock sets the clock of the nodes
}

func newOptions(opts []Option) options {
	o := options{version: Version(), properties: map[string]string{}}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithVersion sets the release of Apache Kafka to run, 3.6.0 or newer. The default is [Version].
func WithVersion(version string) Option {
	return func(o *options) { o.version = version }
}

// WithProperty sets one line in every node's server.properties and overrides the harness's own setting. Use it for
// broker settings and, with the prefix `log.`, for the defaults of new topics (such as
// log.message.timestamp.after.max.ms). A separate controller process gets the line too.
func WithProperty(name, value string) Option {
	return func(o *options) { o.properties[name] = value }
}

// WithHeapMiB sets the size of each broker's Java heap, in MiB. The default is 512 for a single node, and 384 for
// each node of a larger cluster.
func WithHeapMiB(mib int) Option {
	return func(o *options) { o.heapMiB = mib }
}

// WithShortLife makes a broker start faster: Java compiles with its fast compiler alone, collects garbage with one
// thread, and maps Kafka's classes from an archive. A start then takes half the CPU time, but the code of a broker
// that runs for minutes stays slower. [Start] and [Shared] use this option; benchmarks leave it out.
func WithShortLife() Option {
	return func(o *options) { o.shortLived = true }
}

// WithController gives a single broker a separate controller process, which clusters of several brokers always have.
// The controller then notices when the broker leaves.
func WithController() Option {
	return func(o *options) { o.apart = true }
}

// Listener is a listener that every node opens in addition to the listener that [Broker.Seeds] and the harness use.
// Settings of a listener are properties with the name listener.name.<name in lower case>.<setting>.
type Listener struct {
	// Name is Kafka's name for the listener, such as PROXIED: capital letters, digits and _. The names PLAINTEXT and
	// CONTROLLER are not allowed, because the harness uses them.
	Name string
	// Protocol is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; PLAINTEXT if empty.
	Protocol string
	// Advertise has the addresses (host:port) that the brokers send to the clients of this listener, such as the
	// addresses of a proxy: one address for each broker, in the order of the broker ids. If it is empty, a broker
	// advertises the address on which it listens.
	Advertise []string
}

// WithListener opens a further listener on every broker. Each broker listens on its own port, which
// [Cluster.ListenAddrs] returns.
func WithListener(l Listener) Option {
	return func(o *options) {
		l.Protocol = cmp.Or(l.Protocol, "PLAINTEXT")
		o.listeners = append(o.listeners, l)
	}
}

// validate returns an error for options that contradict a cluster of n brokers.
func (o options) validate(n int) error {
	if err := validateVersion(o.version); err != nil {
		return err
	}
	names := []string{plainListener, controllerListener}
	for _, l := range o.listeners {
		if l.Name == "" || slices.Contains(names, l.Name) {
			return fmt.Errorf("listener name %q is empty or taken; taken are %v", l.Name, names)
		}
		names = append(names, l.Name)
		if len(l.Advertise) > 0 && len(l.Advertise) != n {
			return fmt.Errorf("listener %s advertises %v: need one address for each of %d brokers, or none", l.Name, l.Advertise, n)
		}
	}
	return nil
}
