//go:build unix

package state

import (
	"io/fs"
	"syscall"
)

// allocated returns the disk space of a file. Badger's open logs are sparse:
// their length says little.
func allocated(info fs.FileInfo) uint64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(st.Blocks) * 512
	}
	return uint64(info.Size())
}
