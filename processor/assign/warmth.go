package assign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"oncebus/dedup"
	"oncebus/processor/app"
)

// WarmthBytesMax bounds what a member tells the leader, in bytes. The broker stores the metadata of all members
// of the group in one record, which may have 1 MB. 1,000 positions take 5 KB.
const WarmthBytesMax = 8 << 10

// warmthVersion is the first byte of an encoded Warmth. A build reads only its own version.
const warmthVersion = 1

// Warmth is what a member tells the leader about its process, so that the leader can assign tasks to processes
// that have their rows.
type Warmth struct {
	Process   string               // instance id of the process that the member is a worker of
	Standby   bool                 // whether the process follows changelogs of tasks that other processes own
	Positions map[app.TaskID]int64 // changelog positions above 0, by task
}

var errWarmth = errors.New("warmth of a member is damaged")

// encode returns the version, the process, Standby and, for each topic, its name, the number of its positions
// and the positions. Before each position stands the difference between its partition and the previous
// partition. encode omits the last positions if all of them exceed WarmthBytesMax: the leader takes a task
// without a position as cold.
func (w Warmth) encode() []byte {
	b := append(binary.AppendUvarint([]byte{warmthVersion}, uint64(len(w.Process))), w.Process...)
	if w.Standby {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	byTopic := map[string]map[int32]int64{}
	for id, position := range w.Positions {
		if byTopic[id.Topic] == nil {
			byTopic[id.Topic] = map[int32]int64{}
		}
		byTopic[id.Topic][id.Partition] = position
	}
	for _, topic := range slices.Sorted(maps.Keys(byTopic)) {
		b = appendTopic(b, topic, byTopic[topic])
	}
	return b
}

// appendTopic appends the positions of a topic, as many as fit into WarmthBytesMax.
func appendTopic(b []byte, topic string, positions map[int32]int64) []byte {
	head := binary.AppendUvarint(nil, uint64(len(topic)))
	head = append(head, topic...)
	room := WarmthBytesMax - len(b) - len(head) - binary.MaxVarintLen32
	var body, entry []byte
	n, before := 0, int32(-1)
	for _, p := range slices.Sorted(maps.Keys(positions)) {
		if positions[p] <= 0 {
			continue
		}
		entry = binary.AppendUvarint(entry[:0], uint64(p-before-1))
		entry = binary.AppendUvarint(entry, uint64(positions[p]))
		if len(body)+len(entry) > room {
			break
		}
		body, before, n = append(body, entry...), p, n+1
	}
	if n == 0 {
		return b
	}
	return append(binary.AppendUvarint(append(b, head...), uint64(n)), body...)
}

// decodeWarmth reads what encode wrote.
func decodeWarmth(b []byte) (Warmth, error) {
	w := Warmth{Positions: map[app.TaskID]int64{}}
	if len(b) == 0 || b[0] != warmthVersion || len(b) > WarmthBytesMax {
		return w, fmt.Errorf("%w: %d bytes, version %v", errWarmth, len(b), b[:min(1, len(b))])
	}
	r := dedup.NewCursor(b[1:])
	text := func() string { return string(r.Bytes(int(r.Uvarint(uint64(r.Left()))))) }
	w.Process = text()
	w.Standby = r.Uvarint(1) == 1
	for r.Left() > 0 && !r.Bad() {
		topic := text()
		n := r.Uvarint(uint64(r.Left()))
		for p := uint64(0); n > 0 && !r.Bad(); n-- {
			p += r.Uvarint(partitionMax)
			if position := r.Uvarint(1<<63 - 1); p < partitionMax && !r.Bad() {
				w.Positions[app.TaskID{Topic: topic, Partition: int32(p)}] = int64(position)
			}
			p++
		}
	}
	if r.Bad() {
		return Warmth{}, errWarmth
	}
	return w, nil
}

// partitionMax is above every partition number of Kafka, an int32.
const partitionMax = 1 << 31
