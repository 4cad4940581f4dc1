package wire_test

import (
	"errors"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/wire"
)

// TestDecisionIsAboutOneRecord: the same bytes at another offset, or other bytes at the same one, are
// another record.
func TestDecisionIsAboutOneRecord(t *testing.T) {
	t.Parallel()
	at := func(offset int64, value string) error {
		return wire.Unreadable(&kgo.Record{Topic: "t", Offset: offset, Value: []byte(value)}, errors.New("garbage"))
	}
	for _, c := range []struct {
		other error
		same  bool
	}{{at(3, "x"), true}, {at(4, "x"), false}, {at(3, "y"), false}} {
		if errors.Is(at(3, "x"), c.other) != c.same {
			t.Errorf("%v is the same record as %v: %v", at(3, "x"), c.other, !c.same)
		}
	}
}
