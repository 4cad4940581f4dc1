package app

import (
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

const followedPrefix = "followed/"

// Followed says how far a process has followed the new tasks before a switch. The switch copies rows into the
// changelogs of the new tasks, and the process reads those of the tasks that it will probably own. The process
// writes this row to the manifest topic until the switch has acted.
type Followed struct {
	Instance string `json:"-"` // the instance id of the process: the record key without its prefix
	Switch   int64  `json:"switch"`
	Tasks    int    `json:"tasks"`
	// Behind is the number of these tasks of which the process has not read all copied rows. Left is the number
	// of their changelog offsets that the process has not read yet, as far as it is known.
	Behind int   `json:"behind"`
	Left   int64 `json:"left"`
}

// Write writes the row of the process to the manifest topic.
func (f *Followed) Write(ctx context.Context, client *kgo.Client, t *Topology) error {
	return writeRow(ctx, client, t, followedPrefix+f.Instance, f)
}

// FollowedIn returns the rows of a switch. It leaves out a row that cannot be read, as if it had not been
// written.
func FollowedIn(rows Rows, number int64) (all []Followed) {
	for key := range rows {
		instance, is := strings.CutPrefix(key, followedPrefix)
		if !is {
			continue
		}
		if row, _, err := decodeRow[Followed](rows, key); err == nil && row.Switch == number {
			row.Instance = instance
			all = append(all, row)
		}
	}
	return all
}
