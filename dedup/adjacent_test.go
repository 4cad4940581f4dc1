package dedup

import (
	"testing"

	"pgregory.net/rapid"
)

// orderBook judges orders of one kind in claim mode, with a step of 60 and a window of 600. It has one row for each
// bucket.
type orderBook struct {
	rows   map[int64]Row
	stream int64
	offset int64
}

const bookStep = 60

var bookWindow = Window{Size: 600, Skew: 1 << 40}

func newOrderBook() *orderBook { return &orderBook{rows: map[int64]Row{}, stream: NoStreamTime} }

// judge judges an order that has at as its own timestamp and time as its event time.
func (b *orderBook) judge(t rapid.TB, at, time int64, details uint64) ClaimDecision {
	t.Helper()
	b.offset++
	bucket := at / bookStep
	ev := ClaimEvent{Event: Event{Digest: bookDigest(bucket), Time: time, Shift: at - time, At: Position{Offset: b.offset}, Fingerprint: details << 8}}
	var adjacent []Row
	for _, n := range [...]int64{bucket - 1, bucket + 1} {
		if row, ok := b.rows[n]; ok {
			adjacent = append(adjacent, row)
		}
	}
	own, found := b.rows[bucket]
	prior, found := ev.Prior(own, found, adjacent, bookStep, bookWindow, b.stream)
	c, err := DecideClaim(ev, prior, found, bookWindow, ClaimRule{Lease: 1 << 40}, b.stream)
	if err != nil {
		t.Fatal(err)
	}
	if c.Write {
		b.rows[int64(c.Row.Digest[0])] = c.Row
	}
	b.stream = NextStreamTime(b.stream, time, time)
	return c
}

func bookDigest(bucket int64) Digest { return Digest{byte(bucket)} }

// applyOutcome applies an outcome to the order in a bucket.
func (b *orderBook) applyOutcome(t rapid.TB, bucket int64, kind OutcomeKind) {
	t.Helper()
	row := b.rows[bucket]
	s, err := ApplyOutcome(&Outcome{Kind: kind, Token: TokenOf(&row, 0)}, row, true, bookWindow, ClaimRule{}, b.stream)
	if err != nil || s.Refused != "" {
		t.Fatal(s.Refused, err)
	}
	b.rows[bucket] = s.Row
}

