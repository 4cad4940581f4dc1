//go:build unix

package kafkatest

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// The listeners of every cluster: one for clients, the harness and the brokers, and
// the controller's.
const (
	plainListener      = "PLAINTEXT"
	controllerListener = "CONTROLLER"
)

// serverProperties returns a node's configuration: internal topics small enough to
// load at once, no delay before a group's first rebalance, and short timeouts.
// brokers is the number of brokers.
func serverProperties(o options, node *Node, brokers int, quorum string) []byte {
	replicas := strconv.Itoa(min(brokers, replicasMax))
	minISR := strconv.Itoa(max(1, min(brokers, replicasMax)-1))
	p := map[string]string{
		"node.id":                                          strconv.Itoa(int(node.id)),
		"controller.quorum.voters":                         quorum,
		"controller.listener.names":                        controllerListener,
		"log.dirs":                                         filepath.Join(node.dir, "data"),
		"auto.create.topics.enable":                        "false",
		"num.partitions":                                   "1",
		"default.replication.factor":                       replicas,
		"min.insync.replicas":                              minISR,
		"offsets.topic.num.partitions":                     "4",
		"offsets.topic.replication.factor":                 replicas,
		"transaction.state.log.num.partitions":             "4",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    minISR,
		"share.coordinator.state.topic.num.partitions":     "1",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            minISR,
		"group.initial.rebalance.delay.ms":                 "0",
		// Tests that kill a group member wait for its session timeout, and readers
		// for its open transaction. By default Kafka accepts no session timeout under
		// 6 s, and checks transactions only every 10 s.
		"group.min.session.timeout.ms":                                "500",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
		// Compaction checks for work every second, not every 15.
		"log.cleaner.backoff.ms": "1000",
	}
	listeners(p, o, node)
	if brokers > 1 {
		// A killed or paused broker loses its partitions after 6 s, not 9, and a slow
		// follower its place in the ISR after 6 s, not 30. With shorter times a busy
		// machine would look dead.
		p["broker.session.timeout.ms"] = "6000"
		p["broker.heartbeat.interval.ms"] = "1000"
		p["replica.lag.time.max.ms"] = "6000"
	}
	maps.Copy(p, o.properties)
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&out, "%s=%s\n", name, p[name])
	}
	return []byte(out.String())
}

// listeners sets the addresses on which the node listens, and its role.
func listeners(p map[string]string, o options, node *Node) {
	_, quorumAddr, _ := strings.Cut(p["controller.quorum.voters"], "@")
	controller := controllerListener + "://" + quorumAddr
	protocols := []string{plainListener + ":PLAINTEXT", controllerListener + ":PLAINTEXT"}
	for _, l := range o.listeners {
		protocols = append(protocols, l.Name+":"+cmp.Or(l.Protocol, "PLAINTEXT"))
	}
	p["listener.security.protocol.map"] = strings.Join(protocols, ",")
	if node.controller {
		p["process.roles"], p["listeners"] = "controller", controller
		return
	}
	listen := []string{plainListener + "://" + node.addr}
	advertise := slices.Clone(listen)
	for _, l := range o.listeners {
		addr := node.listen[l.Name]
		listen = append(listen, l.Name+"://"+addr)
		if len(l.Advertise) > 0 {
			addr = l.Advertise[node.id-1]
		}
		advertise = append(advertise, l.Name+"://"+addr)
	}
	p["process.roles"] = "broker"
	if strings.HasPrefix(p["controller.quorum.voters"], p["node.id"]+"@") {
		p["process.roles"] = "broker,controller"
		listen = append(listen, controller)
	}
	p["listeners"], p["advertised.listeners"] = strings.Join(listen, ","), strings.Join(advertise, ",")
	p["inter.broker.listener.name"] = plainListener
}
