package front

import (
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// ErrBuffered says that too many events of the request's path wait for Kafka, so that the client refused the
// event. It sent nothing to Kafka.
var ErrBuffered = errors.New("too many events of the path wait for kafka")

// buffer bounds the records that wait for Kafka: in total, of one path, and of one path for one partition. A
// record may still wait when its request has ended, so the bounds on in-flight requests would not bound the
// records.
//
// A path may use twice as much as is still free, and the records of a path for one partition as much as is
// still free. Therefore a flooding path leaves a third to the other paths. The records for a partition whose
// leader accepts nothing leave half to the other partitions, however many partitions have this problem. The
// first record of a path or partition may use all that is free.
type buffer struct {
	recordsMax, bytesMax int64
	paths                int // number of paths; a single path has no bound of its own

	mu    sync.Mutex
	total usage
	parts map[part]*usage // the parts that have records
}

// part is what a bound applies to: a path, or the records of a path for one partition.
type part struct {
	path      string
	divided   bool // whether the part is only the records for one partition of the repartition topic
	partition int32
}

// usage is how many records there are, and their size in bytes.
type usage struct{ records, bytes int64 }

func newBuffer(routes *rules.Routes) *buffer {
	paths := map[string]bool{}
	for _, r := range routes.Routes {
		if r.HTTP == nil {
			continue
		}
		paths[r.HTTP.Path] = true
		if r.HTTP.Outcomes != nil {
			paths[outcomesPath(r)] = true
		}
	}
	return &buffer{paths: len(paths), parts: map[part]*usage{}}
}

// outcomesPath returns the path of a route's outcomes. Outcomes are counted under a separate path, so that
// events cannot block them.
func outcomesPath(r *rules.Route) string { return r.HTTP.Path + rules.OutcomesSuffix }

// buffered is a record that a buffer counts.
type buffered struct {
	in    *buffer
	parts [2]part
	bytes int64
}

// add counts a record until remove is called. Its error wraps ErrBuffered, or ErrKafkaUnavailable if the
// records of all paths together use everything.
func (b *buffer) add(at *clientState, path string, rec *kgo.Record) (*buffered, error) {
	e := &buffered{in: b, parts: [2]part{{path: path}, {path: path}}, bytes: int64(wire.RecordBytes(rec))}
	if rec.Topic == at.rt.Topology.Repartition {
		e.parts[1] = part{path, true, rec.Partition}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	free := usage{b.recordsMax - b.total.records - 1, b.bytesMax - b.total.bytes - e.bytes}
	if free.records < 0 || free.bytes < 0 {
		return nil, fmt.Errorf("%w: %d events of %d bytes wait for it already", ErrKafkaUnavailable, b.total.records, b.total.bytes)
	}
	if b.paths > 1 && b.over(e.parts[0], e.bytes, usage{2 * free.records, 2 * free.bytes}) {
		return nil, fmt.Errorf("%w: those of %s have the most that it may have", ErrBuffered, path)
	}
	if e.parts[1].divided && b.over(e.parts[1], e.bytes, free) {
		return nil, fmt.Errorf("%w: those of %s for partition %d have the most that they may have", ErrBuffered, path, rec.Partition)
	}
	e.count(1)
	return e, nil
}

// over reports whether a part would exceed the usage most if one more record of this size were added.
func (b *buffer) over(p part, bytes int64, most usage) bool {
	have := b.parts[p]
	return have != nil && (have.records+1 > most.records || have.bytes+bytes > most.bytes)
}

// remove ends the counting of the record.
func (e *buffered) remove() {
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	e.count(-1)
}

// count adds the record to the counts or, with sign -1, removes it. The caller has locked the buffer.
func (e *buffered) count(sign int64) {
	b := e.in
	b.total.records += sign
	b.total.bytes += sign * e.bytes
	for n, p := range e.parts {
		if n == 1 && !p.divided {
			continue
		}
		have := b.parts[p]
		if have == nil {
			have = &usage{}
			b.parts[p] = have
		}
		have.records += sign
		have.bytes += sign * e.bytes
		if have.records == 0 {
			delete(b.parts, p)
		}
	}
}
