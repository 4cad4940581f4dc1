// Command oncebus removes duplicates from Kafka topics: it consumes topics that
// may contain duplicates and produces topics that do not.
//
// # What it owns
//
// The operating system: environment, standard streams, signals, exit codes and
// the admin server. The packages below are its own:
//
//	cli       the command line: commands, flags, output, log, exit codes
//	settings  the environment as settings, and the routes file
//	demo      'oncebus demo': embedded broker, sample traffic, verification
//	page      the live page, its figures and its stream; access: who may read them
//	top       'oncebus top': the same figures in a terminal
//
// Here is one file per command, or several with its name: run, ingress, check,
// doctor, key, get, forget, accept, deadletters, stats, selfaudit and version. service.go starts
// run and ingress and supervises them, admin.go has the admin server, trace.go its
// spans, heap.go the garbage collector's pace. describe.go writes what a route does;
// event.go, inspect.go and selection.go find the key that a command needs.
//
// # What it may import
//
// Everything but test harnesses and benchmarks; no package imports it. Only
// settings imports caarlos0/env, only demo imports kfake (.ci/deps).
//
// # Invariants
//
//   - A command contacts no broker and writes nothing before all its settings and
//     routes are valid. It reports all mistakes together and ends with exit code 2.
//   - Commands see the operating system as a cli.Process, so that a test can run a
//     command line in its own process.
//   - A result that cannot be written to standard output is a failure (exit code 1).
//   - JSON output is an interface: its names stay.
//
// # What looks wrong
//
//   - run stops the processor after the ingress, although both get the same
//     signal: in-flight requests wait for the processor's verdicts.
//   - The admin server outlives what it reports on, so that a probe sees the stop.
//   - The exit codes of doctor are its verdict: 1 is no failure of the command.
//   - get and forget may end with exit code 2 after they read the app's manifest:
//     only it shows whether settings and routes are those of the app.
package main
