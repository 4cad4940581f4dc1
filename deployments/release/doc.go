// Command release builds what a release of oncebus consists of, from a commit. Run it
// with make release; OPERATIONS.md says what is in it, and CONTRIBUTING.md how to cut one.
//
// It owns the commit's checkout (source), the binaries (build), the licences of all
// that is inside (licences), the archives (archive), the bill of materials (sbom), the
// container image (image) and the sums.
//
// # Invariants
//
//   - Two runs of one commit write equal bytes, in any directory, by any user, on any
//     machine. So the toolchain is the one that go.mod names, the environment of the
//     compiler is fixed, every time is the commit's, and every list is sorted.
//   - Only the commit is built: a changed or additional file of the work tree is not in it.
//   - A binary with a module without a known and allowed licence is not released.
//   - The output directory has a whole release or the one before, never a part.
//
// # What looks wrong
//
//   - The image is written here and not by buildah: its layers would depend on the
//     version of buildah. The test runs the image with buildah, which checks its form.
//   - Authorities of TLS come from a Go module and not from the machine: go.sum pins
//     them, and each machine has others.
package main
