package state

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// residentBytes returns the resident memory of the process and the part of it that is of mapped files: the
// second and third field of /proc/self/statm, in pages.
func residentBytes() (all, files int64, err error) {
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, 0, fmt.Errorf("read the memory of this process: %w", err)
	}
	var size int64
	if _, err := fmt.Sscan(string(data), &size, &all, &files); err != nil {
		return 0, 0, fmt.Errorf("/proc/self/statm: %w", err)
	}
	page := int64(os.Getpagesize())
	return all * page, files * page, nil
}

// valueLogRanges returns the mappings of the value-log files in dir.
func valueLogRanges(dir string) ([]addressRange, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("path of the mapped files: %w", err)
	}
	data, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, fmt.Errorf("read the mappings of this process: %w", err)
	}
	var ranges []addressRange
	for line := range bytes.Lines(data) {
		path, found := mappedPath(line)
		if !found || filepath.Ext(path) != ".vlog" || filepath.Dir(path) != dir {
			continue
		}
		r, err := parseRange(line)
		if err != nil {
			return nil, err
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// mappedPath returns the path in a line of /proc/self/maps:
//
//	from-to permissions offset device inode   path
func mappedPath(line []byte) (string, bool) {
	at := bytes.IndexByte(line, '/')
	if at < 0 {
		return "", false
	}
	return string(bytes.TrimSuffix(line[at:], []byte("\n"))), true
}

func parseRange(line []byte) (addressRange, error) {
	fields := bytes.Fields(line)
	if len(fields) < 6 {
		return addressRange{}, fmt.Errorf("mapping %q has %d fields", line, len(fields))
	}
	from, to, _ := bytes.Cut(fields[0], []byte("-"))
	var numbers [3]uintptr
	for i, text := range [...][]byte{from, to, fields[2]} {
		n, err := strconv.ParseUint(string(text), 16, 64)
		if err != nil {
			return addressRange{}, fmt.Errorf("mapping %q: %w", line, err)
		}
		numbers[i] = uintptr(n)
	}
	return addressRange{numbers[0], numbers[1], numbers[2]}, nil
}

// release replaces the mapping by a mapping of the same part of the same file, without resident pages. The page
// cache keeps the data that was read and written.
//
// If the address is not a shared mapping of a file any more, remap_file_pages fails and changes nothing,
// whereas madvise(MADV_DONTNEED) would erase the heap there. madvise(MADV_PAGEOUT) also drops the page cache,
// so that look-ups read the disk again.
func (r addressRange) release() error {
	const protection = 0 // the only value allowed: the protection stays as it is
	_, _, errno := syscall.Syscall6(syscall.SYS_REMAP_FILE_PAGES, r.from, r.to-r.from, protection,
		r.offset/uintptr(os.Getpagesize()), syscall.MAP_NONBLOCK, 0)
	if errno != 0 {
		return fmt.Errorf("remap %x-%x: %w", r.from, r.to, errno)
	}
	return nil
}
