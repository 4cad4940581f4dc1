package state

import (
	"fmt"
	"syscall"
)

// Space is the disk space of a file system, in bytes.
type Space struct {
	Free  uint64 // available to this process
	Total uint64 // free and used; without the space reserved for root
}

// FreePercent returns Free in percent of Total.
func (s Space) FreePercent() float64 { return 100 * float64(s.Free) / float64(max(s.Total, 1)) }

// DiskSpace returns the space of the file system of dir. Callers must check it
// in advance: Badger writes to mapped files, so a full disk kills the process
// with SIGBUS.
func DiskSpace(dir string) (Space, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return Space{}, fmt.Errorf("disk space of %s: %w", dir, err)
	}
	block := uint64(st.Bsize)
	free := block * st.Bavail
	return Space{Free: free, Total: free + block*(st.Blocks-st.Bfree)}, nil
}
