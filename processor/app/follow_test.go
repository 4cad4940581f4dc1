package app

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestRecordThatIsReplacedHoldsNothingBack: a row that cannot be read stops the process from taking a
// set, until a later record replaces the row.
func TestRecordThatIsReplacedHoldsNothingBack(t *testing.T) {
	f := NewFollower(Conn{}, Config{})
	take := func(key, value string) {
		f.Take(&kgo.Record{Topic: "app-manifest", Key: []byte(key), Value: []byte(value)})
	}
	than := &App{Set: 2}
	take("set/3", `{"number":4}`)
	take("set", `{"number":2}`)
	if _, err := f.App(t.Context(), than); err == nil || !strings.Contains(err.Error(), "set/3") {
		t.Fatalf("a row with another number: %v", err)
	}
	take("set/3", `{"number":3}`)
	if rt, err := f.App(t.Context(), than); rt != nil || err != nil {
		t.Errorf("after the row was replaced: %v, %v", rt, err)
	}
}
