package app

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

const seenPrefix = "seen/"

// Seen is what a process tells in the manifest topic: its build, the levels that it reads, and
// the route set that all of its workers run. It is written at the start and at each change.
type Seen struct {
	Instance string `json:"-"` // the record key without its prefix
	Build    string `json:"build"`
	Oldest   int    `json:"oldest_level"`
	Newest   int    `json:"newest_level"`
	Set      int64  `json:"set"` // 0 at level 1
	// Routes is the digest of the routes that it runs, see rules.Routes.Digest.
	Routes string    `json:"routes"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
}

// NewSeen returns what a process tells of itself.
func NewSeen(instance, build string, set int64, routes *rules.Routes) Seen {
	return Seen{Instance: instance, Build: build, Oldest: wire.LevelOldest, Newest: wire.LevelNewest, Set: set, Routes: routes.Digest, By: instance, At: time.Now().UTC().Truncate(time.Second)}
}

// Write writes the row of the process.
func (s *Seen) Write(ctx context.Context, client *kgo.Client, t *Topology) error {
	return writeRow(ctx, client, t, seenPrefix+s.Instance, s)
}

// takeSeen adds a record of the manifest topic, and reports whether it is one of a process.
func takeSeen(seen map[string]Seen, rec *kgo.Record) bool {
	instance, is := strings.CutPrefix(string(rec.Key), seenPrefix)
	if !is {
		return false
	}
	var row Seen
	if rec.Value == nil || json.Unmarshal(rec.Value, &row) != nil {
		delete(seen, instance)
		return true
	}
	row.Instance = instance
	seen[instance] = row
	return true
}
