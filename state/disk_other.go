//go:build !unix

package state

import "io/fs"

func allocated(info fs.FileInfo) uint64 { return uint64(info.Size()) }
