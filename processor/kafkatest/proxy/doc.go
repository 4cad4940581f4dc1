// Package proxy is a TCP proxy that understands Kafka's framing, to put faults between clients and brokers where no socket tool
// can: at one request or response of one API, of one client, a given number of times. It loses a request or only its answer
// (the commit that is done and nobody knows), delivers a request long after its client has given up and moved on, repeats one,
// refuses one, changes an answer; and it knows the coarse faults too: silence in one direction or both, latency, little
// bandwidth, resets. Every rule counts how often it struck, so that a test can prove that its fault took place.
//
// A broker gets a listener whose advertised address is the proxy's, so that clients which start at the proxy stay with it, and
// the harness keeps a direct way beside it:
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
// Clients are told apart by their client id, which every request carries: one process (oncebus names itself by application and
// instance) can be cut off while its peer goes on. The proxy reads frames, so it takes plain connections only.
//
// # What a connection through the proxy is
//
// Each connection of a client is one connection to the node behind the listener it came in at. Frames keep their order in each
// direction: one that is delayed, throttled or held back by a blackhole delays those behind it, as a network does. A client that
// goes away while its requests are still on their way does not stop them.
package proxy
