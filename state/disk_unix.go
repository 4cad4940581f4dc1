//go:build unix

package state

import (
	"io/fs"
	"syscall"
)

// allocated returns the disk space that a file takes. Badger's open logs are sparse, so they take less than
// their length.
func allocated(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Blocks) * 512
	}
	return uint64(info.Size())
}
