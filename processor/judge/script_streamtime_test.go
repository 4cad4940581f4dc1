package judge_test

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// streamTime appends a stream time to each partition of the repartition topic, and judges it.
func (r *scriptRun) streamTime(st *step) error {
	r.startOnce()
	if len(st.words) != 1 || r.app.ByName[st.words[0]] == nil {
		return fmt.Errorf("want streamtime ROUTE FIELDS of a route, not %v", st.words)
	}
	times := map[string]int64{}
	for _, f := range st.fields {
		d, err := time.ParseDuration(f.value)
		if err != nil {
			return err
		}
		times[f.name] = r.base + d.Milliseconds()
	}
	s := wire.StreamTime{At: times["at"], Since: times["since"], LateBefore: times["late-before"]}
	_, s.Changed = times["since"]
	env := wire.Envelope{IsSeed: true, IsTime: true, Seed: seedRun, Route: []byte(st.words[0]), EventTime: s.At, Timestamp: s.At, From: dedup.Position{Topic: dedup.SeedTopic}}
	topic := r.app.Topology.Repartition
	for partition := range r.app.Topology.Topics[topic].Partitions {
		r.append(&kgo.Record{Topic: topic, Partition: partition, Key: env.Append(nil), Value: s.Value(), Timestamp: time.UnixMilli(r.now)})
		r.task(app.TaskID{Topic: topic, Partition: partition})
	}
	if !r.held {
		r.run()
	}
	return nil
}
