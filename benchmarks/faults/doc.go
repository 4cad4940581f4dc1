// Command faults runs oncebus against a real Apache Kafka while it breaks both,
// and proves that no event was lost or emitted twice.
//
//	go run ./benchmarks/faults -duration 30m -seed 7
//	ONCEBUS_TEST_KAFKA=3.9.2 go run ./benchmarks/faults -round rows
//	go run ./benchmarks/faults -apps 12 -duration 1h -min-faults 5000 -min-point 200 -rate 720 -interval 300ms -epoch 3m -lenient
//	go run ./benchmarks/faults -scenario upgrade
//
// The program under test is cmd/oncebus, built with the tag failpoints, in child
// processes. A seeded generator fills the input topics. A faulty executor works on
// the events of routes in claim mode. The observer reads all topics read_committed
// from the first record on. The campaign draws faults from the matrix
// (faults_*.go), up to three at once. A run has epochs, each with an app of its
// own: at the end of an epoch the harness heals everything, waits until the app
// has processed all input, and gives the history to package oracle, which computes
// what the app should have emitted.
//
// With -apps a run has several small apps side by side, each with epochs, faults and
// checks of its own, so that several faults strike each second. It leaves out the
// faults that would hit all apps (crowdRows). A start of a process after a kill arms it
// for the next fault point (killChain).
//
// It owns the matrix of faults, the schedule, the traffic, and the history. It
// may import the harness packages kafkatest, proxy, program and oracle, and of the
// product what it damages or compares: state and its fault points, and dedup. It
// does not import processor: the program runs as a process.
//
// Invariants:
//   - The seed decides the schedule and the traffic. When faults strike also
//     depends on the machine.
//   - A run keeps history, logs and journal if it finds anything.
//   - The report is written after each epoch. After a first SIGTERM the run draws no
//     more faults, checks its epochs and reports; a second one ends it at once.
//   - A process may end only if a fault or the harness ends it (slot.watch).
//   - The program's log messages that faults wait for are constants here, and have
//     to follow the program's.
//
// What looks wrong:
//   - A run reads /readyz and the log, not the state directory, to see a restored
//     store: only the process decides which files it trusts.
//   - The harness samples the offsets of the dedup group once a second only: the
//     oracle checks that they never go back, which needs no complete list.
//   - A wall clock steps for the estimate of broker time only, which is what reads it for
//     verdicts (failpoint.WallStep). This machine's clock does not step.
//   - A ledger (ledger.go) is judged by its own account, not by the oracle: after some
//     decisions the log no longer says what was emitted.
//   - Faults of slow disks mount loop devices and freeze them (disk_loop.go). A run that
//     is killed while one is frozen leaves the mount: umount it by hand.
//   - The scenario previous builds an earlier commit and starts the app with it. In a
//     checkout without that commit it is left out, with a line that says so.
//   - With -lenient waits are ten times as long, for a loaded machine.
//
// Exit codes: 0 nothing was wrong; 1 a promise was broken, a fault never struck,
// or there were fewer faults than requested; 2 wrong flags.
package main
