// Package proxy is a TCP proxy that understands Kafka's framing, to put faults between clients and brokers where no socket tool
// can: at one request or response of one API, of one client, a given number of times. It loses a request or only its response
// (the commit that is done while its client does not know), delivers a request long after its client stopped waiting, repeats one,
// refuses one, changes a response. The coarse faults are there too: silence in one direction or both, latency, little
// bandwidth, resets. Every rule counts how often it struck, so that a test can prove that its fault took place.
//
// A broker gets a listener whose advertised address is the proxy's, so that clients which start at the proxy stay with it, and
// the harness keeps the direct way:
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
// Every request carries its client id, by which rules choose clients: the proxy can cut one process off (oncebus names itself by
// application and instance) while its peer works. The proxy reads frames, so it takes plain connections only.
//
// # What a connection through the proxy is
//
// Each connection of a client is one connection to the node behind the listener it came in at. Frames keep their order in each
// direction: one that is delayed, throttled or held back by a blackhole delays those behind it, as a network does. A client that
// goes away while its requests are still on their way does not stop them.
package proxy
