package state

import (
	"bytes"
	"errors"
	"testing"
)

// sealedBlock returns a block with a valid checksum.
func sealedBlock(h blockHeader, payload []byte) []byte {
	b := append(appendBlockHeader(nil, h), payload...)
	sealBlock(b)
	return b
}

func TestBlockOfAnotherPosition(t *testing.T) {
	r := &run{id: 5, nonce: 6}
	right := blockHeader{kind: kindPage, run: 5, nonce: 6, part: 7, chunk: 0, chunks: 1, rows: 3}
	h, _, err := decodeBlock(sealedBlock(right, []byte("x")))
	must(t, err)
	must(t, h.check(r, kindPage, 7, 0))
	for _, wrong := range []blockHeader{
		{kind: kindFilter, run: 5, nonce: 6, part: 7, chunks: 1},
		{kind: kindPage, run: 4, nonce: 6, part: 7, chunks: 1},
		{kind: kindPage, run: 5, nonce: 7, part: 7, chunks: 1},
		{kind: kindPage, run: 5, nonce: 6, part: 8, chunks: 1},
		{kind: kindPage, run: 5, nonce: 6, part: 7, chunk: 1, chunks: 2},
		{kind: kindPage, run: 5, nonce: 6, part: 7},
	} {
		if err := wrong.check(r, kindPage, 7, 0); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
	block := sealedBlock(right, []byte("payload"))
	for i := range block {
		bad := bytes.Clone(block)
		bad[i] ^= 4
		if h, _, err := decodeBlock(bad); err == nil && h.check(r, kindPage, 7, 0) == nil {
			t.Errorf("change of byte %d is not detected", i)
		}
		if _, _, err := decodeBlock(block[:i]); !errors.Is(err, ErrCorrupt) {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
}

// FuzzBlock gives a valid checksum to any bytes and decodes them as a block.
func FuzzBlock(f *testing.F) {
	rows, payload := samplePage()
	f.Add(sealedBlock(blockHeader{kind: kindPage, run: 1, nonce: 2, chunks: 1, rows: rows}, payload))
	f.Fuzz(func(t *testing.T, input []byte) {
		b := bytes.Clone(input)
		if len(b) >= blockHeaderBytes {
			sealBlock(b)
		}
		h, payload, err := decodeBlock(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		if !bytes.Equal(sealedBlock(h, payload), b) {
			t.Fatal("a block does not encode to itself")
		}
	})
}
