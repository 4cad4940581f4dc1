package portable

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"oncebus/dedup"
	"oncebus/processor/kafkatest/golden"
)

func testHeader() *Header {
	return &Header{
		Level: 2, Cluster: "c", App: "app", At: "2026-11-25T22:00:00Z",
		Namespaces: []Namespace{{Name: "signals", KeyRule: "field id", Mode: "dedup", WindowMS: 3600000, GraceMS: 600000}, {Name: "ops", Mode: "claim", WindowMS: -1, GraceMS: -1}},
		Tasks:      []Task{{Topic: "app-repartition", ChangelogID: "00", End: 12, Sequence: 3, Next: 9, StreamTimes: map[string]int64{"signals": 7}}, {Topic: "app-repartition", Partition: 1}},
		Offsets:    []Offset{{Topic: "signals.raw", TopicID: "01", Offset: 5, End: 5}},
	}
}

// rowsLike returns rows as a changelog of signals has them: random keys, times that go on.
func rowsLike(n int) []Row {
	rng := rand.New(rand.NewPCG(1, 2))
	first := int64(1_700_000_000_000)
	rows := make([]Row, n)
	for i := range rows {
		first += rng.Int64N(100) - 30
		rows[i] = Row{Row: dedup.Row{First: first}, Task: i * 2 / n}
		for j := range rows[i].Digest {
			rows[i].Digest[j] = byte(rng.Uint32())
		}
	}
	return rows
}

// strange are rows with every detail.
func strange() []Row {
	return []Row{
		{Row: dedup.Row{Digest: dedup.Digest{1}, First: -5}},
		{Row: dedup.Row{Digest: dedup.Digest{2}, First: 1 << 62, Fingerprint: 7, Shift: -3}},
		{Row: dedup.Row{Digest: dedup.Digest{3}, First: -1 << 62, NamespaceID: 1, Status: dedup.Completed, Attempt: 3, HasResult: true, Result: []byte("done")}, Task: 1},
		{Row: dedup.Row{Digest: dedup.Digest{4}, NamespaceID: 1, Status: dedup.ClaimInProgress, Attempt: 1, HasResult: true}, Task: 1},
		{Row: dedup.Row{Digest: dedup.Digest{5}, First: 9}},
	}
}

func fileOf(tb testing.TB, rows []Row) []byte {
	tb.Helper()
	return fileWith(tb, testHeader(), rows)
}

func fileWith(tb testing.TB, h *Header, rows []Row) []byte {
	tb.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, h)
	if err != nil {
		tb.Fatal(err)
	}
	for i := range rows {
		if err := w.Add(&rows[i]); err != nil {
			tb.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func read(file []byte) (rows []Row, r *Reader, err error) {
	if r, err = NewReader(bytes.NewReader(file)); err != nil {
		return nil, nil, err
	}
	for row, err := range r.Rows() {
		if err != nil {
			return rows, r, err
		}
		one := *row
		one.Result = bytes.Clone(row.Result)
		rows = append(rows, one)
	}
	return rows, r, nil
}

func TestRowsComeBack(t *testing.T) {
	for _, want := range [][]Row{nil, strange(), rowsLike(RowsPerBlock), rowsLike(3*RowsPerBlock + 1)} {
		got, r, err := read(fileOf(t, want))
		if err != nil || len(got) != len(want) || len(want) > 0 && !reflect.DeepEqual(got, want) {
			t.Fatalf("%d rows of %d: %v", len(got), len(want), err)
		}
		if !reflect.DeepEqual(&r.Header, testHeader()) || r.Trailer().Rows != int64(len(want)) || len(r.Digest()) != 64 {
			t.Errorf("header %+v, trailer %+v", r.Header, r.Trailer())
		}
	}
}

// TestFileOfALeavingApp: its version is one that earlier builds refuse, and no other header has
// it.
func TestFileOfALeavingApp(t *testing.T) {
	h := testHeader()
	h.Leaving = &Leaving{Hold: "h", HashSecret: []byte{1}, Inputs: []Input{{Topic: "signals.raw", Held: 5, Tail: make([]byte, 32), Earliest: 7}}}
	h.Tasks[0].Known = map[string]Known{"signals": {Since: 3, LateBefore: 4}}
	file := fileWith(t, h, strange())
	_, r, err := read(file)
	if err != nil || !reflect.DeepEqual(&r.Header, h) || file[len(magic)] != versionLeaving {
		t.Errorf("header %+v, version %d: %v", r.Header, file[len(magic)], err)
	}
	for _, wrong := range []byte{0, version, versionLeaving + 1} {
		file[len(magic)] = wrong
		if _, _, err := read(file); !errors.Is(err, ErrFile) {
			t.Errorf("read as version %d: %v", wrong, err)
		}
	}
}

// TestBytesPerKey measures the file of a million keys.
func TestBytesPerKey(t *testing.T) {
	const n = 1_000_000
	size := len(fileOf(t, rowsLike(n)))
	t.Logf("%.2f bytes a key", float64(size)/n)
	if size > 20*n {
		t.Errorf("%d bytes for %d keys", size, n)
	}
}

// TestGoldenFile pins the bytes.
func TestGoldenFile(t *testing.T) {
	golden.Assert(t, "strange.obx1.hex", hex.Dump(fileOf(t, strange())))
}

// TestDamageIsRefused changes each byte, cuts the file at each, and adds one.
func TestDamageIsRefused(t *testing.T) {
	whole := fileOf(t, strange())
	for at := range whole {
		damaged := bytes.Clone(whole)
		damaged[at] ^= 0x40
		if _, _, err := read(damaged); !errors.Is(err, ErrFile) {
			t.Fatalf("byte %d changed: %v", at, err)
		}
		if _, _, err := read(whole[:at]); !errors.Is(err, ErrFile) {
			t.Fatalf("cut at %d: %v", at, err)
		}
	}
	if _, _, err := read(append(whole, 0)); !errors.Is(err, ErrFile) {
		t.Errorf("a byte more: %v", err)
	}
}

// TestDamageIsNamed: the error names block and offset, and the blocks before are read.
func TestDamageIsNamed(t *testing.T) {
	rows := rowsLike(3 * RowsPerBlock)
	file := fileOf(t, rows)
	second := bytes.Index(file, rows[RowsPerBlock].Digest[:])
	file[second+100] ^= 1
	got, _, err := read(file)
	if want := fmt.Sprintf("block 2 at offset %d", second-13); len(got) != RowsPerBlock || err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%d rows, %v; want %q", len(got), err, want)
	}
}

func FuzzReader(f *testing.F) {
	f.Add(fileOf(f, strange()))
	f.Add(fileOf(f, rowsLike(300)))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, file []byte) {
		rows, _, err := read(file)
		if err != nil && !errors.Is(err, ErrFile) {
			t.Fatalf("%v", err)
		}
		if err == nil && len(rows) > len(file)*1000 {
			t.Fatalf("%d rows in %d bytes", len(rows), len(file))
		}
	})
}

func FuzzBody(f *testing.F) {
	for _, r := range strange() {
		f.Add(appendBody(nil, &r, &Row{}, true))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var row Row
		rest, err := row.readBody(b, true)
		if err != nil {
			return
		}
		again := appendBody(nil, &row, &Row{}, true)
		var back Row
		if _, err := back.readBody(again, true); err != nil || !reflect.DeepEqual(back, row) {
			t.Fatalf("%x read as %+v (rest %d), written as %x, read as %+v: %v", b, row, len(rest), again, back, err)
		}
	})
}
