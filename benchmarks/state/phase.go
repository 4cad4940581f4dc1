//go:build unix

package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"time"

	"oncebus/benchmarks/internal/bench"
	"oncebus/dedup"
	"oncebus/processor/kafkatest/program"
)

// engine stores rows. Each task is used by one goroutine only.
type engine interface {
	get(task int, d *dedup.Digest) (bool, error)
	put(task int, row *dedup.Row) error
	// apply ends a transaction of a task. position is the number of rows that the task has now.
	apply(task int, position int64) error
	// positions returns the durable position of each task.
	positions() []int64
	// idle waits until the engine has no background work that would disturb a measurement.
	idle() error
}

// loaded has the measurements of the load phase.
type loaded struct {
	CPUMicros     float64 // user and system time of the process per key
	WallSeconds   float64
	Negative      latencies
	Positive      latencies
	AnonymousPeak uint64
	Anonymous     uint64
	ResidentTotal uint64
	GoHeap        uint64
	DiskBytes     uint64
}

// latencies has the latencies of single look-ups in nanoseconds, without the time that reading the clock takes.
type latencies struct{ Mean, P50, P99, P999 float64 }

// opened has the measurements of the open phase.
type opened struct {
	Seconds    float64 // for all tasks, one after the other
	RowsBehind int64   // rows that were applied before the kill but were not durable
	Checked    int     // durable rows that were looked up and found
}

func runPhase(phase string, set settings, out io.Writer) error {
	var v any
	var err error
	switch phase {
	case "load":
		v, err = load(set)
	case "open":
		v, err = open(set)
	default:
		err = fmt.Errorf("unknown phase %q", phase)
	}
	if err != nil {
		return err
	}
	if err := json.NewEncoder(out).Encode(v); err != nil {
		return err
	}
	select {} // until killed
}

func openEngine(set settings) (engine, error) {
	if set.Engine == engineRows {
		return openRows(set.Dir, set.Tasks)
	}
	return openRuns(set.Dir, set.Tasks, set.Flush)
}

// rowOf returns row n of a task. Its digest is uniformly distributed; its event time and offset are like those in a
// real app.
func rowOf(task, n int) dedup.Row {
	return dedup.Row{
		Digest: digestOf(uint64(task)<<40 | uint64(n)),
		First:  1_790_000_000_000 + int64(n)/10,
		At:     dedup.Position{Topic: 2, Partition: int32(task), Offset: int64(n)},
	}
}

// digestOf mixes n into 128 uniform bits, without collisions (splitmix64).
func digestOf(n uint64) (d dedup.Digest) {
	for i := range 2 {
		x := n + uint64(i+1)*0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		binary.BigEndian.PutUint64(d[8*i:], x^x>>31)
	}
	return d
}

func load(set settings) (*loaded, error) {
	peak := watchAnonymous()
	e, err := openEngine(set)
	if err != nil {
		return nil, err
	}
	began, cpu := time.Now(), cpuTime()
	perTask := set.Keys / set.Tasks
	for from := 0; from < perTask; from += set.Txn {
		to := min(from+set.Txn, perTask)
		for task := range set.Tasks {
			if err := transaction(e, set, task, from, to); err != nil {
				return nil, err
			}
		}
	}
	if err := e.idle(); err != nil {
		return nil, err
	}
	l := &loaded{
		CPUMicros:     (cpuTime() - cpu).Seconds() * 1e6 / float64(set.Keys),
		WallSeconds:   time.Since(began).Seconds(),
		AnonymousPeak: peak(),
	}
	if !set.Look {
		return l, nil
	}
	if l.Negative, err = timeGets(e, set, func(r *rand.Rand) (int, int) { return r.IntN(set.Tasks), perTask + r.IntN(1<<30) }, false); err != nil {
		return nil, err
	}
	if l.Positive, err = timeGets(e, set, func(r *rand.Rand) (int, int) { return r.IntN(set.Tasks), r.IntN(perTask) }, true); err != nil {
		return nil, err
	}
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	l.GoHeap = mem.HeapAlloc
	if u, err := program.UsageOf(os.Getpid()); err == nil { // an error means not Linux: the report then has 0
		l.Anonymous, l.ResidentTotal = uint64(u.RSSAnon), uint64(u.RSS)
	}
	disk, err := bench.DiskBytes(set.Dir)
	l.DiskBytes = uint64(disk)
	return l, err
}

// transaction puts rows [from, to) of a task.
func transaction(e engine, set settings, task, from, to int) error {
	for n := from; n < to; n++ {
		row := rowOf(task, n)
		if set.Look {
			if held, err := e.get(task, &row.Digest); err != nil || held {
				return fmt.Errorf("row %d of task %d before it was put: held %v, %w", n, task, held, err)
			}
		}
		if err := e.put(task, &row); err != nil {
			return err
		}
	}
	return e.apply(task, int64(to))
}

// timeGets measures look-ups of random rows, one by one.
func timeGets(e engine, set settings, pick func(*rand.Rand) (task, n int), want bool) (latencies, error) {
	r := rand.New(rand.NewPCG(1, 2))
	clock := clockCost()
	took := make([]float64, set.Gets)
	var sum float64
	for i := range took {
		task, n := pick(r)
		d := digestOf(uint64(task)<<40 | uint64(n))
		began := time.Now()
		held, err := e.get(task, &d)
		took[i] = max(0, float64(time.Since(began))-clock)
		if err != nil || held != want {
			return latencies{}, fmt.Errorf("row %d of task %d: held %v, want %v: %w", n, task, held, want, err)
		}
		sum += took[i]
	}
	slices.Sort(took)
	at := func(q float64) float64 { return took[int(q*float64(len(took)-1))] }
	return latencies{sum / float64(len(took)), at(.5), at(.99), at(.999)}, nil
}

// clockCost returns the time that reading the clock adds to a measurement.
func clockCost() float64 {
	took := make([]float64, 10_001)
	for i := range took {
		began := time.Now()
		took[i] = float64(time.Since(began))
	}
	slices.Sort(took)
	return took[len(took)/2]
}

// open opens the stores that a killed load has left, and checks that they contain the durable rows.
func open(set settings) (*opened, error) {
	began := time.Now()
	e, err := openEngine(set)
	if err != nil {
		return nil, err
	}
	o := &opened{Seconds: time.Since(began).Seconds()}
	r := rand.New(rand.NewPCG(3, 4))
	for task, at := range e.positions() {
		o.RowsBehind += int64(set.Keys/set.Tasks) - at
		for range min(int(at), 20_000) {
			n := r.IntN(int(at))
			d := digestOf(uint64(task)<<40 | uint64(n))
			if held, err := e.get(task, &d); err != nil || !held {
				return nil, fmt.Errorf("row %d of task %d is lost: %w", n, task, err)
			}
			o.Checked++
		}
	}
	return o, nil
}
