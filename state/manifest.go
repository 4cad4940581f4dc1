package state

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"

	"oncebus/dedup"
)

// manifest is the commit point of a store: only the runs that the manifest names count as existing, whatever
// other blocks Badger contains. The store writes it in one small synced transaction after the blocks of its
// runs.
type manifest struct {
	// identity names the owner of the state; see Host.Open.
	identity []byte
	// position is the first changelog offset whose rows are not in the runs.
	position int64
	// checkpoint is the caller's, valid at position; nil before the first.
	checkpoint []byte
	// nextRun is greater than the id of every run ever written.
	nextRun uint64
	// runs are ordered from newest to oldest.
	runs []*run
}

// run is the manifest's entry for a run, together with the run's filter in memory.
type run struct {
	id    uint64
	nonce uint64
	rows  uint64
	// bytes is the size of its blocks.
	bytes uint64
	pages uint32
	// filterBlocks is the length of its filter.
	filterBlocks uint32
	// namespaces are in order of id.
	namespaces []namespaceRows

	filter filter
	// refs counts the views that refer to the run; guarded by Store.mu.
	refs int
}

// namespaceRows describes a run's rows of one namespace.
type namespaceRows struct {
	id   uint8
	rows uint64
	// lastFirst is the greatest First: when a row with that First expires, all these rows have expired.
	lastFirst int64
}

// Layout of the manifest, little endian:
//
//	version 1 | CRC-32C 4 of all that follows | identity | position |
//	checkpoint | nextRun | runs
//
// Integers are varints. A byte string is preceded by its length; the checkpoint is preceded by its length plus
// one, or there is 0 if there is no checkpoint.
const (
	manifestVersion = 2
	manifestSumFrom = 5

	maxIdentityBytes   = 4 << 10
	maxCheckpointBytes = 4 << 20
	maxRuns            = 1 << 16
)

func (m *manifest) encode() []byte {
	b := make([]byte, manifestSumFrom, 512)
	b = binary.AppendUvarint(b, uint64(len(m.identity)))
	b = append(b, m.identity...)
	b = binary.AppendVarint(b, m.position)
	if m.checkpoint == nil {
		b = binary.AppendUvarint(b, 0)
	} else {
		b = binary.AppendUvarint(b, uint64(len(m.checkpoint))+1)
		b = append(b, m.checkpoint...)
	}
	b = binary.AppendUvarint(b, m.nextRun)
	b = binary.AppendUvarint(b, uint64(len(m.runs)))
	for _, r := range m.runs {
		b = binary.AppendUvarint(b, r.id)
		b = binary.LittleEndian.AppendUint64(b, r.nonce)
		b = binary.AppendUvarint(b, r.rows)
		b = binary.AppendUvarint(b, r.bytes)
		b = binary.AppendUvarint(b, uint64(r.pages))
		b = binary.AppendUvarint(b, uint64(r.filterBlocks))
		b = binary.AppendUvarint(b, uint64(len(r.namespaces)))
		for _, c := range r.namespaces {
			b = append(b, c.id)
			b = binary.AppendUvarint(b, c.rows)
			b = binary.AppendVarint(b, c.lastFirst)
		}
	}
	return sealManifest(b)
}

// sealManifest fills in version and checksum.
func sealManifest(b []byte) []byte {
	b[0] = manifestVersion
	binary.LittleEndian.PutUint32(b[1:], crc32.Checksum(b[manifestSumFrom:], castagnoli))
	return b
}

// decodeManifest decodes a manifest; the result does not alias b.
func decodeManifest(b []byte) (*manifest, error) {
	if len(b) < manifestSumFrom {
		return nil, fmt.Errorf("%w: manifest has %d bytes, fewer than its header", ErrCorrupt, len(b))
	}
	if b[0] != manifestVersion {
		return nil, fmt.Errorf("%w: manifest version %d, this build reads %d", ErrCorrupt, b[0], manifestVersion)
	}
	if sum := crc32.Checksum(b[manifestSumFrom:], castagnoli); sum != binary.LittleEndian.Uint32(b[1:]) {
		return nil, fmt.Errorf("%w: manifest checksum does not match", ErrCorrupt)
	}
	c := dedup.NewCursor(b[manifestSumFrom:])
	m := &manifest{}
	m.identity = append([]byte{}, c.Bytes(int(c.Uvarint(maxIdentityBytes)))...)
	m.position = c.Varint()
	if n := c.Uvarint(maxCheckpointBytes + 1); n > 0 {
		m.checkpoint = append([]byte{}, c.Bytes(int(n-1))...)
	}
	m.nextRun = c.Uvarint(math.MaxUint64)
	for range c.Uvarint(maxRuns) {
		r := decodeRun(&c)
		if c.Bad() || r.id >= m.nextRun || r.pages == 0 || r.filterBlocks == 0 {
			return nil, fmt.Errorf("%w: manifest names run %d with invalid fields", ErrCorrupt, r.id)
		}
		m.runs = append(m.runs, r)
	}
	if !c.Done() || m.position < 0 {
		return nil, fmt.Errorf("%w: manifest is truncated, too long or has a field out of range", ErrCorrupt)
	}
	return m, nil
}

// decodeRun reads the manifest's entry of a run.
func decodeRun(c *dedup.Cursor) *run {
	r := &run{id: c.Uvarint(math.MaxUint64), nonce: c.Uint64()}
	r.rows = c.Uvarint(math.MaxUint64)
	r.bytes = c.Uvarint(math.MaxUint64)
	r.pages = uint32(c.Uvarint(math.MaxUint32))
	r.filterBlocks = uint32(c.Uvarint(maxFilterBlocks))
	for n := c.Uvarint(256); n > 0; n-- {
		r.namespaces = append(r.namespaces, namespaceRows{id: c.Byte(), rows: c.Uvarint(math.MaxUint64), lastFirst: c.Varint()})
	}
	return r
}
