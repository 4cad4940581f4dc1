//go:build unix

package bench

import (
	"slices"
	"testing"
)

func TestInts(t *testing.T) {
	if got, err := Ints("workers", "1,2,40"); err != nil || !slices.Equal(got, []int{1, 2, 40}) {
		t.Errorf("got %v (%v)", got, err)
	}
	for _, text := range []string{"", "1,", "0", "-1", "a", "1, 2"} {
		if got, err := Ints("workers", text); err == nil {
			t.Errorf("%q is %v, want an error", text, got)
		}
	}
}