// TestAdjacentRowsDecide judges sequences of orders that have timestamps of their own.
func TestAdjacentRowsDecide(t *testing.T) {
	type order struct {
		at, time int64
		print    uint64
		verdict  Verdict
		bucket   int64 // of the row that decided
		attempt  uint32
		then     string // kind of the outcome that the executor then sends for that row
	}
	for name, orders := range map[string][]order{
		"a retry across the edge is a duplicate, from both sides": {
			{59, 59, 1, Unique, 0, 1, ""}, {61, 61, 1, InProgress, 0, 1, ""}, {10, 62, 1, InProgress, 0, 1, ""},
			{180, 180, 1, Unique, 3, 1, ""}, {179, 181, 1, InProgress, 3, 1, ""},
		},
		"one step later it is another order": {{10, 10, 1, Unique, 0, 1, ""}, {70, 70, 1, Unique, 1, 1, ""}},
		"another order in the adjacent bucket has its own row": {
			{30, 30, 1, Unique, 0, 1, ""}, {70, 70, 2, Unique, 1, 1, ""}, {70, 71, 2, InProgress, 1, 1, ""}, {30, 72, 1, InProgress, 0, 1, ""},
		},
		"only the own row can collide": {
			{30, 30, 1, Unique, 0, 1, ""}, {31, 31, 2, Collision, 0, 1, ""}, {70, 70, 2, Unique, 1, 1, ""},
		},
		"the first is in the adjacent bucket, another order in the own one": {
			{65, 65, 2, Unique, 1, 1, ""}, {30, 70, 1, Unique, 0, 1, ""}, {65, 80, 1, InProgress, 0, 1, ""}, {65, 81, 2, InProgress, 1, 1, ""},
		},
		"a duplicate stays a duplicate of the first": {
			{10, 10, 1, Unique, 0, 1, "completed"}, {65, 65, 1, Replayed, 0, 1, ""}, {75, 75, 1, Unique, 1, 1, "completed"},
			{65, 80, 1, Replayed, 0, 1, ""}, {75, 81, 1, Replayed, 1, 1, ""},
		},
		"after a failed first it is a duplicate of the own row": {
			{10, 10, 1, Unique, 0, 1, ""}, {75, 75, 1, Unique, 1, 1, ""}, {65, 76, 1, InProgress, 0, 1, "failed"}, {65, 77, 1, InProgress, 1, 1, ""},
		},
		"a retry across the edge is another attempt": {
			{59, 59, 1, Unique, 0, 1, "failed"}, {61, 61, 1, Unique, 1, 2, "failed"}, {59, 62, 1, Unique, 0, 3, ""},
		},
		"another order starts at 1":   {{59, 59, 1, Unique, 0, 1, "failed"}, {61, 61, 2, Unique, 1, 1, ""}},
		"after the window it expires": {{59, 59, 1, Unique, 0, 1, "completed"}, {59, 700, 1, AfterWindow, 0, 2, ""}, {59, 701, 1, InProgress, 0, 2, ""}},
		"a retry across the edge expires too": {
			{59, 59, 1, Unique, 0, 1, "completed"}, {61, 700, 1, AfterWindow, 1, 2, ""}, {61, 701, 1, InProgress, 1, 2, ""}, {59, 702, 1, InProgress, 1, 2, ""},
		},
		"an adjacent row covers a window before its first event": {{59, 2000, 1, Unique, 0, 1, ""}, {61, 1400, 1, InProgress, 0, 1, ""}, {61, 1399, 1, Late, 0, 1, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newOrderBook()
			for n, o := range orders {
				c := b.judge(t, o.at, o.time, o.print)
				if c.Verdict != o.verdict || c.Row.Digest != bookDigest(o.bucket) || c.Row.Attempt != o.attempt {
					t.Fatalf("order %d: %v of bucket %d, attempt %d; want %+v", n, c.Verdict, c.Row.Digest[0], c.Row.Attempt, o)
				}
				if kind, ok := ParseOutcomeKind([]byte(o.then)); ok {
					b.applyOutcome(t, o.bucket, kind)
				}
			}
		})
	}
}

// TestOrderIsAnsweredByOneRow judges random orders. The row that decided an order must decide it again within its
// window, whatever orders came between.
func TestOrderIsAnsweredByOneRow(t *testing.T) {
	type request struct {
		at    int64
		print uint64
	}
	rapid.Check(t, func(t *rapid.T) {
		b, decided, now := newOrderBook(), map[request]Row{}, int64(1000)
		for range rapid.IntRange(1, 40).Draw(t, "orders") {
			now += rapid.Int64Range(0, 60).Draw(t, "elapsed")
			r := request{5 * rapid.Int64Range(0, 23).Draw(t, "at"), rapid.Uint64Range(1, 2).Draw(t, "print")}
			c := b.judge(t, r.at, now, r.print)
			last, again := decided[r]
			switch {
			case c.Verdict == Collision:
				if c.Row.Digest != bookDigest(r.at/bookStep) {
					t.Fatalf("%+v collides with an order of bucket %d", r, c.Row.Digest[0])
				}
				continue
			case again && !bookWindow.Over(last.First, now) && (c.Dispatch || c.Row.Digest != last.Digest || c.Row.At != last.At):
				t.Fatalf("%+v was decided by %+v, now by %+v", r, last, c.Row)
			case !c.Dispatch && c.Row.Fingerprint != r.print<<8:
				t.Fatalf("%+v is a duplicate of %+v", r, c.Row)
			}
			decided[r] = c.Row
		}
	})
}
