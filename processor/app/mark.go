package app

import (
	"encoding/json"

	"github.com/twmb/franz-go/pkg/kgo"
)

const markPrefix = "mark/"

// Mark is the offset up to which the app has routed the records of a routed input partition. The routing stage
// writes marks in its transactions: when it first reads a partition, then at intervals, and at a clean stop. If
// the group's committed offsets are gone (expired, for example), a mark shows that a partition was read before
// and is not new.
type Mark struct {
	TopicID string `json:"topic_id"`
	Offset  int64  `json:"offset"` // the next offset to route
	// Clean reports that the process stopped at Offset: it routed no later record.
	Clean bool `json:"clean,omitempty"`
}

// Record returns the record of a mark in the manifest topic.
func (m *Mark) Record(t *Topology, id TaskID) *kgo.Record {
	value, err := json.Marshal(m)
	if err != nil {
		panic(err) // a struct of a string, a number and a bool
	}
	return &kgo.Record{Topic: t.Manifest, Key: []byte(markPrefix + id.String()), Value: value}
}
