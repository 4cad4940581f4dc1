// Package jvm builds the Java programs that benchmarks compare oncebus with.
//
// It owns how Maven fetches the jars and javac compiles the sources, into the user's cache directory. It may import
// no package of the product.
//
// Invariants:
//   - A directory with jars or classes is always complete: a build that fails leaves no directory behind.
//   - The name of a directory contains a digest of its sources, so changed sources are built again.
package jvm
