// Command release builds everything that a release of oncebus consists of, from a commit. Run it with make release.
// OPERATIONS.md says what is in a release, and CONTRIBUTING.md how to make one.
//
// It owns the commit's checkout (source), the binaries (build), the licences of everything inside (licences), the
// archives (archive), the bill of materials (sbom), the container image (image) and the check sums.
//
// # Invariants
//
//   - Two runs for the same commit write equal bytes, in any directory, by any user, on any machine. Therefore the
//     toolchain is the one that go.mod names, the environment of the compiler is fixed, every time is the time of the
//     commit, and every list is sorted.
//   - A release contains the commit only: changed or additional files of the work tree are not in it.
//   - A binary that contains a module without a known and allowed licence is not released.
//   - The output directory has either a whole release or the previous release, never a part.
//
// # What looks wrong
//
//   - This command writes the image itself and does not call buildah: the layers of buildah depend on its version. A
//     test runs the image with buildah, which thereby checks the form of the image.
//   - The certificates of TLS authorities come from a Go module and not from the machine: go.sum pins them, while
//     each machine has other ones.
package main
