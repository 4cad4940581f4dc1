// Package kafkatest runs a real Apache Kafka for tests and benchmarks: one KRaft node or several on the loopback
// address, each with its own data directory. It runs Kafka from the jars that the Kafka project publishes on Maven
// Central, so it needs no container engine, only Java 17 and, the first time, Maven. The harness then keeps the jars
// in the user's cache directory, together with formatted storage and an archive of Kafka's classes. Later starts need
// no network.
//
// A package that needs one broker for all its tests:
//
//	func TestMain(m *testing.M) { goleak.VerifyTestMain(kafkatest.Main(m)) }
//
//	func TestRealSomething(t *testing.T) {
//		broker := kafkatest.Shared(t)
//		...kgo.SeedBrokers(broker.Seeds()...)
//	}
//
// A test that stops, kills or restarts its broker starts a broker of its own with [Start]. Code without a
// [testing.TB] calls [StartBroker], or [StartCluster] for several brokers with replicated topics; each broker can be
// stopped, killed, paused and started again. [WithListener] opens further listeners, for tests of security settings
// and for the network faults of package proxy, which is in a directory of this package.
//
// The package also has helpers that need no broker of its own and build on every system: [Await] and [Pause],
// [ReadCommitted] and [OpenTransactions] for any cluster, and an [Authority], which issues certificates.
//
// Environment:
//
//   - ONCEBUS_TEST_BROKERS, comma separated seed brokers: [Shared] uses this cluster and starts none. Tests name and
//     remove their own topics. Tests that call [Start] still start a broker.
//   - ONCEBUS_TEST_KAFKA, such as 3.9.2: the release of Apache Kafka to run instead of [KafkaVersion], from 3.6 on.
//     The first test that needs the release fetches its jars from Maven Central.
//   - CI=true: if Kafka cannot be started on this machine, tests fail instead of being skipped.
//
// With -short, [Start], [StartNodes] and [Shared] skip the test, even with CI=true: a test whose name begins with
// TestReal needs more than Go, and make verify runs it.
package kafkatest
