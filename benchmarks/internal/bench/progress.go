package bench

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// Progress prints on stderr how long a benchmark takes, and how far it is.
type Progress struct {
	guesses []time.Duration // estimated duration of each run
	done    int
	began   time.Time
	out     io.Writer
}

// estimate makes a benchmark end as soon as it has printed how long it would take.
var estimate = flag.Bool("estimate", false, "say how long the benchmark takes, and end")

// errEstimated ends a benchmark after the estimate. [Main] does not treat it as an error.
var errEstimated = errors.New("the benchmark only says how long it takes")

// StartProgress prints before the first run how long all runs take, if each takes as long as guess. A benchmark calls
// it before it starts anything, and returns its error.
func StartProgress(runs int, guess time.Duration) (*Progress, error) {
	return StartRuns(slices.Repeat([]time.Duration{guess}, runs))
}

// StartRuns is [StartProgress] for runs with different durations.
func StartRuns(guesses []time.Duration) (*Progress, error) {
	p := startRuns(os.Stderr, guesses)
	if *estimate {
		return nil, errEstimated
	}
	return p, nil
}

func startRuns(out io.Writer, guesses []time.Duration) *Progress {
	p := &Progress{guesses: guesses, began: time.Now(), out: out}
	fmt.Fprintf(out, "%d runs, about %v\n", len(guesses), rounded(sum(guesses)))
	return p
}

// Next prints how long the next run takes by its guess.
func (p *Progress) Next(format string, args ...any) {
	fmt.Fprintf(p.out, "%s: about %v\n", fmt.Sprintf(format, args...), rounded(p.guesses[p.done]))
}

// Done prints that a run ended, with its result. It also prints how long the remaining runs will take; for this
// it corrects their guesses by the error of the guesses so far.
func (p *Progress) Done(format string, args ...any) {
	p.done = min(p.done+1, len(p.guesses))
	was, left := sum(p.guesses[:p.done]), sum(p.guesses[p.done:])
	if was > 0 {
		left = time.Duration(float64(left) * float64(time.Since(p.began)) / float64(was))
	}
	fmt.Fprintf(p.out, "%d of %d, about %v left: %s\n", p.done, len(p.guesses), rounded(left), fmt.Sprintf(format, args...))
}

func sum(of []time.Duration) (sum time.Duration) {
	for _, d := range of {
		sum += d
	}
	return sum
}

// rounded returns a duration as people say it.
func rounded(d time.Duration) time.Duration {
	if d > 10*time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(time.Second)
}
