package selfaudit

import (
	"oncebus/dedup"
	"oncebus/processor/app"
	"oncebus/processor/oracle"
)

// A span is the range between two positions. It implements oracle.Range.
type span struct {
	from, to *Position
	app      *app.App
	inputs   [][2][]int64 // by topic number: the first offsets, and the ends
}

// newSpan returns the range between two positions of an app.
func newSpan(of *app.App, from, to *Position) *span {
	s := &span{from: from, to: to, app: of, inputs: make([][2][]int64, len(of.Manifest.Topics))}
	for topic, first := range from.Inputs {
		if number, ok := of.TopicNumbers[topic]; ok && int(number) < len(s.inputs) {
			s.inputs[number] = [2][]int64{first, to.Inputs[topic]}
		}
	}
	return s
}

// bounds returns the range of offsets of an input partition.
func (s *span) bounds(at oracle.Position) (from, to int64, ok bool) {
	if int(at.Topic) >= len(s.inputs) {
		return 0, 0, false
	}
	b := &s.inputs[at.Topic]
	if int(at.Partition) >= len(b[0]) || int(at.Partition) >= len(b[1]) {
		return 0, 0, false
	}
	return b[0][at.Partition], b[1][at.Partition], true
}

// InRange reports whether an input record belongs to this range or to a later one.
func (s *span) InRange(at oracle.Position) bool {
	from, _, ok := s.bounds(at)
	return ok && (at.Offset >= from || len(s.from.waits) > 0 && s.from.waits[at])
}

// Judged reports whether an input record of this range was judged below the ends of the range.
func (s *span) Judged(at oracle.Position) bool {
	_, to, ok := s.bounds(at)
	return ok && at.Offset < to && s.InRange(at) && !(len(s.to.waits) > 0 && s.to.waits[at])
}

// StreamTime returns the stream time of a task at the end of the range.
func (s *span) StreamTime(task oracle.Position, space uint8) (int64, bool) {
	c, ok := s.to.checkpoints[app.TaskID{Topic: s.app.TopicName(task.Topic), Partition: task.Partition}]
	return c.StreamTimes.At[space], ok && c.StreamTimes.Has[space]
}

// Reached returns the event time that the source of an event had reached in a task at the end of the range. A
// source is a partition of an input, or the ingress, whose events have the position of the task's topic. For a
// source that the task no longer follows, Reached returns the time that all sources had reached.
func (s *span) Reached(task oracle.Position, space uint8, event oracle.Position) (int64, bool) {
	c := s.to.checkpoints[app.TaskID{Topic: s.app.TopicName(task.Topic), Partition: task.Partition}]
	i, follows := c.SourcesOf(space)
	if !follows {
		return 0, false
	}
	sources := &c.Sources[i]
	at := sources.Highest
	if event.Topic == task.Topic {
		at = sources.Ingress
	}
	if n, known := sources.Of(event.Topic, event.Partition); known {
		at = sources.Front[n]
	}
	return at, at != dedup.NoStreamTime
}

// LateBefore returns the event time before which the events of a task are late at the end of the range, because
// the window has changed.
func (s *span) LateBefore(task oracle.Position, space uint8) (int64, bool) {
	c := s.to.checkpoints[app.TaskID{Topic: s.app.TopicName(task.Topic), Partition: task.Partition}]
	known, ok := c.KnownOf(space)
	return known.LateBefore, ok
}
