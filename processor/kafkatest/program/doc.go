// Package program runs the built oncebus as a child process, for tests and benchmarks: it builds the binary, starts it, reads its
// log, waits until it is ready, reads its pages and metrics, measures what it costs, and ends it. Other programs that log and serve
// as oncebus does run here too, such as the benchmarks' contenders.
//
// A test that starts processes shares one binary with its package, by [Main] in TestMain and [Shared].
//
// It may import package kafkatest, whose child processes end with the parent, and the readers of Prometheus' text format; of
// oncebus itself nothing: it uses the program by its command line, environment, log and HTTP pages.
//
// Invariants:
//   - A process writes its log into a file of its own accord, without a pipe to the parent. So a log that nothing reads costs
//     nothing, which benchmarks need, and nothing is lost when the process is killed.
//   - [Log] holds as much memory as there are different messages, whatever the length of the log. [Log.Text] and [Log.Entries],
//     which read the whole file, are for tests.
//   - [Process.Stop] succeeds only with exit code 0.
//
// What looks wrong but is not:
//   - Requests close their connections: the idle ones would look like leaked goroutines to goleak.
//   - [UsageOf] reads /proc and not the rusage of the child, whose highest memory begins with that of the process that forked it.
package program
