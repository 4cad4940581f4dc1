// Package flink is a peer for benchmarks: a deduplicator on Apache Flink.
//
// It owns FlinkDeduplicator.java, its jars and its settings. It may import packages bench, which has the settings of
// a task, and jvm, which builds the program.
//
// Invariants:
//   - The Java program reads exactly the settings that Command sets: a test compares them.
//
// What looks wrong:
//   - Job manager and task manager are threads of one process, so a fault of the process affects both. In a
//     cluster the job manager would survive and restart only the tasks of the task manager that failed.
package flink
