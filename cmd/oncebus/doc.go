// Command oncebus removes duplicates from Kafka topics: it consumes topics that may contain duplicates and
// produces topics that contain none.
//
// # What it owns
//
// The interface to the operating system: environment, standard streams, signals, exit codes and the admin
// server. The packages below this directory belong to it:
//
//	cli       the command line: commands, flags, output, log, exit codes
//	settings  the environment as settings, and the routes file
//	demo      'oncebus demo': embedded broker, sample traffic, verification
//	page      the live page, its figures and its stream; access: who may read them
//	top       'oncebus top': the same figures in a terminal
//
// This directory has one file per command, or several files that begin with the command's name: run, ingress,
// check, doctor, key, get, forget, accept, deadletters, stats, selfaudit and version. service.go starts and
// supervises run and ingress. admin.go has their admin server, trace.go exports spans, and heap.go sets how
// often the garbage collector runs. describe.go writes in words what a route does; event.go, inspect.go and
// selection.go find the key that a command is about.
//
// # What it may import
//
// Everything but test harnesses and benchmarks; no package imports it. Only settings imports caarlos0/env, and
// only demo imports kfake (.ci/deps checks this).
//
// # Invariants
//
//   - A command contacts no broker and writes nothing before all its settings and routes are valid. It reports all
//     mistakes together and ends with exit code 2.
//   - Commands see the operating system as a cli.Process, so that a test can run a command line in its own process.
//   - A result that cannot be written to standard output is a failure (exit code 1).
//   - JSON output is an interface: its names must not change.
//
// # What looks wrong
//
//   - run stops the processor after the ingress, although both get the same signal: in-flight requests wait for the
//     processor's verdicts.
//   - The admin server stops after the service that it reports on, so that a probe sees the service stop.
//   - The exit codes of doctor are its verdict: 1 does not mean that the command failed.
//   - get and forget may end with exit code 2 after they have read the app's manifest: only the manifest shows whether
//     the settings and routes are those of the app.
package main
