package oracle

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// isPack reports whether a changelog record is a pack, which has many rows.
func isPack(r *Record) bool {
	return len(r.Key) == 17 && strings.HasPrefix(string(r.Key), "rows/")
}

// rowsOfPack returns the rows of a pack as single records: each with the offset and the headers of the pack,
// with the digest as key and the row as value. A pack is: version 1 | for each row: digest 16 | flags 1 |
// [namespace id 1] | [topic, partition uvarint] | first, offset varint, as differences from the previous row |
// [fingerprint 8] | [link]. The flags are 1 for a fingerprint, 2 for topic and partition, 4 for a namespace id;
// from 8 on they are half of row.flags. Topic and partition, and the namespace id, are those of the previous
// row if they are left out.
func rowsOfPack(r *Record) (rows []*Record, err error) {
	f := fields{rest: r.Value}
	version := f.byte()
	var last row
	for len(f.rest) > 0 && !f.bad {
		key := f.bytes(len(digest{}))
		flags := f.byte()
		if flags > 127 || flags&24 == 24 || len(rows) == 0 && flags&6 != 6 {
			f.bad = true
		}
		if flags&4 != 0 {
			last.namespaceID = f.byte()
		}
		if flags&2 != 0 {
			last.at.topic, last.at.partition = uint16(f.unsigned(1<<16)), int32(f.unsigned(1<<31))
		}
		last.first += f.signed()
		last.at.offset += f.signed()
		value := last.value(nil)
		value[1] |= flags&1 | flags>>3<<4
		if flags&1 != 0 {
			value = append(value, f.bytes(8)...)
		}
		if flags&16 != 0 {
			value = binary.AppendUvarint(value, f.unsigned(math.MaxUint64))
		}
		f.bad = f.bad || last.at.offset < 0
		rows = append(rows, &Record{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp, Headers: r.Headers, Key: key, Value: value})
	}
	if f.bad || version != 1 || len(rows) == 0 {
		return nil, fmt.Errorf("is not a pack of rows: %x", r.Value)
	}
	return rows, nil
}

// packKey returns the changelog offset and the number in the key of a pack.
func packKey(r *Record) (from int64, n uint32) {
	return int64(binary.BigEndian.Uint64(r.Key[5:])), binary.BigEndian.Uint32(r.Key[13:])
}

// rowsOf returns the rows of a changelog record that is no checkpoint (K5). The key of a pack has the offset
// from which on its transaction may begin, and the number of the pack in the transaction. Therefore no two
// packs have the same record key, and compaction never removes a pack.
func (c *check) rowsOf(t *task, r *Record) []*Record {
	switch {
	case isPack(r):
		from, n := packKey(r)
		if from > r.Offset || t.checkpoint != nil && from <= t.checkpoint.Offset || n != t.packs {
			c.add("K5", "%s: the key of pack %d since the checkpoint says pack %d from offset %d on", at(r), t.packs, n, from)
		}
		t.packs++
		rows, err := rowsOfPack(r)
		if err != nil {
			c.add("K5", "%s: %v", at(r), err)
		}
		return rows
	case len(r.Key) != len(digest{}):
		c.add("K5", "%s: neither a row nor a checkpoint, its key has %d bytes: %x", at(r), len(r.Key), r.Key)
		return nil
	}
	return []*Record{r}
}
