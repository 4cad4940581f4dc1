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

// The listeners that every cluster has: plainListener serves clients, the harness and the other brokers;
// controllerListener serves the controller.
const (
	plainListener      = "PLAINTEXT"
	controllerListener = "CONTROLLER"
)

// serverProperties returns a node's server.properties. The settings are for tests: internal topics are small enough
// to load at once, a group's first rebalance has no delay, and timeouts are short. brokers is the number of brokers
// in the cluster.
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
		// Tests that kill a group member wait for its session timeout; readers wait until the broker aborts the
		// member's open transaction. By default Kafka accepts no session timeout below 6 s and looks for expired
		// transactions only every 10 s.
		"group.min.session.timeout.ms":                                "500",
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
		// The log cleaner looks for work every second; the default is 15 s.
		"log.cleaner.backoff.ms": "1000",
	}
	listeners(p, o, node)
	if brokers > 1 {
		// A killed or paused broker loses its partitions after 6 s (default 9 s). A slow follower leaves the ISR
		// after 6 s (default 30 s). With shorter times the nodes of a busy machine would look dead.
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
