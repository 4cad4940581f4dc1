package move

import (
	"slices"
	"strings"
	"time"

	"oncebus/processor/app"
)

// readPatience is how long a move waits for processes that do not read on.
const readPatience = 15 * time.Second

// reading watches how the processes read what was copied.
type reading struct {
	seen   []app.Followed
	seenAt time.Time // when that was new
}

// ended reports whether the processes have read what was copied into all new tasks, or have not
// read on for readPatience. Then the tasks read the rest after the act, which takes longer: a
// process of an earlier build reads nothing before, and one whose disk is full waits.
func (r *reading) ended(rows []app.Followed, sw *app.Switch, now time.Time) bool {
	slices.SortFunc(rows, func(a, b app.Followed) int { return strings.Compare(a.Instance, b.Instance) })
	if r.seenAt.IsZero() || !slices.Equal(rows, r.seen) {
		r.seen, r.seenAt = rows, now
	}
	tasks := int32(0)
	for _, row := range rows {
		tasks += int32(row.Tasks - row.Behind)
	}
	return tasks >= sw.To || now.Sub(r.seenAt) >= readPatience
}
