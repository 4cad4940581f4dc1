package front

import "github.com/twmb/franz-go/pkg/kgo"

// readProgress counts the offsets that an Inspector reads, for the person who waits.
type readProgress struct {
	show        func(done, total int64) // nil: not shown
	done, total int64
}

// OnProgress has show called after each fetch, with the offsets that are read and those
// that are to be read. The total grows when a further partition has to be read.
func (i *Inspector) OnProgress(show func(done, total int64)) { i.progress.show = show }

// tracked returns each, and counts the offsets from start to end as to be read.
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
