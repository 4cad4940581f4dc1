package processor_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/wire"
)

// uncompressed lets a test find a text in a produce request. The franz-go option for no compression writes to its
// arguments, so clients cannot share that option.
var uncompressed = kgo.WithCompressor(noCompressor{})

type noCompressor struct{}

func (noCompressor) Compress(_ *bytes.Buffer, src []byte, _ ...kgo.CompressFlag) ([]byte, kgo.CompressionCodecType) {
	return src, kgo.CodecNone
}

// refuse makes the brokers refuse for good every batch for a topic that contains a text, until accept is called.
func (b *bench) refuse(topic string, partitions int32, text string, code *kerr.Error) (accept func()) {
	b.t.Helper()
	var faults []*kfake.FaultHandle
	for p := range partitions {
		has := false
		visit := b.batchesOf(topic, func(partition int32, batch *kmsg.RecordBatch) {
			has = has || partition == p && bytes.Contains(batch.Records, []byte(text))
		})
		faults = append(faults, b.cluster.Fault(kfake.Fault{
			Keys: []kmsg.Key{kmsg.Produce}, Topic: topic, Partitions: []int32{p}, Err: code, Count: -1,
			When: func(req kmsg.Request) bool { has = false; visit(req); return has },
		}))
	}
	return func() {
		for _, f := range faults {
			f.Remove()
		}
	}
}

// mixed makes n events, each twice. The brokers refuse every tenth event.
func mixed(n int) (records []*kgo.Record, good, bad map[string]*kgo.Record) {
	good, bad = map[string]*kgo.Record{}, map[string]*kgo.Record{}
	for k := range n {
		id := fmt.Sprint("id-", k)
		r := signal(id, int32(k%4), testTime+int64(k))
		if k%10 == 7 {
			r.Value = fmt.Appendf(nil, `{"id":%q,"poison":true}`, id)
			bad[id] = r
		} else {
			good[id] = r
		}
		records = append(records, r)
	}
	return records, good, bad
}

// assertDead checks that each bad event is a dead letter exactly once, with this reason.
func assertDead(t *testing.T, letters []*kgo.Record, bad map[string]*kgo.Record, reason string) {
	t.Helper()
	seen := map[string]int{}
	for _, r := range letters {
		id := strings.TrimPrefix(string(r.Key), "k-")
		seen[id]++
		want := bad[id]
		switch {
		case want == nil:
			t.Errorf("%s is a dead letter: %v", id, r.Headers)
		case !bytes.Equal(r.Value, want.Value) || header(r, wire.HeaderVerdict) != "invalid" || header(r, wire.HeaderSource) != sourceOf(want) || !strings.Contains(header(r, wire.HeaderReason), reason):
			t.Errorf("dead letter of %s: %q %v, want reason %q", id, r.Value, r.Headers, reason)
		}
	}
	for id := range bad {
		if seen[id] != 1 {
			t.Errorf("%d dead letters of %s, want 1", seen[id], id)
		}
	}
}

// TestRefusedRecordIsDeadLettered lets the brokers refuse events for good while accepted events are in the same
// batches (hazard G11). Exactly the refused events become dead letters with the broker's error; all others are
// emitted once. A refused event takes no key, so its sender may send it again.
func TestRefusedRecordIsDeadLettered(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.InvalidRecord, kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidTimestamp} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			bothWays(t, benchRoutes, func(t *testing.T, routes string) {
				t.Parallel()
				b := newBench(t, routes)
				i := b.ready(b.start(b.config("one"), uncompressed))
				accept := b.refuse("signals.unique", 4, "poison", code)
				records, good, bad := mixed(200)
				b.produce(records...)
				b.drain(i, "signals.raw")
				assertOnce(t, b.read("signals.unique"), good)
				assertDead(t, b.read("dead"), bad, "refused by topic signals.unique: "+code.Message)
				assertCounts(t, i, "signals", map[string]float64{"unique": 180, "invalid": 20, "duplicate": 0})
				if n := testutil.ToFloat64(i.Refused().WithLabelValues("signals.unique")); n != 20 {
					t.Errorf("%v refused records were counted, want 20", n)
				}
				accept()
				again := signal("id-7", 0, testTime)
				again.Value = bad["id-7"].Value
				b.produce(again)
				b.drain(i, "signals.raw")
				good["id-7"] = again
				assertOnce(t, b.read("signals.unique"), good)
			})
		})
	}
}

