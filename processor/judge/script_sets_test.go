package judge_test

import (
	"slices"
	"strconv"
	"time"
)

// known returns what the newest checkpoint with a namespace says of its changed window, as durations since the base
// of the script.
func (r *scriptRun) known(namespace string) map[string]string {
	id := uint8(slices.Index(r.app.Namespaces, namespace))
	got := map[string]string{"none": "true", "since": "", "late-before": "", "set": ""}
	since := func(at int64) string { return (time.Duration(at-r.base) * time.Millisecond).String() }
	for _, t := range r.sorted() {
		got["set"] = strconv.FormatInt(t.Committed.Set, 10)
		if k, ok := t.Committed.KnownOf(id); ok {
			got["none"], got["since"], got["late-before"] = "false", since(k.Since), since(k.LateBefore)
		}
	}
	return got
}
