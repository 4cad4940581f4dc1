package processor

import (
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/wire"
)

// smallChangelog makes the changelog of the repartition topic with a limit to its records.
func (b *bench) smallChangelog(maxBytes int) {
	b.t.Helper()
	b.createTopic("app-repartition-changelog", 4, "cleanup.policy", "compact,delete", "retention.ms", "-1", "retention.bytes", "-1",
		"message.timestamp.type", "LogAppendTime", "max.message.bytes", fmt.Sprint(maxBytes))
}

// longOperation is an operation whose sender has as long a key and id as is kept.
func longOperation(id string, n int) *kgo.Record {
	r := operation(id, fmt.Sprintf("%04d", n)+strings.Repeat("r", dedup.RequestBytesMax-4), int32(n%4))
	r.Key = []byte(strings.Repeat(fmt.Sprintf("%04d", n), dedup.RequestBytesMax/4))
	return r
}

// TestResultTheChangelogDoesNotTake is not recorded, however its length comes
// about. A waiting request gets the result, later replies name its omission.
func TestResultTheChangelogDoesNotTake(t *testing.T) {
	t.Parallel()
	const limit, step = 20_000, 25
	for _, headers := range []int{0, 80, 2000} {
		t.Run(fmt.Sprint(headers, " headers"), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, strings.Replace(fmt.Sprintf(claimRoutes, "reject"), "result_limit: 100", "result_limit: 65536", 1))
			b.smallChangelog(limit)
			i := b.ready(b.start(b.config("one")))
			// From one that fits for certain to one whose row is too large.
			sizes := map[string]int{}
			var events []*kgo.Record
			for n, size := range []int{0, limit / 2, limit - 6000} {
				sizes[fmt.Sprintf("far%d", n)] = size
			}
			for n := range 60 {
				sizes[fmt.Sprintf("edge%d", n)] = limit - 1500 - 3*headers + step*n
			}
			for id := range sizes {
				e := operation(id, strings.Repeat("r", dedup.RequestBytesMax), 0)
				e.Key = []byte(id)
				events = append(events, e)
			}
			b.produce(events...)
			b.drainClaims(i)
			var tiny []kgo.RecordHeader
			for range headers {
				tiny = append(tiny, kgo.RecordHeader{Key: "a"})
			}
			for _, run := range b.read("ops.run") {
				b.produce(outcomeOf(run, "completed", make([]byte, max(0, sizes[string(run.Key)])), tiny...))
			}
			b.drainClaims(i)
			for _, e := range events {
				e.Partition = 1
			}
			b.produce(events...)
			b.drainClaims(i)
			kept, omitted := -1, 1<<30
			for _, r := range b.read("ops.replies") {
				size := sizes[string(r.Key)]
				switch {
				case header(r, wire.HeaderVerdict) == "unique":
					if len(r.Value) != size || header(r, wire.HeaderReason) != "" {
						t.Errorf("who waited got %d bytes of %d, %q", len(r.Value), size, header(r, wire.HeaderReason))
					}
				case header(r, wire.HeaderReason) == "":
					kept = max(kept, size)
				default:
					omitted = min(omitted, size)
					if want := fmt.Sprintf("the result of %d bytes was not kept, its row would", size+headers); r.Value != nil || !strings.Contains(header(r, wire.HeaderReason), want) {
						t.Errorf("the copy got %d bytes and %q, want none and %q", len(r.Value), header(r, wire.HeaderReason), want)
					}
				}
			}
			if n := len(b.replies("ops.replies")); n != 2*len(sizes) || omitted != kept+step {
				t.Errorf("%d replies to %d requests; up to %d bytes are kept, from %d on they are not", n, 2*len(sizes), kept, omitted)
			}
		})
	}
}

// TestClaimRowTooLargeForAnotherRequest is claimed again all the same when
// its lease is over. A later request gets in_progress, and is not stored.
func TestClaimRowTooLargeForAnotherRequest(t *testing.T) {
	t.Parallel()
	for _, pending := range []string{"reject", "wait"} {
		t.Run(pending, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, strings.Replace(fmt.Sprintf(claimRoutes, pending), "lease: 10m", "lease: 20ms", 1))
			b.smallChangelog(4500) // for one request
			i := b.ready(b.start(b.config("one")))
			copies := 0
			b.produce(longOperation("1", 0))
			b.drainClaims(i)
			for len(b.read("ops.run")) < 3 {
				copies++
				b.produce(longOperation("1", copies))
				b.drainClaims(i)
			}
			for _, run := range b.read("ops.run") {
				if header(run, wire.HeaderAttempt) == "3" {
					b.produce(outcomeOf(run, "rejected", []byte("no")))
				}
			}
			b.drainClaims(i)
			replies := b.replies("ops.replies")
			if len(replies) != copies+1 {
				t.Errorf("%d replies to %d requests", len(replies), copies+1)
			}
			for source, r := range replies {
				want := map[string]string{wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "in_progress", wire.HeaderReason: ""}
				if source == "ops.raw/0/0" {
					want = map[string]string{wire.HeaderVerdict: "unique", wire.HeaderClaimStatus: "rejected"}
				}
				assertHeaders(t, r, want)
			}
			if n := b.waitingRequests(b.config("one")); n != 0 {
				t.Errorf("%d requests are said to wait", n)
			}
		})
	}
}

// TestClaimTheChangelogDoesNotTake is no claim: its event goes to the
// dead-letter topic, and the next one is judged. One that it takes without who
// asked runs, and duplicates get its result.
func TestClaimTheChangelogDoesNotTake(t *testing.T) {
	t.Parallel()
	for limit, dead := range map[int]bool{1200: true, 2500: false} {
		t.Run(fmt.Sprint(limit), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
			b.smallChangelog(limit)
			i := b.ready(b.start(b.config("one")))
			b.produce(longOperation("long", 0), operation("short", "short", 1))
			b.drainClaims(i)
			for _, run := range b.read("ops.run") {
				b.produce(outcomeOf(run, "completed", []byte("done")))
			}
			b.drainClaims(i)
			letters, replies := b.read("dead"), b.replies("ops.replies")
			assertHeaders(t, replies["ops.raw/1/0"], map[string]string{wire.HeaderVerdict: "unique", wire.HeaderClaimStatus: "completed"})
			if dead {
				if len(letters) != 1 || len(replies) != 1 {
					t.Fatalf("%d dead letters, %d replies", len(letters), len(replies))
				}
				assertHeaders(t, letters[0], map[string]string{wire.HeaderVerdict: "invalid", wire.HeaderSource: "ops.raw/0/0", wire.HeaderClaimToken: ""})
				if reason := header(letters[0], wire.HeaderReason); !strings.Contains(reason, "too large for topic app-repartition-changelog") {
					t.Errorf("reason %q", reason)
				}
				return
			}
			assertHeaders(t, replies["ops.raw/0/0"], map[string]string{wire.HeaderVerdict: "in_progress", wire.HeaderClaimStatus: "in_progress"})
			b.produce(longOperation("long", 2))
			b.drainClaims(i)
			again := b.replies("ops.replies")["ops.raw/2/0"]
			assertHeaders(t, again, map[string]string{wire.HeaderVerdict: "replayed", wire.HeaderClaimStatus: "completed", wire.HeaderReason: ""})
			if string(again.Value) != "done" || len(letters) != 0 {
				t.Errorf("the duplicate got %q; %d dead letters", again.Value, len(letters))
			}
		})
	}
}
