package oracle

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
)

// ledgerVersion is the first byte of an encoded ledger.
const ledgerVersion = 3

// AppendState appends what the next range needs: the keys whose rows can still decide on an event, and the
// records whose counterpart is in a later range. horizons has, by namespace id, the first seen time before
// which rows no longer decide on any event. A key takes 16 bytes, and 2 to 9 bytes for its time; in claim mode
// it takes some 5 bytes more.
func (l *Ledger) AppendState(dst []byte, horizons *[256]int64) []byte {
	dst = append(dst, ledgerVersion, l.sample, l.joined)
	keep(l.keys, func(d digest) bool { return l.keys[d].first >= horizons[uint8(l.keys[d].at)] })
	lowest := slices.Min(horizons[:])
	for d, rows := range l.former {
		if l.former[d] = slices.DeleteFunc(rows, func(r formerRow) bool { return r.first < lowest }); len(l.former[d]) == 0 {
			delete(l.former, d)
		}
	}
	keep(l.results, func(d digest) bool { _, ok := l.keys[d]; return ok })
	base := int64(math.MaxInt64)
	for _, k := range l.keys {
		base = min(base, k.first)
	}
	dst = binary.AppendVarint(dst, base)
	dst = binary.AppendUvarint(dst, uint64(len(l.keys)))
	for d, k := range l.keys {
		dst = binary.AppendUvarint(append(dst, d[:]...), uint64(k.first-base))
		dst = binary.AppendUvarint(dst, uint64(k.attempt))
		dst = binary.LittleEndian.AppendUint32(dst, k.at)
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.former)))
	for d, rows := range l.former {
		dst = binary.AppendUvarint(append(dst, d[:]...), uint64(len(rows)))
		for _, r := range rows {
			dst = binary.LittleEndian.AppendUint32(binary.AppendVarint(dst, r.first), r.at)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.results)))
	for d, o := range l.results {
		dst = binary.AppendUvarint(append(dst, d[:]...), uint64(o.attempt))
		dst = appendBool(binary.LittleEndian.AppendUint64(dst, o.content), o.ambiguous)
	}
	return l.appendCarried(dst)
}

// appendCarried appends the records that wait for their counterpart.
func (l *Ledger) appendCarried(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(l.openRows()))
	for d, rows := range l.rows {
		for _, r := range rows {
			dst = binary.AppendVarint(appendPosition(append(dst, d[:]...), r.At), r.First)
			dst = append(binary.AppendUvarint(dst, uint64(r.Attempt)), r.Space)
			for _, b := range []bool{r.NeedsIn, r.NeedsOut, r.Soft, r.HasPrint} {
				dst = appendBool(dst, b)
			}
			dst = appendText(binary.LittleEndian.AppendUint64(dst, r.Content), r.Where)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.fates)))
	for at, f := range l.fates {
		dst = appendText(appendText(appendText(appendPosition(dst, at), f.Verdict), f.Reason), f.Where)
		dst = appendBool(appendBool(appendText(dst, l.nameOf(f.Route)), f.Dead), f.Batch)
		dst = binary.AppendUvarint(dst, uint64(len(f.Digests)))
		for _, d := range f.Digests {
			dst = append(dst, d[:]...)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.passed)))
	for at := range l.passed {
		dst = appendPosition(dst, at)
	}
	dst = binary.AppendUvarint(dst, uint64(len(l.tasks)))
	for at, task := range l.tasks {
		dst = binary.AppendUvarint(appendPosition(dst, at), uint64(task.next))
		dst = binary.AppendUvarint(dst, uint64(task.set))
		dst = append(dst, uint8(len(task.known)))
		for _, k := range task.known {
			dst = binary.AppendVarint(binary.AppendVarint(append(dst, k.namespaceID), k.since), k.lateBefore)
		}
	}
	return dst
}

// ErrLedgerState is the error for a state that AppendState did not write.
var ErrLedgerState = errors.New("not the state of a ledger")

