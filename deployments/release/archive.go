package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"time"
)

// entry is a file or a directory of an archive.
type entry struct {
	name string // path with slashes; the name of a directory ends in a slash
	mode fs.FileMode
	uid  int // user id, and also the group id
	data []byte
}

func (e entry) isDir() bool { return e.name[len(e.name)-1] == '/' }

// tarOf returns a tar archive of the entries. Its bytes depend on the arguments only.
func tarOf(entries []entry, mtime time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{
			Typeflag: tar.TypeReg, Name: e.name, Size: int64(len(e.data)), Mode: int64(e.mode.Perm()),
			Uid: e.uid, Gid: e.uid, ModTime: mtime, Format: tar.FormatUSTAR,
		}
		if e.isDir() {
			h.Typeflag = tar.TypeDir
		}
		if e.mode&fs.ModeSticky != 0 {
			h.Mode |= 0o1000
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("archive %s: %w", e.name, err)
		}
		if _, err := w.Write(e.data); err != nil {
			return nil, fmt.Errorf("archive %s: %w", e.name, err)
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// gzipOf compresses data with gzip. The header has neither a name nor a time, so that equal data give equal bytes.
func gzipOf(data []byte) ([]byte, error) {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(w, bytes.NewReader(data)); err != nil {
		return nil, err
	}
	err = w.Close()
	return b.Bytes(), err
}
