// Command faults runs oncebus against a real Apache Kafka while it damages both, and proves that no event was lost or
// emitted twice.
//
//	go run ./benchmarks/faults -duration 30m -seed 7
//	ONCEBUS_TEST_KAFKA=3.9.2 go run ./benchmarks/faults -round rows
//	go run ./benchmarks/faults -apps 12 -duration 1h -min-faults 5000 -min-point 200 -rate 720 -interval 300ms -epoch 3m -lenient
//	go run ./benchmarks/faults -scenario upgrade
//
// The program under test is cmd/oncebus, built with the tag failpoints, in child processes. A seeded generator fills
// the input topics. An executor that is faulty on purpose works on the events of the routes in claim mode. The
// observer reads all topics read_committed from the first record on. The campaign draws faults from the matrix
// (faults_*.go), up to three at once. A run consists of epochs, and each epoch has its own app. At the end of an
// epoch the harness ends all faults, waits until the app has processed all input, and gives the history to package
// oracle, which computes what the app should have emitted.
//
// With -apps a run has several small apps side by side, each with its own epochs, faults and checks, so that
// several faults strike each second. A run with -apps leaves out the faults that would affect all apps (see
// crowdRows). Each start of a process after a kill arms the process for the next fault point (see killChain).
//
// It owns the matrix of faults, the schedule, the traffic, and the history. It may import the harness packages
// kafkatest, proxy, program and oracle, and from the product the packages that it damages or compares with: state
// with its fault points, and dedup. It does not import processor: the program runs as a process.
//
// Invariants:
//   - The seed decides the schedule and the traffic. The exact moment at which a fault strikes also depends on
//     the machine.
//   - If a run finds anything wrong, its history, logs and journal are kept.
//   - The report is written after each epoch. After a first SIGTERM the run draws no more faults, checks its epochs
//     and reports; a second SIGTERM ends it at once.
//   - A process may end only if a fault or the harness ends it (slot.watch).
//   - Faults wait for log messages of the program. These messages are constants here, and must be changed
//     together with the messages in the program.
//
// What looks wrong:
//   - To see that a store is restored, a run reads /readyz and the log, not the state directory: only the process
//     decides which files it trusts.
//   - The harness samples the offsets of the dedup group only once a second. The oracle checks that the offsets never
//     go back, which needs no complete list.
//   - When a wall clock steps, it steps only for the estimate of broker time, which is the only reader of the wall
//     clock for verdicts (failpoint.WallStep). The clock of this machine does not step.
//   - The oracle does not judge a ledger (ledger.go). A ledger keeps its own account, because after some decisions
//     the log no longer says what was emitted.
//   - Faults of slow disks mount loop devices and freeze them (disk_loop.go). If a run is killed while a disk is
//     frozen, the mount stays: umount it by hand.
//   - The scenario previous builds an earlier commit and starts the app with it. In a checkout without that commit
//     the scenario is left out, with a line that says so.
//   - With -lenient all waits are ten times as long, for a loaded machine.
//
// Exit codes: 0 nothing was wrong; 1 a promise was broken, a fault never struck, or there were fewer faults than
// requested; 2 wrong flags.
package main
