package audit

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"oncebus/processor/kafka"
	"oncebus/processor/registry"
)

// Options are the settings of an audit.
type Options struct {
	KeysMax int // keys in memory, of all rules together
	Dir     string
	Secret  []byte
	Schemas *registry.Registry // schemas of the records; nil if the records have none
	// Content, if not nil, is a rule whose key is compared in place of the payload's hash: two payloads are
	// equal if the rule finds the same key in both.
	Content *Rule
	Now     time.Time
	// Watch, if not nil, is called with the number of finished steps of a phase.
	Watch func(phase Phase, done, total int64)
}

// Phase is a part of an audit.
type Phase string

// The phases of an audit. Sorting comes only if keys are on disk.
const (
	Reading Phase = "records"
	Sorting Phase = "records on disk"
)

// Audit has the results of all rules on one log.
type Audit struct {
	Seen

	Log     *Log
	Rules   []*Rule
	Counts  []*Counted
	Senders []string // names by index; "" for those without one, or over the bound
	Took    time.Duration
}

// Run reads the log once and counts it by every rule.
func Run(ctx context.Context, l *Log, list []*Rule, o Options) (a *Audit, err error) {
	if len(list) == 0 {
		return nil, errors.New("there is no rule to audit")
	}
	for _, r := range list {
		if r.Route.Secret && len(o.Secret) == 0 {
			return nil, kafka.OperatorErrorf("%s has secret: true, but ONCEBUS_KEY_SECRET is not set", r.Text)
		}
	}
	watch := o.Watch
	if watch == nil {
		watch = func(Phase, int64, int64) {}
	}
	began := time.Now()
	folds := make([]*Fold, len(list))
	for i := range folds {
		folds[i] = NewFold(FoldOptions{KeysMax: max(1, o.KeysMax/len(list)), Dir: o.Dir, Now: o.Now.UnixMilli()})
	}
	defer func() {
		for _, f := range folds {
			err = errors.Join(err, f.Close())
		}
	}()
	m := newMerger(folds, l.Offsets(), func(done, total int64) { watch(Reading, done, total) })
	seed, names := maphash.MakeSeed(), newSenders()
	err = m.read(ctx, l, func(partition int32) *decoder { return newDecoder(list, o, partition, seed, names) })
	if err != nil {
		return nil, l.explain(err)
	}
	a = &Audit{Seen: m.seen, Log: l, Rules: list, Senders: names.names}
	for _, f := range folds {
		c, err := f.Finish(func(done, total int64) { watch(Sorting, done, total) })
		if err != nil {
			return nil, err
		}
		a.Counts = append(a.Counts, c)
	}
	a.Took = time.Since(began)
	return a, nil
}

// Age returns the length of the log in ms.
func (a *Audit) Age() int64 { return a.Last - a.First }
