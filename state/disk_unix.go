//go:build unix

package state

import (
	"io/fs"
	"syscall"
)

// allocated returns the disk space of a file, which is less than the length of
// Badger's open logs: they are sparse.
func allocated(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Blocks) * 512
	}
	return uint64(info.Size())
}
