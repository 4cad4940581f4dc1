// Package program runs the built oncebus as a child process, for tests and benchmarks. It builds the binary, starts
// it, reads its log, waits until it is ready, reads its pages and metrics, measures its resource usage, and ends it.
// It can also run other programs that write such a log and have an HTTP server, such as the contenders of the
// benchmarks.
//
// The tests of a package that start processes share one binary, by [Main] in TestMain and [Shared].
//
// It may import package kafkatest, whose child processes end with their parent, and the readers of Prometheus' text
// format. It imports no package of oncebus: it uses the program only by its command line, environment, log and HTTP
// pages.
//
// Invariants:
//   - A process writes its log directly into a file, without a pipe to the parent. A log that nobody reads therefore
//     costs no CPU time, which benchmarks need, and a killed process loses no line.
//   - The memory of a [Log] grows with the number of different messages, not with the length of the log. [Log.Text]
//     and [Log.Entries] read the whole file, so only tests call them.
//   - [Process.Stop] succeeds only if the exit code is 0.
//
// What looks wrong:
//   - Requests close their connections: otherwise goleak reports idle connections as leaked goroutines.
//   - [UsageOf] reads /proc and not the child's rusage, because the highest memory in the rusage includes the memory
//     of the process that forked the child.
package program
