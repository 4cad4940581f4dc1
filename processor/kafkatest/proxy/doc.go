// Package proxy is a TCP proxy that understands Kafka's framing. It injects faults between clients and brokers: at a
// request or response of one API, from one client, a given number of times. A rule can drop a request, or only its
// response (a commit with unknown outcome), deliver a request after its client's timeout, repeat a request, refuse
// it, or change a response. A rule can also stop one or both directions of a connection, add latency, limit bandwidth
// and reset connections. Every rule counts its strikes, so that a test can prove that its fault took place.
//
// A broker gets a listener whose advertised address is the address of the proxy. Clients with the proxy as their seed
// then use only the proxy, while the test harness connects to the brokers directly:
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
// Every request has a client id, by which rules choose clients. oncebus's client ids contain the application and the
// instance, so the proxy can cut off one process while the other processes of the app keep working. The proxy reads
// frames, so it accepts only connections without TLS.
//
// # What a connection through the proxy is
//
// For each connection of a client to a listener, the proxy makes one connection to that listener's node. Frames keep
// their order in each direction: a frame that is delayed, throttled or stopped by a blackhole also delays the frames
// after it, as in a network. If a client disconnects, the proxy still delivers the requests that it has received.
package proxy
