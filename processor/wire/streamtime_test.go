package wire

import (
	"math"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestStreamTimesComeBack: the value has what a changed window is known to have, or is null.
func TestStreamTimesComeBack(t *testing.T) {
	for _, want := range []StreamTime{{At: 5}, {At: math.MinInt64 + 1, Changed: true, Since: -7, LateBefore: math.MaxInt64}, {Changed: true}} {
		env := Envelope{EventTime: want.At, IsSeed: true, IsTime: true}
		got, err := ReadStreamTime(&kgo.Record{Value: want.Value()}, &env)
		if err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	for _, damaged := range [][]byte{{}, {2}, {2, 4, 6}} {
		if got, err := ReadStreamTime(&kgo.Record{Value: damaged}, &Envelope{}); err == nil {
			t.Errorf("%x: %+v", damaged, got)
		}
	}
}
