package judge

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// packBytes is the size in bytes at which a pack is sent. It is small, so that the client can already send packs
// while the transaction is still open.
const packBytes = 32 << 10

// packs has the rows of the open transaction that are not in a changelog record yet, and the number of
// packs that the transaction has sent.
//
// A restore must read the rows of a digest in the order in which they were stored (hazard T16). So the
// rows of a namespace are either all packed or all single (app.App.Packed). The only exception are
// erased rows, which are single, and put sends the pack before each of them.
type packs struct {
	pack  dedup.Pack
	limit int // largest size of the pack, bytes
	sent  uint32
}

// packRow appends a row to the pack, and sends the pack when it is full.
func (t *State) packRow(e *Emitter, row *dedup.Row, headers ...kgo.RecordHeader) {
	if t.packs.pack.Rows() == 0 {
		t.packs.limit = t.packBytesMax()
	}
	t.packs.pack.Add(row)
	if len(t.packs.pack.Bytes())+dedup.PackedBytesMax > t.packs.limit {
		t.sendPack(e, headers...)
	}
}

// packBytesMax returns how many bytes a pack may have so that the changelog accepts it.
func (t *State) packBytesMax() int {
	room := int(t.App.Limit(t.Changelog).MaxBytes) - wire.RecordOverhead - wire.PackKeyBytes - len(wire.HeaderSweep)
	return min(packBytes, room)
}

// sendPack produces the pack, if it has a row. headers become headers of the changelog record.
func (t *State) sendPack(e *Emitter, headers ...kgo.RecordHeader) {
	if t.packs.pack.Rows() == 0 {
		return
	}
	key := wire.AppendPackKey(e.bytes.take(wire.PackKeyBytes)[:0], t.Store.Position(), t.packs.sent)
	t.produceRow(e, key, t.packs.pack.Bytes(), headers...)
	t.packs.pack.Reset()
	t.packs.sent++
}

// discardPacks drops the pack of a transaction that has ended.
func (t *State) discardPacks() {
	t.packs.pack.Reset()
	t.packs.sent = 0
}
