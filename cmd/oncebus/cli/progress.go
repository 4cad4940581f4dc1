package cli

import (
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progressAfter is how long a command runs before it shows its progress.
const progressAfter = 2 * time.Second

// Progress shows the progress of a command on standard error, if standard error is a terminal and the command
// takes longer than progressAfter. Several goroutines may use it concurrently.
type Progress struct {
	p       Process
	what    string
	started time.Time

	mu  sync.Mutex
	bar *progressbar.ProgressBar // nil until the progress is shown
}

// NewProgress begins the progress of a command. what names what the command reads or does.
func NewProgress(p Process, what string) *Progress {
	return &Progress{p: p, what: what, started: p.Clock()()}
}

// Set shows that done of total steps are done. total may change between calls.
func (g *Progress) Set(done, total int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bar == nil {
		if !OnTerminal(g.p.Stderr) || g.p.Clock()().Sub(g.started) < progressAfter {
			return
		}
		g.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(g.p.Stderr), progressbar.OptionSetDescription(g.what),
			progressbar.OptionSetWidth(30), progressbar.OptionShowCount(), progressbar.OptionSetPredictTime(true),
			progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	if g.bar.GetMax64() != total {
		g.bar.ChangeMax64(total)
	}
	_ = g.bar.Set64(done) // an output of a Process keeps the error
}

// End removes the progress line from the terminal.
func (g *Progress) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.bar != nil {
		_ = g.bar.Exit()  // stops its redraws
		_ = g.bar.Clear() // an output of a Process keeps the error
		g.bar = nil
	}
}
