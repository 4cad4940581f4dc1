package app

import (
	"context"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

const followedPrefix = "followed/"

// Followed is how far a process is with the rows that a switch copies into the new tasks which
// the process will probably own. It writes it to the manifest topic until the switch has acted.
type Followed struct {
	Instance string `json:"-"` // the record key without its prefix
	Switch   int64  `json:"switch"`
	Tasks    int    `json:"tasks"`
	// Behind is the number of these tasks of which the process has not read all that was
	// copied, and Left the changelog offsets that it lacks of them, as far as they are known.
	Behind int   `json:"behind"`
	Left   int64 `json:"left"`
}

// Write writes the row of the process.
func (f *Followed) Write(ctx context.Context, client *kgo.Client, t *Topology) error {
	return writeRow(ctx, client, t, followedPrefix+f.Instance, f)
}

// FollowedIn returns the rows of a switch. One that cannot be read is left out, as if it had not
// been written.
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
