package judge

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// packing returns the changelog of a task that packs the rows of namespace id 3. The changelog accepts records up to
// a limit.
func packing(t *testing.T, limit int32) *changelogOf {
	s := trimmed(t)
	s.Log = slog.New(slog.DiscardHandler)
	s.App.Packed[3] = true
	s.App.Limits.Store(&map[string]app.TopicLimits{"changelog": {MaxBytes: limit}})
	l := &changelogOf{State: s, rows: map[dedup.Digest][]byte{}}
	l.emitter = NewEmitter(s.App, func(r *kgo.Record) error { l.open = append(l.open, r); return nil })
	return l
}

// TestPacksAreInOrder protects that, whatever mixture of packed rows, single rows, aborts and packs of any length a
// task writes, the changelog ends with the newest committed row of each key, its checkpoints count the rows, and no
// two packs have the same key.
func TestPacksAreInOrder(t *testing.T) {
	for _, limit := range []int32{300, 1000, 1 << 20} {
		l := packing(t, limit)
		rng := rand.New(rand.NewPCG(17, uint64(limit)))
		keys, committed, ever, wide := map[string]bool{}, map[dedup.Digest]int64{}, int64(0), 0
		for n := range int64(60) {
			l.JoinTransaction()
			open := map[dedup.Digest]int64{}
			puts := int64(rng.IntN(60))
			for put := range puts {
				row := dedup.Row{Digest: dedup.Digest{byte(rng.IntN(40))}, NamespaceID: 3, At: dedup.Position{Offset: n*100 + put}}
				if rng.IntN(4) == 0 { // of a namespace whose rows are single
					row.Digest[1], row.NamespaceID = 1, 4
				}
				l.write(&row)
				open[row.Digest] = row.At.Offset
			}
			if rng.IntN(6) == 0 { // it aborts before its end
				l.Discard()
				l.emitter.Reset()
				l.open = nil
				continue
			}
			commit := rng.IntN(3) > 0
			l.endTransaction(t, commit)
			if !commit {
				continue
			}
			ever += puts
			for d, offset := range open {
				committed[d] = offset
			}
		}
		if l.Committed.Rows != ever {
			t.Errorf("limit %d: the checkpoint counts %d rows, %d were written", limit, l.Committed.Rows, ever)
		}
		for d, offset := range committed {
			row := dedup.Row{NamespaceID: 3 + d[1], At: dedup.Position{Offset: offset}}
			if !bytes.Equal(l.rows[d], row.AppendValue(nil)) {
				t.Errorf("limit %d: the newest row of %v is %x, want %x", limit, d, l.rows[d], row.AppendValue(nil))
			}
		}
		for _, rec := range l.all {
			if n := wire.RecordBytes(rec); n > int(limit) {
				t.Errorf("limit %d: a record of %d bytes", limit, n)
			}
			if !wire.IsPack(rec) {
				continue
			}
			if keys[string(rec.Key)] {
				t.Errorf("limit %d: two packs have the key %x: compaction would remove one", limit, rec.Key)
			}
			keys[string(rec.Key)] = true
			rows := 0
			for _, err := range wire.RowsOf(rec) {
				must(t, err)
				rows++
			}
			wide = max(wide, rows)
		}
		if wide < 2 {
			t.Errorf("limit %d: no pack has two rows", limit)
		}
	}
}