// TestRefusalByTheRepartitionTopic protects that the router, too, finds the refused event in its batch.
func TestRefusalByTheRepartitionTopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one"), uncompressed))
	b.refuse("app-repartition", 4, "poison", kerr.InvalidRecord)
	records, good, bad := mixed(100)
	b.produce(records...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), good)
	assertDead(t, b.read("dead"), bad, "refused by topic app-repartition: INVALID_RECORD")
	b.assertWhole(i)
}

// TestRefusedRecordAcrossRestarts stops the process while it looks for the refused records, lets the end of a
// transaction fail, and starts the process again. Each refused record becomes one dead letter.
func TestRefusedRecordAcrossRestarts(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	cfg := b.config("one")
	b.lived(cfg)
	b.refuse("signals.unique", 4, "poison", kerr.InvalidRecord)
	records, good, bad := mixed(100)
	b.produce(records...)
	for range 3 {
		i := b.start(cfg, uncompressed)
		b.wait("an aborted transaction", func() bool {
			_, aborted, unknown := i.outcomes(processor.StageDedup)
			return aborted+unknown > 0 || i.Ready() == nil && b.drained(i, "signals.raw")
		})
		must(t, i.stop())
	}
	fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.EndTxn}, TxnID: app.TransactionalID("app", processor.StageDedup, 0, "one"), Err: kerr.UnknownServerError, Count: 3})
	i := b.ready(b.start(cfg, uncompressed))
	more, moreGood, moreBad := mixed(120)
	for _, r := range more[100:] {
		id := strings.TrimPrefix(string(r.Key), "k-")
		if moreBad[id] != nil {
			bad[id] = r
		} else {
			good[id] = moreGood[id]
		}
	}
	b.produce(more[100:]...)
	b.drain(i, "signals.raw")
	if fault.Hits() == 0 {
		t.Error("the fault was never met")
	}
	assertOnce(t, b.read("signals.unique"), good)
	assertDead(t, b.read("dead"), bad, "INVALID_RECORD")
	b.assertWhole(i)
}

// TestRefusedEventTakesNoClaim protects that, in claim mode, the next event under the key of a refused event is the
// first attempt.
func TestRefusedEventTakesNoClaim(t *testing.T) {
	t.Parallel()
	b := newBench(t, fmt.Sprintf(claimRoutes, "reject"))
	i := b.ready(b.start(b.config("one"), uncompressed))
	accept := b.refuse("ops.run", 4, "poison", kerr.InvalidRecord)
	b.produce(operation("1", "poison", 0), operation("2", "good", 0), operation("1", "poison-again", 0))
	b.drainClaims(i)
	if run := b.read("ops.run"); len(run) != 1 || string(run[0].Key) != "k-good" {
		t.Errorf("%d events were dispatched, want one", len(run))
	}
	if dead := b.read("dead"); len(dead) != 2 || header(dead[0], wire.HeaderClaimToken) != "" {
		t.Errorf("%d dead letters, want 2 without a claim token", len(dead))
	}
	accept()
	b.produce(operation("1", "third", 0))
	b.drainClaims(i)
	for _, r := range b.read("ops.run") {
		assertHeaders(t, r, map[string]string{wire.HeaderVerdict: "unique", wire.HeaderAttempt: "1"})
	}
	if n := len(b.read("ops.run")); n != 2 {
		t.Errorf("%d events were dispatched, want 2", n)
	}
	replies := b.read("ops.replies")
	for _, r := range replies {
		assertHeaders(t, r, map[string]string{wire.HeaderVerdict: "invalid", wire.HeaderClaimStatus: "", wire.HeaderAttempt: "0"})
	}
	if len(replies) != 2 {
		t.Errorf("%d replies, want 2: the claim was never taken, and the third event waits for its outcome", len(replies))
	}
}

