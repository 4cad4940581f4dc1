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
	name string // with slashes; a directory ends in one
	mode fs.FileMode
	uid  int // also the group
	data []byte
}

func (e entry) isDir() bool { return e.name[len(e.name)-1] == '/' }

// tarOf returns a tar archive. Its bytes depend only on the arguments.
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

// gzipOf compresses data. The header has neither name nor time.
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
