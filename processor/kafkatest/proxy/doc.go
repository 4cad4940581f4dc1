// Package proxy is a TCP proxy that understands Kafka's framing. It injects faults between clients and brokers: at one request or
// response of one API, of one client, a given number of times. It drops a request, or only its response (a commit with unknown
// outcome), delivers a request after its client's timeout, repeats one, refuses one, or changes a response. It can also stop one
// or both directions, add latency, limit bandwidth and reset connections. Every rule counts its strikes, so that a test can prove
// that its fault took place.
//
// A broker gets a listener whose advertised address is the proxy's. Clients whose seed is the proxy then use only the proxy, and
// the harness connects directly:
//
//	px, err := proxy.Listen(ctx, 3)
//	cluster, err := kafkatest.StartCluster(ctx, dir, 3,
//		kafkatest.WithListener(kafkatest.Listener{Name: "PROXIED", Protocol: "PLAINTEXT", Advertise: px.Addrs()}))
//	err = px.Forward(cluster.ListenAddrs("PROXIED"))
//	...ONCEBUS_BROKERS=strings.Join(px.Addrs(), ",")
//
//	fault, err := px.Add(proxy.Rule{
//		Match:  proxy.Match{APIs: []int16{kmsg.EndTxn.Int16()}, ClientID: "app-one"},
//		Action: proxy.DropResponse,
//		Count:  1,
//	})
//	err = fault.Wait(ctx, 1)
//
// Every request has a client id, by which rules choose clients: the proxy can cut off one process while its peer works, because
// oncebus's client ids contain application and instance. The proxy reads frames, so it accepts plain connections only.
//
// # What a connection through the proxy is
//
// Each connection of a client to a listener is one connection to that listener's node. Frames keep their order in each direction:
// a frame that is delayed, throttled or stopped by a blackhole delays the later ones, as in a network. The requests of a client
// that disconnects are still delivered.
package proxy
