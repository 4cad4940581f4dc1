package dedup

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"testing"
)

// goldenRows pins the encoding, RowVersion 1. Written by
//
//	import struct
//	def u(n):
//	    o = b""
//	    while n >= 128: o += bytes([n & 127 | 128]); n >>= 7
//	    return o + bytes([n])
//	z = lambda n: u(n << 1 if n >= 0 else (-n << 1) - 1)
//	def row(cl, st, first, t, p, o, fp=0, att=0, shift=0, res=False, link=0, before=0, earlier=0, again=0):
//	    b = bytes([(1 if fp else 0) | (2 if att else 0) | (4 if res is not False else 0) | (8 if shift else 0) | 16 * link | 64 * earlier | 128 * again, cl, st]) + z(first) + u(t) + u(p) + u(o)
//	    if fp: b += struct.pack("<Q", fp)
//	    if att: b += u(att)
//	    if shift: b += z(shift)
//	    if link == 2: b += u(first - before)
//	    if res is not False: b += u(0) if res == None else u(len(res) + 1) + res
//	    print((b"\x01" + b).hex())
//	row(1, 0, 1700000000000, 3, 11, 123456789)                       # and so on
var goldenRows = []struct {
	row  Row
	want string
}{
	{Row{NamespaceID: 1, First: 1700000000000, At: Position{3, 11, 123456789}}, "0100010080a0abfef962030b959aef3a"},
	{Row{}, "0100000000000000"},
	{Row{NamespaceID: 255, First: -1, At: Position{math.MaxUint16, math.MaxInt32, math.MaxInt64}}, "0100ff0001ffff03ffffffff07ffffffffffffffff7f"},
	{Row{NamespaceID: 2, Status: ClaimInProgress, First: 1700000000000, At: Position{1, 0, 5}, Fingerprint: 0x0102030405060708, Attempt: 1}, "0103020180a0abfef962010005080706050403020101"},
	{Row{NamespaceID: 2, Status: Completed, First: 1700000000000, At: Position{1, 0, 5}, Attempt: 300, HasResult: true, Result: []byte("ok")}, "0106020380a0abfef962010005ac02036f6b"},
	{Row{NamespaceID: 2, Status: Completed, First: 1700000000000, At: Position{1, 0, 5}, Attempt: 1, HasResult: true}, "0106020380a0abfef9620100050100"},
	{Row{NamespaceID: 2, Status: Completed, First: 1700000000000, At: Position{1, 0, 5}, Attempt: 1, HasResult: true, Result: []byte{}}, "0106020380a0abfef9620100050101"},
	{Row{NamespaceID: 2, Status: Completed, First: 1700000000000, Shift: -5400000, At: Position{1, 0, 5}, Fingerprint: 0x0102030405060708, Attempt: 1, HasResult: true, Result: []byte("ok")}, "010f020380a0abfef962010005080706050403020101ff969305036f6b"},
	{Row{NamespaceID: 2, Status: Freed, First: 1700000000000, Shift: 7, At: Position{1, 0, 5}, Attempt: 1}, "010a020480a0abfef962010005010e"},
	{Row{NamespaceID: 1, First: 1700000000000, At: Position{3, 11, 123456789}, Link: LinkNone}, "0110010080a0abfef962030b959aef3a"},
	{Row{NamespaceID: 1, First: 1700000000000, At: Position{3, 11, 5}, Fingerprint: 0x0102030405060708, Earlier: true, Again: true, Link: LinkBefore, Before: 1699999999000}, "01e1010080a0abfef962030b050807060504030201e807"},
	{Row{First: math.MaxInt64, Link: LinkBefore, Before: math.MinInt64}, "01200000feffffffffffffffff01000000ffffffffffffffffff01"},
}

func TestGoldenRows(t *testing.T) {
	for _, v := range goldenRows {
		v.row.Digest = Digest{1, 2, 3}
		encoded := v.row.AppendValue(nil)
		if got := hex.EncodeToString(encoded); got != v.want {
			t.Errorf("%+v\n got %s\nwant %s", v.row, got, v.want)
		}
		back, err := DecodeValue(v.row.Digest, encoded)
		if err != nil || fmt.Sprintf("%#v", back) != fmt.Sprintf("%#v", v.row) {
			t.Errorf("decoded %#v, %v\n   want %#v", back, err, v.row)
		}
		for cut := range encoded {
			if _, err := DecodeValue(Digest{}, encoded[:cut]); !errors.Is(err, ErrRow) {
				t.Errorf("%s cut to %d bytes: %v", v.want, cut, err)
			}
		}
		if _, err := DecodeValue(Digest{}, append(encoded, 0)); !errors.Is(err, ErrRow) {
			t.Errorf("a byte too many: %v", err)
		}
	}
}

func TestCorruptRows(t *testing.T) {
	for name, bytes := range map[string]string{
		"version":         "02000000000000" + "00",
		"two links":       "01300000000000" + "0001",
		"status":          "01000005000000" + "00",
		"topic":           "010000000080800400" + "00",
		"partition":       "01000000000080808080" + "0800",
		"offset":          "010000000000" + "00ffffffffffffffffff01",
		"result length":   "01040000" + "00000000" + "ffffffff0f",
		"attempt":         "01020000" + "00000000" + "ffffffff7f",
		"endless uvarint": "01000000" + "ffffffffffffffffffffffff",
	} {
		b, err := hex.DecodeString(bytes)
		if err != nil {
			t.Fatal(err)
		}
		if row, err := DecodeValue(Digest{}, b); !errors.Is(err, ErrRow) {
			t.Errorf("%s: %+v, %v", name, row, err)
		}
	}
}

func FuzzDecodeRow(f *testing.F) {
	for _, v := range goldenRows {
		f.Add(v.row.AppendValue(nil))
	}
	f.Add([]byte{RowVersion, 0xff &^ flagLinkNone, 1, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		row, err := DecodeValue(Digest{7}, b)
		if err != nil {
			if fmt.Sprint(row) != fmt.Sprint(Row{}) {
				t.Fatalf("a row with the error %v: %+v", err, row)
			}
			return
		}
		encoded := row.AppendValue(nil)
		if len(encoded) > len(b) {
			t.Fatalf("%d bytes were decoded from %d", len(encoded), len(b))
		}
		again, err := DecodeValue(Digest{7}, encoded)
		if err != nil || fmt.Sprintf("%#v", again) != fmt.Sprintf("%#v", row) {
			t.Fatalf("%#v\nbecame %#v, %v", row, again, err)
		}
	})
}
