package app

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

const seenPrefix = "seen/"

// AskKey is the record key of the question that 'oncebus finalize' writes to the manifest topic. Each process
// answers the question in its own row. A row that does not answer this question proves nothing, because the
// instance may have gone back to an earlier build since it wrote the row.
const AskKey = "ask"

// An Ask is the question of 'oncebus finalize': which levels does each process read, which routes does it run?
type Ask struct {
	ID string    `json:"id"`
	By string    `json:"by,omitempty"`
	At time.Time `json:"at"`
}

// DecodeAsk returns the id of the question in a record; "" if the record is no question.
func DecodeAsk(rec *kgo.Record) string {
	var row Ask
	if string(rec.Key) != AskKey || json.Unmarshal(rec.Value, &row) != nil {
		return "" // 'oncebus finalize' then reports that the process has not answered
	}
	return row.ID
}

// Seen is what a process tells about itself in the manifest topic: its build, the levels that it can read, and
// the route set that all of its workers run. The process writes it at its start and at each change.
type Seen struct {
	Instance string `json:"-"` // the instance id: the record key without its prefix
	Build    string `json:"build"`
	Oldest   int    `json:"oldest_level"`
	Newest   int    `json:"newest_level"`
	Set      int64  `json:"set"` // 0 at level 1
	// Routes is the digest of the routes that the process runs, see rules.Routes.Digest.
	Routes string `json:"routes"`
	// Answers is the id of the newest Ask that the process has read.
	Answers string    `json:"answers,omitempty"`
	By      string    `json:"by"`
	At      time.Time `json:"at"`
	// Process names the process. An instance id should belong to one process only; Process shows if it does not.
	Process string `json:"process,omitempty"`
	// Fenced is when another process with the same instance id last fenced a worker of this process.
	Fenced time.Time `json:"fenced,omitzero"`
}

// processName names this process for people, by its host and process id.
var processName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "a host without a name"
	}
	return fmt.Sprintf("%s, process %d", host, os.Getpid())
})

// NewSeen returns what this process tells about itself.
func NewSeen(instance, build string, set int64, routes *rules.Routes) Seen {
	return Seen{Instance: instance, Build: build, Oldest: wire.LevelOldest, Newest: wire.LevelNewest, Set: set, Routes: routes.Digest, By: instance, Process: processName(), At: time.Now().UTC().Truncate(time.Second)}
}

// Write writes the row of the process to the manifest topic.
func (s *Seen) Write(ctx context.Context, client *kgo.Client, t *Topology) error {
	return writeRow(ctx, client, t, seenPrefix+s.Instance, s)
}

// ReadSeen returns the newest rows of the processes of an app, by instance id. It leaves out a row that cannot
// be read, as if it had not been written.
func ReadSeen(ctx context.Context, c Conn, app string) (map[string]Seen, error) {
	t := &Topology{Manifest: ManifestName(app)}
	var err error
	if t.Topics, err = DescribeTopics(ctx, c.Admin, t.Manifest); err != nil {
		return nil, err
	}
	rows, err := ReadRows(ctx, c.Client, t)
	if err != nil {
		return nil, err
	}
	seen := map[string]Seen{}
	for key := range rows {
		instance, is := strings.CutPrefix(key, seenPrefix)
		if !is {
			continue
		}
		if row, _, err := decodeRow[Seen](rows, key); err == nil {
			row.Instance = instance
			seen[instance] = row
		}
	}
	return seen, nil
}
