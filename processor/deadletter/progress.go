package deadletter

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// State says whether a dead letter is open, redriven or dropped.
type State uint8

// The states.
const (
	Open State = iota
	Redriven
	Dropped
)

func (s State) String() string { return [...]string{"open", "redriven", "dropped"}[s] }

const (
	// progressPrefix begins the keys of the progress records in the manifest topic.
	progressPrefix = "dead-letters/"
	// chunkOffsets is how many offsets a progress record covers; the record has some 1.4 KB.
	chunkOffsets = 4096
)

// Progress records which dead letters of an app were redriven and which were dropped: two sets of offsets,
// stored in chunks. A single position would not suffice, because each redrive leaves the dead letters open that
// its filter did not select.
type Progress struct{ chunks map[chunkID]*chunk }

// chunkID identifies a chunk: the offsets of a partition from first on. It contains the topic's id, so that the
// offsets of a recreated topic are not confused with the offsets of the deleted topic.
type chunkID struct {
	topic     [16]byte
	partition int32
	first     int64
}

// chunk is the value of a progress record: the states of chunkOffsets dead letters.
type chunk struct {
	// Topic is for people who read the record; the key has the topic's id.
	Topic    string `json:"topic"`
	Redriven bits   `json:"redriven"`
	Dropped  bits   `json:"dropped"`
}

// bits has a bit for each offset of a chunk, beginning with the lowest offset.
type bits []byte

func (b bits) has(i int64) bool { return int(i/8) < len(b) && b[i/8]&(1<<(i%8)) != 0 }

func (b bits) with(i int64) bits {
	for int(i/8) >= len(b) {
		b = append(b, 0)
	}
	b[i/8] |= 1 << (i % 8)
	return b
}

func (b bits) without(i int64) bits {
	if b.has(i) {
		b[i/8] &^= 1 << (i % 8)
	}
	return b
}

func newProgress() *Progress { return &Progress{chunks: map[chunkID]*chunk{}} }

func chunkOf(topic [16]byte, partition int32, offset int64) (id chunkID, bit int64) {
	return chunkID{topic, partition, offset - offset%chunkOffsets}, offset % chunkOffsets
}

// Of returns the state of the dead letter at an offset of the topic with this id.
func (p *Progress) Of(topic [16]byte, partition int32, offset int64) State {
	id, bit := chunkOf(topic, partition, offset)
	switch c := p.chunks[id]; {
	case c == nil:
		return Open
	case c.Redriven.has(bit):
		return Redriven
	case c.Dropped.has(bit):
		return Dropped
	}
	return Open
}

// set changes the state of a dead letter, and returns the id of the chunk that has changed.
func (p *Progress) set(topicName string, topic [16]byte, partition int32, offset int64, to State) chunkID {
	id, bit := chunkOf(topic, partition, offset)
	c := p.chunks[id]
	if c == nil {
		c = &chunk{Topic: topicName}
		p.chunks[id] = c
	}
	c.Redriven, c.Dropped = c.Redriven.without(bit), c.Dropped.without(bit)
	switch to {
	case Redriven:
		c.Redriven = c.Redriven.with(bit)
	case Dropped:
		c.Dropped = c.Dropped.with(bit)
	case Open:
	}
	return id
}

// record returns the record for a chunk in the manifest topic. It is a tombstone if the chunk was removed.
func (p *Progress) record(manifest string, id chunkID) *kgo.Record {
	rec := &kgo.Record{Topic: manifest, Key: fmt.Appendf(nil, "%s%x/%d/%d", progressPrefix, id.topic, id.partition, id.first)}
	if c := p.chunks[id]; c != nil {
		value, err := json.Marshal(c)
		if err != nil {
			panic(err) // a struct of a string and bytes
		}
		rec.Value = value
	}
	return rec
}

// add adds a record of the manifest topic. It ignores records that are not progress.
func (p *Progress) add(rec *kgo.Record) error {
	text, ok := strings.CutPrefix(string(rec.Key), progressPrefix)
	if !ok {
		return nil
	}
	id, err := parseChunkID(text)
	if err != nil {
		return err
	}
	if rec.Value == nil {
		delete(p.chunks, id)
		return nil
	}
	c := &chunk{}
	if err := json.Unmarshal(rec.Value, c); err != nil {
		return err
	}
	p.chunks[id] = c
	return nil
}

func parseChunkID(text string) (id chunkID, err error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 {
		return id, fmt.Errorf("record key %s%s: want a topic id, a partition and an offset", progressPrefix, text)
	}
	topic, err := hex.DecodeString(parts[0])
	partition, errPartition := strconv.ParseInt(parts[1], 10, 32)
	first, errFirst := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || errPartition != nil || errFirst != nil || len(topic) != len(id.topic) || first%chunkOffsets != 0 {
		return id, fmt.Errorf("record key %s%s: want a topic id, a partition and a multiple of %d", progressPrefix, text, chunkOffsets)
	}
	return chunkID{[16]byte(topic), int32(partition), first}, nil
}

// below returns the chunks of a partition that end at or before this offset.
func (p *Progress) below(topic [16]byte, partition int32, offset int64) (gone []chunkID) {
	for id := range p.chunks {
		if id.topic == topic && id.partition == partition && id.first+chunkOffsets <= offset {
			gone = append(gone, id)
		}
	}
	return gone
}
