package state

import (
	"bytes"
	"errors"
	"testing"
)

// goldenManifest returns a manifest with all fields set.
func goldenManifest() *manifest {
	return &manifest{
		identity: []byte("id"), position: 77, checkpoint: []byte("cp"), nextRun: 9,
		runs: []*run{
			{id: 8, nonce: 1 << 60, rows: 300, bytes: 9000, pages: 2, filterBlocks: 19, namespaces: []namespaceRows{{0, 100, -5}, {255, 200, 1e13}}},
			{id: 2, nonce: 3, rows: 1, bytes: 100, pages: 1, filterBlocks: 1},
		},
	}
}

func TestManifestRoundTrip(t *testing.T) {
	for _, m := range []*manifest{goldenManifest(), {identity: []byte{}, nextRun: 1}, {identity: []byte{}, checkpoint: []byte{}, nextRun: 1}} {
		b := m.encode()
		got, err := decodeManifest(b)
		must(t, err)
		if !bytes.Equal(got.encode(), b) || got.position != m.position || len(got.runs) != len(m.runs) ||
			(got.checkpoint == nil) != (m.checkpoint == nil) {
			t.Fatalf("%+v became %+v", m, got)
		}
		for i := range b {
			bad := bytes.Clone(b)
			bad[i] ^= 1
			if _, err := decodeManifest(bad); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("byte %d changed: %v", i, err)
			}
			if _, err := decodeManifest(b[:i]); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("cut at %d: %v", i, err)
			}
		}
	}
}

// FuzzManifest gives a valid checksum to any bytes and decodes them as a manifest.
func FuzzManifest(f *testing.F) {
	f.Add(goldenManifest().encode()[manifestSumFrom:])
	f.Fuzz(func(t *testing.T, fields []byte) {
		m, err := decodeManifest(sealManifest(append(make([]byte, manifestSumFrom), fields...)))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if _, err := decodeManifest(m.encode()); err != nil {
			t.Fatalf("the encoding of a decoded manifest is invalid: %v", err)
		}
	})
}
