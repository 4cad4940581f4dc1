package rules

import (
	"bytes"
	"fmt"
	"math/bits"
	"strings"
	"testing"
)

// objectOf is an object of n members of about 20 bytes each, and an id.
func objectOf(n int) []byte {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"member%05d":%d,`, i*7919%99991, 1000+i)
	}
	return []byte("{" + b.String() + `"id":"x"}`)
}

// TestSecondMemberOfOneName requires that a second member of one name is found in objects of
// any size, wherever its first is, and that the same object without it is read by scan.
func TestSecondMemberOfOneName(t *testing.T) {
	var s scan // kept, as a Deriver keeps it
	read := func(value string) bool {
		checkScan(t, []byte(value))
		s.b, s.found = []byte(value), nil
		return s.document(nil)
	}
	for _, n := range []int{1, membersListed - 1, membersListed, membersListed + 1, 64, 255, 256, 257, 1000, 10_000} {
		object := string(objectOf(n))
		for _, form := range []string{"%s", `{"a":%s,"b":1}`, `[%s,%[1]s]`, `{"a":[{"member00000":%s}],"member00000":{"id":%[1]s}}`} {
			if value := fmt.Sprintf(form, object); !read(value) {
				t.Errorf("%d members in %s: scan refused them", n, form)
			}
			for _, twice := range []int{0, n / 2, n - 1} {
				second := fmt.Sprintf(`"member%05d":1,`, twice*7919%99991)
				for _, at := range []int{len(object) - len(`"id":"x"}`), bytes.IndexByte([]byte(object), ',') + 1} {
					if value := fmt.Sprintf(form, object[:at]+second+object[at:]); read(value) {
						t.Fatalf("member %d of %d stands twice in %s, and scan accepted it", twice, n, form)
					}
				}
			}
		}
	}
}

// TestNamesThatCollide requires that a search ends soon even if all names have one slot.
func TestNamesThatCollide(t *testing.T) {
	inverse := memberFactor // of an odd number, modulo 2^64: each step doubles its right bits
	for range 6 {
		inverse *= 2 - memberFactor*inverse
	}
	if memberFactor*inverse != 1 {
		t.Fatal("no inverse")
	}
	table := make([]uint64, 4*membersListed)
	last, _ := bits.Mul64(7*inverse*memberFactor, uint64(len(table)))
	if last != 0 {
		t.Fatalf("slot %d", last)
	}
	for i := range uint64(probesMax) {
		if !insert(table, (i+1)*inverse) {
			t.Fatalf("insert refused hash %d", i)
		}
	}
	if insert(table, (probesMax+1)*inverse) {
		t.Error("a search went on after probesMax slots")
	}
	if insert(table, 0) {
		t.Error("inserted the hash that marks a free slot")
	}
}

// TestTablesOfClosedObjects requires that an object's table begins empty, and that the memory
// for it depends on the members of open objects alone.
func TestTablesOfClosedObjects(t *testing.T) {
	object := string(objectOf(1000))
	var s scan
	s.b = []byte("[" + strings.Repeat(object+",", 50) + object + "]")
	if !s.document(nil) {
		t.Fatal("scan refused equal objects")
	}
	if cap(s.slots) > 16*1000 || cap(s.names) > 4*1000 {
		t.Errorf("%d slots and %d names are kept for objects of 1,000 members", cap(s.slots), cap(s.names))
	}
}

// BenchmarkMembers measures a payload of 64 KiB in objects of so many members.
func BenchmarkMembers(b *testing.B) {
	tree := newPathTree()
	path, err := parsePath("0.id", false)
	if err != nil {
		b.Fatal(err)
	}
	tree.add(path.segments, 0)
	for _, n := range []int{8, 64, 255, 257, 1000, 10_000, 60_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			one := objectOf(n)
			value := []byte("[" + strings.Repeat(string(one)+",", 64<<10/len(one)) + string(one) + "]")
			p := payload{found: make([][]byte, 1)}
			b.ReportAllocs()
			for b.Loop() {
				p.open(value, nil)
				if !p.read(tree) {
					b.Fatal(p.broken)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(value)), "ns/B")
		})
	}
}

// TestMembersAreBounded: the decoder reads no object whose names would take tens of megabytes,
// whatever makes it read the payload. Any number of small objects is read.
func TestMembersAreBounded(t *testing.T) {
	object := func(n int, first string) string {
		var b strings.Builder
		b.WriteString("{" + first)
		for i := range n {
			fmt.Fprintf(&b, ",\"%d\":0", i)
		}
		return b.String() + "}"
	}
	many := "[" + strings.TrimSuffix(strings.Repeat(`{"a\u0062":":{","c":"\\\""},`, membersMax), ",") + "]"
	for name, c := range map[string]struct {
		payload string
		refused bool
	}{
		"most":                {object(membersMax-1, `"id":"1"`), false},
		"one more":            {object(membersMax, `"id":"1"`), true},
		"with an escape":      {object(membersMax, `"id":"1","a\u0062":0`), true},
		"of objects around":   {`{"id":"1","a":` + object(membersMax/2, `"b":0`) + `,"c":` + object(membersMax/2, `"d":0`) + `}`, false},
		"in objects around":   {strings.TrimSuffix(object(membersMax/2, `"id":"1"`), "}") + `,"z":` + object(membersMax/2, `"c\u0063":0`) + `}`, true},
		"small ones":          {`{"id":"1","list":` + many + `}`, false},
		"texts that look so":  {`{"id":"1","a\u0062":"` + strings.Repeat(`:\"{`, membersMax) + `"}`, false},
		"one without its end": {object(membersMax, `"id":"1"`)[:4*membersMax], false},
	} {
		got := derive(t, "[{field: id}]", c.payload)
		if is := got.Reason == "payload: "+reasonMembers; is != c.refused || !is && got.Finding != Keyed && name != "one without its end" {
			t.Errorf("%s: %v %q", name, got.Finding, got.Reason)
		}
	}
}
