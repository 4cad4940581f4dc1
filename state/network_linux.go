package state

import (
	"fmt"
	"syscall"
)

// networkTypes are the statfs(2) types of network file systems.
var networkTypes = map[uint32]string{
	0x6969:     "NFS",
	0x517b:     "SMB",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x00c36400: "Ceph",
	0x5346414f: "AFS",
	0x73757245: "Coda",
	0x0bd00bd0: "Lustre",
}

// NetworkFS returns the name of the network file system of dir, or "" for any
// other file system. Locks and mapped files are unreliable on a network file
// system (hazard E7).
func NetworkFS(dir string) (string, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return "", fmt.Errorf("file system of %s: %w", dir, err)
	}
	return networkTypes[uint32(st.Type)], nil // 32 bits, with or without a sign
}
