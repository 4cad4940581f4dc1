package wire

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"

	"oncebus/dedup"
)

// CountsOfEvents is the status byte, in the counts of a checkpoint, of the judged events of a namespace
// id and the duplicates among them. No row has this status.
const CountsOfEvents = 0xff

// Flags in a partial checkpoint of what changed in the counts of a namespace id. The bits of
// ChangedCounters are the number of its key counters that changed.
const (
	ChangedCounters   = 1<<3 - 1
	ChangedEvents     = 1 << 3
	ChangedDuplicates = 1 << 4
)

// countsKey identifies a count: namespace id, and a row status or CountsOfEvents.
type countsKey struct{ namespaceID, status uint8 }

// keyCount is the count of a countsKey.
type keyCount struct {
	keys               dedup.KeyCounter
	judged, duplicates uint64
}

// keyCounts are the counts of a checkpoint. They are decoded without the routes of the app, so that a
// process keeps the counts of namespaces that it has no route for.
type keyCounts map[countsKey]*keyCount

// decodeKeyCounts decodes the counts of a checkpoint.
func decodeKeyCounts(text string) (keyCounts, error) {
	all := keyCounts{}
	for b := []byte(text); len(b) > 0; {
		r := dedup.NewCursor(b)
		key := countsKey{r.Byte(), r.Byte()}
		one := &keyCount{}
		if key.status == CountsOfEvents {
			one.judged, one.duplicates = r.Uvarint(math.MaxUint64), r.Uvarint(math.MaxUint64)
			b = r.Rest()
		} else {
			var err error
			if one.keys, b, err = dedup.DecodeKeyCounter(r.Rest()); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrCheckpoint, err)
			}
		}
		if r.Bad() {
			return nil, fmt.Errorf("%w: cut short in the counts", ErrCheckpoint)
		}
		all[key] = one
	}
	return all, nil
}

// encode returns the form that decodeKeyCounts reads. It leaves out counts of 0.
func (all keyCounts) encode() string {
	var b []byte
	keys := slices.SortedFunc(maps.Keys(all), func(a, b countsKey) int {
		return int(a.namespaceID)<<8 + int(a.status) - int(b.namespaceID)<<8 - int(b.status)
	})
	for _, key := range keys {
		one := all[key]
		switch {
		case one.judged > 0:
			b = append(b, key.namespaceID, key.status)
			b = binary.AppendUvarint(b, one.judged)
			b = binary.AppendUvarint(b, one.duplicates)
		case one.keys.Live() > 0:
			b = one.keys.Append(append(b, key.namespaceID, key.status))
		}
	}
	return string(b)
}

// apply applies the changes of a partial checkpoint, which are all bytes that r has left. For each
// changed namespace id they are: id, flags, [further events uvarint], [further duplicates uvarint], and
// for each changed counter its status and what dedup.KeyCounter.AppendChanges wrote.
func (all keyCounts) apply(r *dedup.Cursor) {
	for r.Left() > 0 && !r.Bad() {
		id, flags := r.Byte(), r.Byte()
		if flags&(ChangedEvents|ChangedDuplicates) != 0 {
			events := all.of(countsKey{id, CountsOfEvents})
			if flags&ChangedEvents != 0 {
				events.judged += r.Uvarint(math.MaxInt64)
			}
			if flags&ChangedDuplicates != 0 {
				events.duplicates += r.Uvarint(math.MaxInt64)
			}
		}
		for n := flags & ChangedCounters; n > 0 && !r.Bad(); n-- {
			status := r.Byte()
			if status == CountsOfEvents {
				r.Fail()
			}
			all.of(countsKey{id, status}).keys.ApplyChanges(r)
		}
	}
}

// of returns the count of a key, and creates it if it is missing.
func (all keyCounts) of(key countsKey) *keyCount {
	one := all[key]
	if one == nil {
		one = &keyCount{}
		all[key] = one
	}
	return one
}
