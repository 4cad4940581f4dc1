// Package kafkatest runs a real Apache Kafka for tests and benchmarks: a KRaft node on the loopback address, or several, each with
// its own data directory, taken from the jars the project publishes on Maven Central. No container engine is needed, only Java 17
// and, the first time, Maven; the jars are then kept in the user's cache directory, with formatted storage and an archive of Kafka's
// classes, and later starts need no network.
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
// A test that stops, kills or restarts its broker starts its own with [Start]. Code without a [testing.TB] calls
// [StartBroker], or [StartCluster] for several brokers with replicated topics, each of which can be stopped, killed, paused and
// started again. Further listeners ([WithListener]) are for security settings and for the faults of package proxy below this one.
//
// Tests and benchmarks find more than the broker here, which builds on every system: [Await] and [Pause], [ReadCommitted] and
// [OpenTransactions] of any cluster, and an [Authority] for certificates.
//
// Environment:
//
//   - ONCEBUS_TEST_BROKERS, comma separated seed brokers: use this cluster and start none. Tests name and remove their own
//     topics. Tests that call [Start] still start a broker.
//   - ONCEBUS_TEST_KAFKA, such as 3.9.2: the release of Apache Kafka in place of [KafkaVersion], from 3.6 on. The first test that
//     needs it fetches its jars from Maven Central.
//   - CI=true: a machine on which Kafka cannot be started fails the test instead of skipping it.
//
// With -short [Start], [StartNodes] and [Shared] skip the test, also with CI=true: a test whose name begins with TestReal needs more
// than Go, and make verify runs it.
package kafkatest
