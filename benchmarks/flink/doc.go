// Package flink is a peer for benchmarks: a deduplicator on Apache Flink.
//
// It owns FlinkDeduplicator.java, its jars and its settings. It may import packages
// bench, which has the settings of a task, and jvm, which builds it.
//
// Invariants:
//   - The Java program reads every setting that Command sets, and no other: a test
//     compares the two.
//
// What looks wrong:
//   - Job manager and task manager are threads of one process, so a fault strikes both.
//     A cluster would keep the job manager, and restart only the tasks of a task
//     manager.
package flink
