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
	// rateWindow is the time that the rates of a snapshot are about, minuteWindow that of
	// its commit times.
	rateWindow   = 10 * time.Second
	minuteWindow = time.Minute
	// Readings take at most a costShare-th of a core: with many partitions they are rarer
	// than one in fineStep, down to one in slowStep.
	costShare = 200
	slowStep  = 5 * time.Second
	// freshMax is how old the snapshot may be that /snapshot answers with.
	freshMax = fineStep / 2
)

// Source is where the figures of a process come from. Role, App and Instance say whose they
// are.
type Source struct {
	Role, Version, App, Instance string

	// Metrics is the registry that /metrics serves.
	Metrics prometheus.Gatherer
	// Ready returns nil if the process is ready, else why not.
	Ready func() error
	// States returns the state of each processor; nil in a process without tasks. If there
	// are several, their metrics have the label process with the instance.
	States func() []processor.State
	Routes []*rules.Route
	Log    *Log
}

// Page computes snapshots and sends them to the readers of its streams.
type Page struct {
	source Source
	began  time.Time
	took   func(since time.Time) time.Duration // measures readings

	mu      sync.Mutex
	history *history
	recent  []*reading // for rates: the last rateWindow and one before it
	minutes []*reading // for commit times, without the rest
	coarse  *reading   // of the last coarse sample
	costs   costs
	latest  []byte // the last snapshot as JSON; nil before the first one

	streams map[*stream]bool
	watched chan struct{} // a stream began
	ended   chan struct{} // closed at the end: streams return
	end     sync.Once
}

// New returns the page of a process. Run keeps its history.
func New(source Source) *Page {
	var names []string
	for _, r := range source.Routes {
		names = append(names, r.Name)
	}
	return &Page{
		source: source, began: time.Now(), took: time.Since, history: newHistory(names), streams: map[*stream]bool{}, watched: make(chan struct{}, 1), ended: make(chan struct{}),
	}
}

// Run takes readings until ctx is done: one in fineStep while a stream is open, else one in
// coarseStep. Then it ends the streams.
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

// Close ends the streams. It may be called more than once.
func (p *Page) Close() { p.end.Do(func() { close(p.ended) }) }

// tick takes a reading if one is due, or at once.
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

// costs has how long the last readings took.
type costs [5]time.Duration

func (c *costs) add(took time.Duration) {
	copy(c[1:], c[:])
	c[0] = took
}

// interval is the time between two readings while somebody watches. It follows from the
// fastest of the last ones: the others had to wait for a core.
func (c *costs) interval() time.Duration {
	return max(fineStep, min(slowStep, costShare*slices.Min(c[:])))
}

// take takes a reading, extends the history and sends both to the streams. p.mu is locked.
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

// sample extends the history by a reading, and returns the frames of its samples.
func (p *Page) sample(r *reading) (frames []byte) {
	extend := func(name string, to *ring, earlier *reading) {
		if !r.at.After(earlier.at) {
			return
		}
		s := p.history.sampleOf(r, earlier)
		to.add(s)
		text, err := s.encode(name)
		if err != nil {
			panic(err) // finite numbers
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

// remember keeps a reading for the rates of later ones.
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

// Snapshot returns the current snapshot as JSON. It takes a reading unless one is fresh.
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
