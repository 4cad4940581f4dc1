package front

import "github.com/twmb/franz-go/pkg/kgo"

// readProgress counts the offsets that an Inspector reads, for the operator who waits.
type readProgress struct {
	show        func(done, total int64) // nil if progress is not shown
	done, total int64
}

// OnProgress makes the Inspector call show after each fetch, with the number of offsets that are read and the
// number of offsets to read. The total grows when the Inspector has to read a further partition.
func (i *Inspector) OnProgress(show func(done, total int64)) { i.progress.show = show }

// tracked adds the offsets from start to end to the total, and returns a function that counts records and calls
// each.
func (p *readProgress) tracked(start, end int64, each func([]*kgo.Record, int64) error) func([]*kgo.Record, int64) error {
	if p.show == nil {
		return each
	}
	p.total += end - start
	return func(records []*kgo.Record, position int64) error {
		p.done += position - start
		start = position
		p.show(p.done, p.total)
		return each(records, position)
	}
}
