package processor_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// largeMax is max.message.bytes of the topics of these tests.
const largeMax = 20_000

// large makes an event of n bytes, which a codec can shorten or cannot.
func large(id string, partition int32, n int, shortens bool) *kgo.Record {
	r := signal(id, partition, testTime)
	text := strings.Repeat("0123456789", n/10)
	if !shortens {
		b := make([]byte, n*3/4)
		_, _ = rand.Read(b) // never fails
		text = base64.StdEncoding.EncodeToString(b)
	}
	r.Value = fmt.Appendf(nil, `{"id":%q,"text":%q}`, id, text)
	return r
}

// TestLargeEventFitsCompressed protects events that are larger than the output takes but fit compressed, because a
// broker checks the size of the compressed batch. They are emitted whole, among small events in all partitions, in
// one transaction with an event that does not fit, which becomes a dead letter with its value.
func TestLargeEventFitsCompressed(t *testing.T) {
	t.Parallel()
	bothWays(t, benchRoutes, func(t *testing.T, routes string) {
		t.Run("fits", func(t *testing.T) {
			t.Parallel()
			b := newBench(t, routes)
			b.createTopic("signals.raw", 4)
			b.createTopic("signals.unique", 4, "max.message.bytes", fmt.Sprint(largeMax))
			want := map[string]*kgo.Record{}
			var records []*kgo.Record
			for n := range 40 {
				id, partition := fmt.Sprint("id-", n), int32(n%4)
				r := signal(id, partition, testTime)
				if n%5 == 2 {
					r = large(id, partition, 6*largeMax, true)
				}
				want[id] = r
				copied := *r
				records = append(records, r, &copied)
			}
			b.produce(append(records, large("too-large", 1, 2*largeMax, false))...)
			i := b.ready(b.start(b.config("one")))
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), want)
			dead := b.read("dead")
			if len(dead) != 1 || len(dead[0].Value) < 2*largeMax || !strings.Contains(header(dead[0], wire.HeaderReason), "too large for topic signals.unique") {
				t.Errorf("dead letters: %v", dead)
			}
		})
	})
}
