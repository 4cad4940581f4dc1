package page

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/dedup/rules"
	"oncebus/processor"
)

const (
	// rateWindow is the time over which a snapshot computes its rates, minuteWindow the time over which it
	// computes its commit times.
	rateWindow   = 10 * time.Second
	minuteWindow = time.Minute
	// Readings take at most 1/costShare of a core. If the process has many partitions, a reading is expensive;
	// then the page takes readings less often than once per fineStep, but at least once per slowStep.
	costShare = 200
	slowStep  = 5 * time.Second
	// freshMax is how old a snapshot may be so that /snapshot responds with it instead of a new one.
	freshMax = fineStep / 2
)

// Source has the functions from which a Page reads the figures of a process. Role, App and Instance identify
// the process.
type Source struct {
	Role, Version, App, Instance string

	// Metrics is the registry that /metrics serves.
	Metrics prometheus.Gatherer
	// Ready returns nil if the process is ready, and otherwise why it is not.
	Ready func() error
	// States returns the state of each processor; nil in a process without tasks. If there are several
	// processors, their metrics have the label process, whose value is the instance.
	States func() []processor.State
	Routes []*rules.Route
	Log    *Log
}

// Page computes snapshots and sends them to the readers of its streams.
type Page struct {
	source Source
	began  time.Time
	took   func(since time.Time) time.Duration // measures how long a reading took

	mu      sync.Mutex
	history *history
	recent  []*reading // for rates: the readings of the last rateWindow, and one before them
	minutes []*reading // for commit times: readings of which only the commit times are kept
	coarse  *reading   // the reading of the last coarse sample
	costs   costs
	latest  []byte // the latest snapshot as JSON; nil if there is none

	streams map[*stream]bool
	watched chan struct{} // gets a value when a stream begins
	ended   chan struct{} // closed at the end, so that the streams return
	end     sync.Once
}

// New returns the page of a process. The page has a history only while Run is running.
func New(source Source) *Page {
	var names []string
	for _, r := range source.Routes {
		names = append(names, r.Name)
	}
	return &Page{
		source: source, began: time.Now(), took: time.Since, history: newHistory(names), streams: map[*stream]bool{}, watched: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// Run takes readings until ctx is done: one per fineStep while a stream is open, otherwise one per coarseStep.
// Then it ends the streams.
func (p *Page) Run(ctx context.Context) {
	defer p.Close()
	tick := time.NewTicker(fineStep)
	defer tick.Stop()
	p.tick(time.Now(), true)
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.watched:
			p.tick(time.Now(), true)
		case now := <-tick.C:
			p.tick(now, false)
		}
	}
}

// Close ends the streams. It may be called several times.
func (p *Page) Close() { p.end.Do(func() { close(p.ended) }) }

// tick takes a reading if the next one is due, or if atOnce is true.
func (p *Page) tick(now time.Time, atOnce bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.coarse == nil || now.Sub(p.coarse.at) >= coarseStep-fineStep/2
	if n := len(p.recent); n > 0 && len(p.streams) > 0 {
		due = due || now.Sub(p.recent[n-1].at) >= p.costs.interval()-fineStep/2
	}
	if !due && !atOnce {
		return
	}
	began := time.Now()
	p.take(now)
	p.costs.add(p.took(began))
}

// costs has how long the latest readings took.
type costs [5]time.Duration

func (c *costs) add(took time.Duration) {
	copy(c[1:], c[:])
	c[0] = took
}

// interval returns the time between two readings while somebody watches. It depends on the fastest of the
// latest readings, because the slower ones had to wait for a core.
func (c *costs) interval() time.Duration {
	return max(fineStep, min(slowStep, costShare*slices.Min(c[:])))
}

// take takes a reading, extends the history by it, and sends the new samples and the snapshot to the streams.
// The caller holds p.mu.
func (p *Page) take(at time.Time) {
	r, err := read(p.source.Metrics, at)
	if err != nil {
		p.send(frame("failed", []byte(fmt.Sprintf("%q", "gather metrics: "+err.Error()))))
		return
	}
	frames := p.sample(r)
	p.remember(r)
	p.latest, err = json.Marshal(p.compute(r, p.recent[0], p.minutes[0]))
	if err != nil {
		p.send(frame("failed", []byte(fmt.Sprintf("%q", "encode snapshot: "+err.Error()))))
		return
	}
	p.send(append(frames, frame("snapshot", p.latest)...))
}

// sample extends the history by a reading. It returns the frames with the new samples.
func (p *Page) sample(r *reading) (frames []byte) {
	extend := func(name string, to *ring, earlier *reading) {
		if !r.at.After(earlier.at) {
			return
		}
		s := p.history.sampleOf(r, earlier)
		to.add(s)
		text, err := s.encode(name)
		if err != nil {
			panic(err) // all numbers are finite
		}
		frames = append(frames, frame("sample", text)...)
	}
	if n := len(p.recent); n > 0 && r.at.Sub(p.recent[n-1].at) >= fineStep/2 {
		extend("fine", &p.history.fine, p.recent[n-1])
	}
	if p.coarse == nil {
		p.coarse = r
	} else if r.at.Sub(p.coarse.at) >= coarseStep-fineStep/2 {
		extend("coarse", &p.history.coarse, p.coarse)
		p.coarse = r
	}
	return frames
}

// remember keeps a reading, so that later readings can compute rates from it.
func (p *Page) remember(r *reading) {
	p.recent = append(p.recent, r)
	for len(p.recent) > 2 && r.at.Sub(p.recent[1].at) >= rateWindow {
		p.recent = p.recent[1:]
	}
	p.minutes = append(p.minutes, &reading{at: r.at, commits: r.commits, responses: r.responses})
	for len(p.minutes) > 2 && r.at.Sub(p.minutes[1].at) >= minuteWindow {
		p.minutes = p.minutes[1:]
	}
}

// Snapshot returns the current snapshot as JSON. It takes a new reading unless the latest one is fresh
// (freshMax).
func (p *Page) Snapshot() ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.recent)
	if now := time.Now(); n == 0 || p.latest == nil || now.Sub(p.recent[n-1].at) > freshMax {
		p.latest = nil
		p.take(now)
	}
	if p.latest == nil {
		return nil, errors.New("no snapshot: the metrics cannot be gathered")
	}
	return p.latest, nil
}
