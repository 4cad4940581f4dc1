// Package jvm builds the Java programs that benchmarks compare oncebus with.
//
// It owns how jars are fetched with Maven and sources compiled with javac, into
// the user's cache directory. It may import no package of the product.
//
// Invariants:
//   - A directory with jars or classes exists only complete: a build that fails
//     leaves none behind.
//   - The names of directories have a digest of their sources: a change builds
//     again.
package jvm
