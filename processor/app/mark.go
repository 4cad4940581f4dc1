package app

import (
	"encoding/json"

	"github.com/twmb/franz-go/pkg/kgo"
)

const markPrefix = "mark/"

// Mark is an offset of a routed input partition up to which the app has routed its
// records. The routing stage writes marks in its transactions: the first of a partition,
// then at intervals, and at a clean stop. They tell a partition that was read from a
// first start after the group's offsets are gone.
type Mark struct {
	TopicID string `json:"topic_id"`
	Offset  int64  `json:"offset"` // the offset to route next
	// Clean reports that the process stopped there: no later record was routed.
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
