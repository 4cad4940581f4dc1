package judge

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// packBytes is the size at which a pack is sent. Packs of one transaction are then on their
// way while it goes on.
const packBytes = 32 << 10

// packs has the rows of the open transaction that are not in a changelog record yet, and
// the number of packs it has sent.
//
// The rows of a namespace are either all packed or all single (app.App.Packed), except for
// erased ones, before which put sends the pack. So those of one digest are in the changelog
// in the order in which they were stored.
type packs struct {
	pack  dedup.Pack
	limit int // of the pack's bytes
	sent  uint32
}

// packRow appends a row to the pack.
func (t *State) packRow(e *Emitter, row *dedup.Row, headers ...kgo.RecordHeader) {
	if t.packs.pack.Rows() == 0 {
		t.packs.limit = t.packBytesMax()
	}
	t.packs.pack.Add(row)
	if len(t.packs.pack.Bytes())+dedup.PackedBytesMax > t.packs.limit {
		t.sendPack(e, headers...)
	}
}

// packBytesMax is how long a pack may be: the changelog must accept it.
func (t *State) packBytesMax() int {
	room := int(t.App.Limit(t.Changelog).MaxBytes) - wire.RecordOverhead - wire.PackKeyBytes - len(wire.HeaderSweep)
	return min(packBytes, room)
}

// sendPack produces the pack, if it has a row. All its rows have the headers.
func (t *State) sendPack(e *Emitter, headers ...kgo.RecordHeader) {
	if t.packs.pack.Rows() == 0 {
		return
	}
	key := wire.AppendPackKey(e.bytes.take(wire.PackKeyBytes)[:0], t.Store.Position(), t.packs.sent)
	t.produceRow(e, key, t.packs.pack.Bytes(), headers...)
	t.packs.pack.Reset()
	t.packs.sent++
}

// discardPacks drops the packs of a transaction that has ended.
func (t *State) discardPacks() {
	t.packs.pack.Reset()
	t.packs.sent = 0
}
