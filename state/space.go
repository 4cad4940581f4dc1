package state

import (
	"fmt"
	"syscall"
)

// Space is the disk space of a file system, in bytes.
type Space struct {
	Free  uint64 // that this process may still take
	Total uint64 // Free and what is taken; what is kept for root is in neither
}

// FreePercent returns Free in percent of Total.
func (s Space) FreePercent() float64 { return 100 * float64(s.Free) / float64(max(s.Total, 1)) }

// DiskSpace returns the space of the file system that dir is on. A full disk
// kills the process with SIGBUS, because Badger writes to mapped files; so it
// has to be known before.
func DiskSpace(dir string) (Space, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return Space{}, fmt.Errorf("disk space of %s: %w", dir, err)
	}
	block := uint64(st.Bsize)
	free := block * st.Bavail
	return Space{Free: free, Total: free + block*(st.Blocks-st.Bfree)}, nil
}
