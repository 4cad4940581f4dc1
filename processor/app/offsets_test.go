package app

import "testing"

// TestOffsetMetadata: the metadata of an offset names its transaction, unless somebody else
// or an older build has committed it.
func TestOffsetMetadata(t *testing.T) {
	for _, instance := range []string{"one", "", "9#1/2", "#", "eu/1"} {
		want := Commit{Generation: 3, Sequence: 1 << 40}
		if got := CommitOf(OffsetMetadata(instance, want, 77), 77); got != want {
			t.Errorf("instance %q: %+v", instance, got)
		}
		if got := CommitOf(OffsetMetadata(instance, want, 77), 78); got.Generation != -1 {
			t.Errorf("instance %q, moved: %+v", instance, got)
		}
	}
	for metadata, want := range map[string]Commit{"": {Generation: -1}, "one": {}, "one#": {}, "one#1": {}, "one#1/2": {}, "one#x/2@5": {}, "one#-1/2@5": {}, "one#1/2@5": {Generation: 1, Sequence: 2}} {
		if got := CommitOf(metadata, 5); got != want {
			t.Errorf("%q: %+v, want %+v", metadata, got, want)
		}
	}
}
