// Package program runs the built oncebus as a child process, for tests and benchmarks: it builds the binary, starts it, reads its
// log, waits until it is ready, reads its pages and metrics, measures its resource usage, and ends it. It also runs other programs
// with such a log and HTTP server, such as the benchmarks' contenders.
//
// A test that starts processes shares one binary with its package, by [Main] in TestMain and [Shared].
//
// It may import package kafkatest, whose child processes end with the parent, and the readers of Prometheus' text format. It
// imports no package of oncebus: it uses the program by its command line, environment, log and HTTP pages.
//
// Invariants:
//   - A process writes its log directly into a file, without a pipe to the parent. So an unread log uses no CPU time, which
//     benchmarks need, and a killed process loses no line.
//   - The memory of a [Log] grows with the number of different messages, not with the length of the log. [Log.Text] and [Log.Entries],
//     which read the whole file, are for tests.
//   - [Process.Stop] succeeds only with exit code 0.
//
// What looks wrong:
//   - Requests close their connections: goleak would report idle ones as leaked goroutines.
//   - [UsageOf] reads /proc, because the highest memory in the rusage of the child includes that of the process that forked it.
package program
