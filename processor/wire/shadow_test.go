package wire

import (
	"reflect"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
)

// TestShadowEnvelope: the envelope of a verdict for a shadow, and what contradicts it.
func TestShadowEnvelope(t *testing.T) {
	env := Envelope{
		Route: []byte("orders~a"), Digest: dedup.Digest{1, 2}, EventTime: 5000, Timestamp: 4000, From: dedup.Position{Topic: 3, Partition: 2, Offset: 9},
		Shadow: ShadowSent | ShadowEmitted, Details: Details{Fingerprint: 7},
	}
	var got Envelope
	if err := ReadEnvelope(&kgo.Record{Key: env.Append(nil)}, &got); err != nil || !reflect.DeepEqual(got, env) {
		t.Errorf("read %+v, %v; want %+v", got, err, env)
	}
	if size := len(env.Append(nil)); size > env.Size() {
		t.Errorf("%d bytes, the bound is %d", size, env.Size())
	}
	for name, wrong := range map[string]Envelope{
		"of the ingress":    {Route: []byte("a"), Shadow: ShadowSent, FromIngress: true},
		"with a record key": {Route: []byte("a"), Shadow: ShadowSent, RecordKey: []byte("k")},
		"a seed":            {Route: []byte("a"), Shadow: ShadowSent, IsSeed: true},
		"without its mark":  {Route: []byte("a"), Shadow: ShadowEmitted},
		"unknown bits":      {Route: []byte("a"), Shadow: ShadowSent | 128},
	} {
		if err := ReadEnvelope(&kgo.Record{Key: wrong.Append(nil)}, &got); err == nil {
			t.Errorf("%s is read", name)
		}
	}
}

// TestShadowCountsInCheckpoints: whole and partial checkpoints have them, and a partial one
// without a change keeps those before.
func TestShadowCountsInCheckpoints(t *testing.T) {
	before := Checkpoint{Next: 4, Epoch: -1, Sequence: 1, Set: 2, Counted: true, Shadows: []ShadowCounts{{NamespaceID: 3, Begin: dedup.NoStreamTime}, {NamespaceID: 5, Begin: 77}}}
	counted := before
	counted.Sequence, counted.Next = 2, 6
	counted.Shadows = []ShadowCounts{before.Shadows[0], before.Shadows[1]}
	for n := range int64(ShadowSamples + 3) {
		counted.Shadows[1].Count(dedup.ShadowWouldDrop, ShadowSample{At: dedup.Position{Topic: 1, Partition: 2, Offset: n}, First: dedup.Position{Offset: 1}, Time: 100 + n})
	}
	counted.Shadows[1].Count(dedup.ShadowBothEmit, ShadowSample{})
	if kept := counted.Shadows[1].Samples[0]; len(kept) != ShadowSamples || kept[0].Time != 103 || before.Shadows[1].Samples[0] != nil {
		t.Errorf("samples %+v", kept)
	}
	same := counted
	same.Sequence, same.Next = 3, 8
	var f Fold
	for n, value := range [][]byte{before.Append(nil), counted.AppendPartial(nil, &before, nil, nil), same.AppendPartial(nil, &counted, nil, nil)} {
		if err := f.Add(uint32(n), value); err != nil {
			t.Fatal(err)
		}
		want := [][]ShadowCounts{before.Shadows, counted.Shadows, counted.Shadows}[n]
		if got := f.Newest(); !reflect.DeepEqual(got.Shadows, want) {
			t.Errorf("after checkpoint %d the shadows are %+v, want %+v", n, got.Shadows, want)
		}
	}
}
