package audit

import (
	"bufio"
	"bytes"
	"container/heap"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"oncebus/dedup"
)

// spilled is a record that was written to disk.
type spilled struct {
	digest    dedup.Digest
	time      int64
	offset    int64
	payload   uint64
	partition int32
	sender    int32
}

// runs has records on disk, in several runs that are each sorted by digest. Records with the same digest are in
// the order in which they were added, within a run and from run to run. All runs are in one file. The file is
// unlinked right after it was created, so that it disappears when the process ends, however that happens.
type runs struct {
	file    *os.File
	name    string // "" once the file is unlinked
	size    int64
	records int64
	buffer  []spilled
	order   []sortKey // reused by write
	list    []run
}

// run is the part of the file that has one run.
type run struct{ from, to int64 }

// sortKeys are sorted instead of the records in the buffer, because a sortKey has 16 bytes and a record 48.
type sortKey struct {
	prefix uint64
	at     uint32
}

const (
	// runRecords is the number of records in a run: 64 MB with the sort keys.
	runRecords = 1 << 20
	// runBuffer is the memory per run, in bytes, while the runs are merged.
	runBuffer = 64 << 10
)

func newRuns(dir string) (*runs, error) {
	file, err := os.CreateTemp(dir, "oncebus-audit-*")
	if err != nil {
		return nil, fmt.Errorf("--exact: %w", err)
	}
	r := &runs{file: file, name: file.Name()}
	if os.Remove(r.name) == nil { // some systems cannot unlink an open file
		r.name = ""
	}
	return r, nil
}

// add adds a record.
func (r *runs) add(s *spilled) error {
	if r.buffer == nil {
		r.buffer = make([]spilled, 0, runRecords)
	}
	r.buffer = append(r.buffer, *s)
	r.records++
	if len(r.buffer) < cap(r.buffer) {
		return nil
	}
	return r.write()
}

// write writes the buffer to the file as a run.
func (r *runs) write() error {
	r.order = r.order[:0]
	for i := range r.buffer {
		r.order = append(r.order, sortKey{binary.BigEndian.Uint64(r.buffer[i].digest[:8]), uint32(i)})
	}
	slices.SortFunc(r.order, r.compare)
	out := bufio.NewWriterSize(io.NewOffsetWriter(r.file, r.size), 1<<20)
	var last spilled
	var encoded []byte
	from := r.size
	for _, k := range r.order {
		s := &r.buffer[k.at]
		encoded = s.encode(encoded[:0], &last)
		last = *s
		r.size += int64(len(encoded))
		if _, err := out.Write(encoded); err != nil {
			return fmt.Errorf("--exact: %w", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fmt.Errorf("--exact: %w", err)
	}
	r.list = append(r.list, run{from, r.size})
	r.buffer = r.buffer[:0]
	return nil
}

func (r *runs) compare(a, b sortKey) int {
	switch {
	case a.prefix < b.prefix:
		return -1
	case a.prefix > b.prefix:
		return 1
	}
	if c := bytes.Compare(r.buffer[a.at].digest[8:], r.buffer[b.at].digest[8:]); c != 0 {
		return c
	}
	return int(a.at) - int(b.at)
}

// encode appends a record as the difference from the previous record in the run: how many bytes the digests
// have in common, the other bytes of the digest, and the other fields as varints.
func (s *spilled) encode(to []byte, last *spilled) []byte {
	same := 0
	for same < len(s.digest) && s.digest[same] == last.digest[same] {
		same++
	}
	to = append(append(to, byte(same)), s.digest[same:]...)
	to = binary.AppendVarint(to, s.time-last.time)
	to = binary.LittleEndian.AppendUint64(to, s.payload)
	to = binary.AppendUvarint(to, uint64(s.partition))
	to = binary.AppendVarint(to, s.offset-last.offset)
	return binary.AppendUvarint(to, uint64(s.sender))
}

// errDamaged means that another program changed the file while it was in use.
var errDamaged = errors.New("--exact: the file on disk was changed by another program")

// decode reads a record into s, which has the previous record.
func (s *spilled) decode(from *bufio.Reader) error {
	same, err := from.ReadByte()
	if err != nil {
		return err
	}
	if int(same) > len(s.digest) {
		return errDamaged
	}
	_, err = io.ReadFull(from, s.digest[same:])
	var fixed [8]byte
	delay, err1 := binary.ReadVarint(from)
	_, err2 := io.ReadFull(from, fixed[:])
	partition, err3 := binary.ReadUvarint(from)
	offset, err4 := binary.ReadVarint(from)
	sender, err5 := binary.ReadUvarint(from)
	if err := errors.Join(err, err1, err2, err3, err4, err5); err != nil {
		return fmt.Errorf("%w (%w)", errDamaged, err)
	}
	s.time += delay
	s.payload = binary.LittleEndian.Uint64(fixed[:])
	s.partition, s.sender = int32(partition), int32(sender)
	s.offset += offset
	return nil
}

// merge calls each with all records in the order of digests, and with the records of a digest in the order in
// which they were added. watch is called with how many records are done.
func (r *runs) merge(watch func(done, total int64), each func(*spilled)) error {
	if err := r.write(); err != nil {
		return err
	}
	r.buffer, r.order = nil, nil
	cursors, err := r.cursors()
	if err != nil {
		return err
	}
	for done := int64(0); len(cursors) > 0; done++ {
		if done%(1<<16) == 0 {
			watch(done, r.records)
		}
		c := cursors[0]
		each(&c.spilled)
		switch err := c.decode(c.from); {
		case err == nil:
			heap.Fix(&cursors, 0)
		case errors.Is(err, errDamaged):
			return err
		case errors.Is(err, io.EOF):
			heap.Pop(&cursors)
		default:
			return fmt.Errorf("--exact: %w", err)
		}
	}
	return nil
}

// cursor reads a run. Its spilled is the next record of the run.
type cursor struct {
	spilled

	number int // number of the run: an earlier run has earlier records
	from   *bufio.Reader
}

// cursors returns a cursor for each run, ordered as a heap.
func (r *runs) cursors() (cursors, error) {
	var list cursors
	for i, part := range r.list {
		if part.from == part.to {
			continue
		}
		c := &cursor{number: i, from: bufio.NewReaderSize(io.NewSectionReader(r.file, part.from, part.to-part.from), runBuffer)}
		if err := c.decode(c.from); err != nil {
			return nil, fmt.Errorf("--exact: %w", err)
		}
		list = append(list, c)
	}
	heap.Init(&list)
	return list, nil
}

// close removes the file.
func (r *runs) close() error {
	err := r.file.Close()
	if r.name != "" {
		err = errors.Join(err, os.Remove(r.name))
	}
	return err
}

// cursors is a heap by digest, then by the number of the run.
type cursors []*cursor

// Len implements heap.Interface.
func (c cursors) Len() int { return len(c) }

// Less implements heap.Interface.
func (c cursors) Less(i, j int) bool {
	if by := bytes.Compare(c[i].digest[:], c[j].digest[:]); by != 0 {
		return by < 0
	}
	return c[i].number < c[j].number
}

// Swap implements heap.Interface.
func (c cursors) Swap(i, j int) { c[i], c[j] = c[j], c[i] }

// Push implements heap.Interface.
func (c *cursors) Push(x any) { *c = append(*c, x.(*cursor)) } //nolint:forcetypeassert // heap.Init pushes nothing else

// Pop implements heap.Interface.
func (c *cursors) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	*c = (*c)[:last]
	return x
}
