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
	heapMiB    int // 0: the default of the cluster's size
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

// WithVersion sets the release of Apache Kafka, 3.6.0 or newer, in place of that of
// [Version].
func WithVersion(version string) Option {
	return func(o *options) { o.version = version }
}

// WithProperty sets one line of every node's server.properties, which overrides the
// harness's setting: broker settings, and with the prefix `log.` the defaults of new
// topics (such as log.message.timestamp.after.max.ms). A separate controller gets the
// line too.
func WithProperty(name, value string) Option {
	return func(o *options) { o.properties[name] = value }
}

// WithHeapMiB sets the size of each broker's Java heap. The default is 512 MiB for a
// single node, else 384 MiB.
func WithHeapMiB(mib int) Option {
	return func(o *options) { o.heapMiB = mib }
}

// WithShortLife lets Java compile with its fast compiler alone, collect garbage with one thread, and map Kafka's classes from an archive.
// A start takes half the CPU time, and the code of a broker that runs for minutes stays slower. [Start] and [Shared] include it; a
// benchmark leaves it out.
func WithShortLife() Option {
	return func(o *options) { o.shortLived = true }
}

// WithController gives a single broker a separate controller process, as several
// brokers have. The controller then notices when the broker leaves.
func WithController() Option {
	return func(o *options) { o.apart = true }
}

// Listener is a further listener of every node, in addition to the one that
// [Broker.Seeds] and the harness use. Its own settings are properties:
// listener.name.<name in lower case>.<setting>.
type Listener struct {
	// Name is Kafka's name for it, such as PROXIED: capital letters, digits and _;
	// not PLAINTEXT or CONTROLLER, which the harness uses.
	Name string
	// Protocol is PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL; PLAINTEXT if empty.
	Protocol string
	// Advertise has the addresses (host:port) that the brokers send to clients of
	// this listener, one for each broker in the order of their ids, such as a
	// proxy's. Empty: the address of the listener.
	Advertise []string
}

// WithListener opens a further listener on every broker, each on its own port; see
// [Cluster.ListenAddrs].
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