// RestoreLedger returns a ledger with the state that AppendState has written.
func RestoreLedger(cfg LedgerConfig, state []byte) (*Ledger, error) {
	l, f := NewLedger(cfg), fields{rest: state}
	version := f.byte()
	if version != ledgerVersion && version != ledgerVersion-1 {
		return nil, ErrLedgerState
	}
	l.sample, l.joined = f.byte(), f.byte()
	base := f.signed()
	for n := f.unsigned(1 << 40); n > 0 && !f.bad; n-- {
		d := digest(f.bytes(16))
		k := keyState{first: base + int64(f.unsigned(1<<63)), attempt: uint32(f.unsigned(1 << 32))}
		k.at = binary.LittleEndian.Uint32(f.bytes(4))
		l.keys[d] = k
	}
	for n := f.unsigned(1 << 40); n > 0 && !f.bad; n-- {
		d := digest(f.bytes(16))
		for rows := f.unsigned(1 << 40); rows > 0 && !f.bad; rows-- {
			r := formerRow{first: f.signed()}
			if version == ledgerVersion {
				r.at = binary.LittleEndian.Uint32(f.bytes(4))
			}
			l.former[d] = append(l.former[d], r)
			l.formers++
		}
	}
	for n := f.unsigned(1 << 40); n > 0 && !f.bad; n-- {
		d := digest(f.bytes(16))
		o := outcome{attempt: uint32(f.unsigned(1 << 32)), content: binary.LittleEndian.Uint64(f.bytes(8))}
		o.ambiguous = f.byte() == 1
		l.results[d] = o
	}
	l.restoreCarried(&f)
	if f.bad || len(f.rest) > 0 {
		return nil, ErrLedgerState
	}
	return l, nil
}

// restoreCarried reads what appendCarried has written.
func (l *Ledger) restoreCarried(f *fields) {
	for n := f.unsigned(1 << 40); n > 0 && !f.bad; n-- {
		d := digest(f.bytes(16))
		r := &openRow{At: f.position(), First: f.signed(), Attempt: uint32(f.unsigned(1 << 32)), Space: f.byte(), Certain: true}
		for _, b := range []*bool{&r.NeedsIn, &r.NeedsOut, &r.Soft, &r.HasPrint} {
			*b = f.byte() == 1
		}
		r.Content, r.Where = binary.LittleEndian.Uint64(f.bytes(8)), f.text()
		l.rows[d] = append(l.rows[d], r)
	}
	for n := f.unsigned(1 << 40); n > 0 && !f.bad; n-- {
		at := f.position()
		x := &fate{Emitted: true, Verdict: f.text(), Reason: f.text(), Where: f.text(), Route: l.indexOf(f.text()), Dead: f.byte() == 1, Batch: f.byte() == 1}
		for n := f.unsigned(1 << 20); n > 0 && !f.bad; n-- {
			x.Digests = append(x.Digests, digest(f.bytes(16)))
		}
		x.keyed = len(x.Digests) > 0
		l.fates[at] = x
	}
	for n := f.unsigned(1 << 40); n > 0 && !f.bad; n-- {
		l.passed[f.position()] = true
	}
	for n := f.unsigned(1 << 40); n > 0 && !f.bad; n-- {
		at := f.position()
		l.tasks[at] = &ledgerTask{next: int64(f.unsigned(1 << 63)), set: int64(f.unsigned(1 << 63)), known: f.known()}
	}
	l.recount()
}

// nameOf returns the name of a route; "" if there is none. The state has names, because the index of a route
// may differ in the next range.
func (l *Ledger) nameOf(route int32) string {
	if route < 0 {
		return ""
	}
	return l.cfg.Routes[route].Name
}

func (l *Ledger) indexOf(name string) int32 {
	return int32(slices.IndexFunc(l.cfg.Routes, func(r LedgerRoute) bool { return r.Name == name }))
}

func (f *fields) position() Position {
	return Position{uint16(f.unsigned(1 << 16)), int32(f.unsigned(1 << 31)), int64(f.unsigned(1 << 63))}
}

func (f *fields) text() string {
	n := int(f.unsigned(1 << 20))
	if n == 0 {
		return ""
	}
	return string(slices.Clone(f.bytes(n)))
}

func appendPosition(dst []byte, at Position) []byte {
	dst = binary.AppendUvarint(dst, uint64(at.Topic))
	dst = binary.AppendUvarint(dst, uint64(uint32(at.Partition)))
	return binary.AppendUvarint(dst, uint64(at.Offset))
}

func appendText(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

func appendBool(dst []byte, b bool) []byte {
	if b {
		return append(dst, 1)
	}
	return append(dst, 0)
}
