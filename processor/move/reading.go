package move

import (
	"slices"
	"strings"
	"time"

	"oncebus/processor/app"
)

// readPatience is how long a move waits for processes that make no progress in reading the copies.
const readPatience = 15 * time.Second

// reading watches how far the processes have read the copied rows.
type reading struct {
	seen   []app.Followed
	seenAt time.Time // when seen last changed
}

// ended reports whether the processes have read the copies for all new tasks, or have made no progress for
// readPatience. In the latter case the tasks read the rest of the copies after the act, so that they start
// later. For example, a process of an earlier build reads nothing before the act, and a process whose disk is
// full waits.
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