// TestDeadLetterTopicThatRefuses lets the dead-letter topic refuse the dead letter, so that the topic gets it without
// its value. While the topic refuses that too, events wait; when it accepts dead letters again, no event is lost.
func TestDeadLetterTopicThatRefuses(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one"), uncompressed))
	b.refuse("signals.unique", 4, "poison", kerr.InvalidRecord)
	accept := b.refuse("dead", 4, "poison", kerr.InvalidRecord)
	records, good, bad := mixed(30)
	b.produce(records...)
	b.drain(i, "signals.raw")
	letters := b.read("dead")
	if len(letters) != len(bad) {
		t.Errorf("%d dead letters, want %d", len(letters), len(bad))
	}
	for _, r := range letters {
		if r.Value != nil || !strings.Contains(header(r, wire.HeaderReason), "not carried whole: refused by topic dead: INVALID_RECORD") {
			t.Errorf("dead letter %q %v, want one without its value", r.Value, r.Headers)
		}
	}
	accept()
	accept = b.refuse("dead", 4, "", kerr.InvalidRecord)
	more, moreGood, moreBad := mixed(40)
	b.produce(more[30:]...)
	b.wait("the message that says what to do", func() bool { return strings.Contains(b.logs.String(), "change the settings of that topic") })
	accept()
	b.drain(i, "signals.raw")
	for id, r := range moreGood {
		good[id] = r
	}
	assertOnce(t, b.read("signals.unique"), good)
	if n := len(b.read("dead")); n != len(moreBad) {
		t.Errorf("%d dead letters, want %d", n, len(moreBad))
	}
}

// TestFaultsOfBrokersDeadLetterNothing protects that the client repeats a record after an error that says nothing
// about the record, until the broker accepts the record.
func TestFaultsOfBrokersDeadLetterNothing(t *testing.T) {
	t.Parallel()
	for _, code := range []*kerr.Error{kerr.NotEnoughReplicas, kerr.CorruptMessage, kerr.TransactionAbortable, kerr.UnknownServerError} {
		t.Run(code.Message, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, benchRoutes)
			i := b.ready(b.start(b.config("one")))
			fault := b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "signals.unique", Err: code, Count: 6})
			records, sent := traffic(50)
			b.produce(records...)
			b.drain(i, "signals.raw")
			for id := 0; fault.Hits() < 6; id++ {
				r := signal(fmt.Sprint("more-", id), 0, testTime)
				sent[fmt.Sprint("more-", id)] = r
				b.produce(r)
				b.drain(i, "signals.raw")
			}
			assertOnce(t, b.read("signals.unique"), sent)
			if dead := b.read("dead"); len(dead) > 0 {
				t.Errorf("%d dead letters, want none: %v", len(dead), dead[0].Headers)
			}
		})
	}
	t.Run("TOPIC_AUTHORIZATION_FAILED", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, benchRoutes)
		i := b.ready(b.start(b.config("one")))
		b.cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "signals.unique", Err: kerr.TopicAuthorizationFailed, Count: -1})
		b.produce(signal("a", 0, testTime))
		<-i.done
		if i.err == nil || !strings.Contains(i.err.Error(), "Write") {
			t.Errorf("the process ended with %v, want the missing right", i.err)
		}
		if n := b.uncommitted("dead"); n > 0 {
			t.Errorf("%d dead letters were written", n)
		}
	})
}

// TestLoweredLimitOfATopic lowers max.message.bytes of the output while the process runs. From then on the client
// makes smaller batches, and only events above the new limit become dead letters.
func TestLoweredLimitOfATopic(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	i := b.ready(b.start(b.config("one"), uncompressed))
	records, good := traffic(20)
	b.produce(records...)
	b.drain(i, "signals.raw")
	limit := "2000"
	_, err := b.admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &limit}}, "signals.unique")
	must(t, err)
	bad := map[string]*kgo.Record{}
	records = nil
	for n := range 200 {
		id := fmt.Sprint("later-", n)
		r := signal(id, int32(n%4), testTime)
		good[id] = r
		if n%50 == 7 {
			r.Value = large(id, 0, 4000, false).Value
			bad[id] = r
			delete(good, id)
		}
		records = append(records, r)
	}
	b.produce(records...)
	b.drain(i, "signals.raw")
	assertOnce(t, b.read("signals.unique"), good)
	assertDead(t, b.read("dead"), bad, "max.message.bytes is 2000")
	if n := embedded.Metrics(t, i.registry)[`oncebus_clients_rebuilt_total{stage="dedup"}`]; n == 0 {
		t.Error("no client was replaced, so batches are as large as before")
	}
}
