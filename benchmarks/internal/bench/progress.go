package bench

import (
	"fmt"
	"io"
	"os"
	"time"
)

// Progress says on stderr how long a benchmark takes, and how far it is.
type Progress struct {
	runs, done int
	began      time.Time
	out        io.Writer
}

// StartProgress says before the first of so many runs how long they take if each takes as
// long as a guess.
func StartProgress(runs int, guess time.Duration) *Progress {
	return startProgress(os.Stderr, runs, guess)
}

func startProgress(out io.Writer, runs int, guess time.Duration) *Progress {
	p := &Progress{runs: runs, began: time.Now(), out: out}
	fmt.Fprintf(out, "%d runs, about %v\n", runs, rounded(time.Duration(runs)*guess))
	return p
}

// Done says that a run ended, with its result, and how long the others take if they take as
// long as those before them.
func (p *Progress) Done(format string, args ...any) {
	p.done++
	left := time.Since(p.began) / time.Duration(p.done) * time.Duration(max(0, p.runs-p.done))
	fmt.Fprintf(p.out, "%d of %d, about %v left: %s\n", p.done, p.runs, rounded(left), fmt.Sprintf(format, args...))
}

// rounded returns a duration as people say it.
func rounded(d time.Duration) time.Duration {
	if d > 10*time.Minute {
		return d.Round(time.Minute)
	}
	return d.Round(time.Second)
}
