package processor

import (
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestRouterRoutesOnceAfterAnUnknownCommit answers the router's EndTxn with
// UNKNOWN_SERVER_ERROR after the broker has committed. The client calls that
// "not committed" and goes on from the offsets it remembers: unless it is
// replaced, all records of the transaction are routed twice, which the dedup
// stage hides for keyed events, but not for those without a key (hazard A6).
func TestRouterRoutesOnceAfterAnUnknownCommit(t *testing.T) {
	b := newBench(t, benchRoutes)
	dialer := &spoilingDialer{api: kmsg.EndTxn, match: "app-one-" + stageRoute + "-0", spoil: answerEndTxn(kerr.UnknownServerError)}
	i := b.ready(b.start(b.config("one"), kgo.Dialer(dialer.dial)))
	dialer.arm(1)
	keyless := &kgo.Record{Topic: "signals.raw", Partition: 1, Value: []byte(`{"price":"1.0"}`)}
	b.produce(signal("a", 0, testTime), signal("b", 1, testTime), signal("b", 2, testTime), keyless)
	b.drain(i, "signals.raw")
	if dialer.left() != 0 {
		t.Fatal("no answer was spoiled")
	}
	routed := map[string]int{}
	for _, r := range b.read("app-repartition") {
		var env envelope
		if err := readEnvelope(r, &env); err != nil {
			t.Fatal(err)
		}
		routed[fmt.Sprint(env.from)]++
	}
	if len(routed) != 3 {
		t.Errorf("routed %v, want 3 records", routed)
	}
	for from, n := range routed {
		if n != 1 {
			t.Errorf("the record at %s was routed %d times", from, n)
		}
	}
	if dead := b.read("dead"); len(dead) != 1 {
		t.Errorf("%d dead letters of one record without a key", len(dead))
	}
}
