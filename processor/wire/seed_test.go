package wire

import (
	"encoding/hex"
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// TestSeedCountsEncoding pins every byte.
func TestSeedCountsEncoding(t *testing.T) {
	want := SeedCounts{Run: vectorRun, Fates: [dedup.SeedFates]int64{300, 2, 3, 4, 5}, TooLate: []int64{7, 9, 8, 300}}
	rec := &kgo.Record{Key: AppendSeedCountsKey(nil, want.Run, 258, 3), Value: want.Append(nil)}
	if got := hex.EncodeToString(rec.Key); got != "73656564732f0102030405060708000000000000010200000003" {
		t.Errorf("key %s", got)
	}
	if got := hex.EncodeToString(rec.Value); got != "01ac0202030405040e0401c804" {
		t.Errorf("value %s", got)
	}
	if !IsSeedCounts(rec) || IsPack(rec) || IsCheckpoint(rec.Key) {
		t.Error("the record is taken for one of another kind")
	}
	for row, err := range RowsOf(rec) {
		t.Errorf("the record has a row: %v, %v", row, err)
	}
	got, err := ReadSeedCounts(rec)
	if err != nil || !reflect.DeepEqual(got, want) || got.Total() != 314 {
		t.Errorf("decoded to %+v, %v", got, err)
	}
	for n := range rec.Value {
		if _, err := ReadSeedCounts(&kgo.Record{Key: rec.Key, Value: rec.Value[:n]}); err == nil {
			t.Errorf("%d of %d bytes are read", n, len(rec.Value))
		}
	}
	if _, err := ReadSeedCounts(&kgo.Record{Key: rec.Key, Value: append([]byte{2}, rec.Value[1:]...)}); err == nil {
		t.Error("another version is read")
	}
}
