package rules

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// scanPaths go through objects and arrays; some contain others.
var scanPaths = []string{"id", "a", "a.b", "a.b.c", "l.0", "l.1.k", "l", "é", "x.y"}

// readTwice reads a payload with scan and with the decoder and returns the values
// that each found.
func readTwice(tb testing.TB, value []byte) (quick bool, quickFound, slowFound [][]byte, refused error) {
	tb.Helper()
	tree := newPathTree()
	tree.slot = 0 // the whole document
	for i, text := range scanPaths {
		path, err := parsePath(text, false)
		if err != nil {
			tb.Fatal(err)
		}
		tree.add(path.segments, i+1)
	}
	var p, q payload
	p.found, q.found = make([][]byte, len(scanPaths)+1), make([][]byte, len(scanPaths)+1)
	p.open(value, nil)
	q.open(value, nil)
	p.scan.b, p.scan.found = value, p.found
	quick = p.scan.document(tree)
	return quick, p.found, q.found, q.decode(tree)
}

// checkScan requires that the decoder accepts every payload that scan accepts, and
// that both find the same values.
func checkScan(tb testing.TB, value []byte) (quick bool) {
	tb.Helper()
	quick, quickFound, slowFound, refused := readTwice(tb, value)
	if !quick {
		return false
	}
	if refused != nil {
		tb.Fatalf("scan accepts a payload that the decoder refuses with %q: %q", refused, value)
	}
	for i := range quickFound {
		if !bytes.Equal(quickFound[i], slowFound[i]) || (quickFound[i] == nil) != (slowFound[i] == nil) {
			tb.Fatalf("slot %d: scan found %q, the decoder %q, in %q", i, quickFound[i], slowFound[i], value)
		}
	}
	return true
}

func manyMembers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"member-%d":%d,`, i, i)
	}
	return "{" + b.String() + `"id":"x"}`
}

// TestScan requires that scan accepts common JSON and refuses all other payloads.
func TestScan(t *testing.T) {
	for payload, want := range map[string]bool{
		`{"id":"a"}`: true,
		` { "id" : "a" , "a" : { "b" : { "c" : [ ] } } , "l" : [ 1 , { "k" : -0.5e+3 } ] } ` + "\r\n\t": true,
		`{"text":"tab \t, quote \", slash \/, \u00e9, \uFFFF","id":"ü, 漢, 😀"}`:                          true,
		`{"é":1,"a":{"é":1}}`: true,
		`[]`:                  true, `{}`: true, `null`: true, `[{}, ""]`: true,
		`       7`: true, `"x"     `: true, `      -0`: true, `0.10    `: true, `     1E5`: true, `123456789.123456789e-123456789`: true, `1234567812345678`: true,
		`{"long member name":1,"long member nane":2,"":"","é long member name":3}`: true,
		manyMembers(membersListed / 2):                                             true,
		strings.Repeat("[", scanDepthMax) + strings.Repeat("]", scanDepthMax):      true,

		strings.Repeat("[", scanDepthMax+2) + strings.Repeat("]", scanDepthMax+2): false,
		manyMembers(membersMax + 1): false,
		`{"id":1,"id":2}`:           false, `{"id":1,"\u0069d":2}`: false, `{"x":[{"b":1,"b":1}]}`: false, `{"long member name":1,"long member name":2}`: false,
		`"\ud83d\ude00"`: false, `"\ud800"`: false, `"\u12g4"`: false, `"\u123`: false, `"\x"`: false, `"\`: false,
		"\"\x1f\"": false, "\"\xff\"": false, "{\"\xc3\":1}": false, "\"12345678\x001234567\"": false,
		``: false, ` `: false, `{`: false, `{"`: false, `{"id"`: false, `{"id":`: false, `{"id":1`: false, `{"id":1,`: false, `{"id":1,}`: false, `{1:2}`: false, `{"id" 1}`: false,
		`[`: false, `[1`: false, `[1,`: false, `[1,]`: false, `[1 2]`: false, `[1}`: false, `{"a":1]`: false, `1 2`: false, `{}x`: false,
		`7`: false, `"x"`: false, `{"a":1}`: false, // less than eight bytes
		`     0a `: false, `       01`: false, `12345678a`: false, `123456780.`: false, `1.2345678e`: false,
		"{\"12345678\x00\":1}": false, "{\"1234567\xff\":1}": false, `{"a long member name`: false, `{"a\u0062 is escaped":1}`: false,
		`01`: false, `-`: false, `1.`: false, `.5`: false, `1e`: false, `1e+`: false, `+1`: false, `-01`: false, `tru`: false, `nul`: false, `False`: false, `truex`: false,
	} {
		if got := checkScan(t, []byte(payload)); got != want {
			t.Errorf("scan of %.80q: %v, want %v", payload, got, want)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, payload := range []string{
		`{"id":"a","a":{"b":{"c":[1,2.5e-7]}},"l":[true,{"k":null}],"é":"\u00e9"}`, `{"id":1,"id":2}`, `["\ud800"]`, "\"\xff\"", manyMembers(70), ` [ 0 , -1 ] `,
	} {
		f.Add([]byte(payload))
	}
	f.Fuzz(func(t *testing.T, payload []byte) { checkScan(t, payload) })
}

// BenchmarkRead measures scan and the decoder.
func BenchmarkRead(b *testing.B) {
	in := benchInput(230)
	tree := newPathTree()
	path, err := parsePath("traceId", false)
	if err != nil {
		b.Fatal(err)
	}
	tree.add(path.segments, 0)
	p := payload{found: make([][]byte, 1)}
	p.json = in.Value
	b.Run("quick", func(b *testing.B) {
		p.scan.b, p.scan.found = p.json, p.found
		for b.Loop() {
			if !p.scan.document(tree) {
				b.Fatal("scan refused the payload")
			}
		}
	})
	b.Run("decoder", func(b *testing.B) {
		for b.Loop() {
			if err := p.decode(tree); err != nil {
				b.Fatal(err)
			}
		}
	})
}
