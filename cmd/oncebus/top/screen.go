package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	tea "charm.land/bubbletea/v2"

	"oncebus/cmd/oncebus/page"
)

// The largest numbers of lines that the parts of the screen may take. tasksLeast is the smallest number of
// lines for the tasks.
const (
	routesShown   = 6
	warningsShown = 2
	sendersShown  = 4
	tasksLeast    = 3 // including the head
)

// shown has the last figures of a process, and the state of the connection to it.
type shown struct {
	address string
	figures *page.Snapshot // nil before the first snapshot
	err     error          // why the last connection ended; nil while it is open
}

// Messages that the feeds send to the screen:
type (
	figuresMsg struct {
		process int
		figures *page.Snapshot
	}
	lostMsg struct {
		process int
		err     error
	}
)

// screen draws one of several processes. It implements tea.Model.
type screen struct {
	processes     []shown
	current       int
	width, height int
	sort          order
	from          int // index of the first task that is shown
	paused        bool
	help          bool
}

// Init implements tea.Model.
func (s *screen) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (s *screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch m := msg.(type) {
	case tea.WindowSizeMsg:
		s.width, s.height = m.Width, m.Height
	case figuresMsg:
		if p := &s.processes[m.process]; !s.paused || p.figures == nil {
			p.figures, p.err = m.figures, nil
		}
	case lostMsg:
		s.processes[m.process].err = m.err
	case tea.KeyPressMsg:
		cmd := s.key(m.String())
		return s, cmd
	}
	return s, nil
}

// key handles a pressed key.
func (s *screen) key(name string) tea.Cmd {
	switch name {
	case "q", "ctrl+c":
		return tea.Quit
	case "s":
		s.sort = (s.sort + 1) % orders
		s.from = 0
	case "p", "space":
		s.paused = !s.paused
	case "?", "h":
		s.help = !s.help
	case "tab", "right":
		s.current = (s.current + 1) % len(s.processes)
		s.from = 0
	case "shift+tab", "left":
		s.current = (s.current + len(s.processes) - 1) % len(s.processes)
		s.from = 0
	case "down", "j":
		s.scroll(1)
	case "up", "k":
		s.scroll(-1)
	case "pgdown":
		s.scroll(s.height / 2)
	case "pgup":
		s.scroll(-s.height / 2)
	case "esc":
		s.help = false
	}
	return nil
}

func (s *screen) scroll(by int) {
	most := 0
	if f := s.processes[s.current].figures; f != nil {
		most = max(0, len(f.Tasks)-1)
	}
	s.from = min(max(0, s.from+by), most)
}

// View implements tea.Model.
func (s *screen) View() tea.View {
	v := tea.NewView(strings.Join(s.lines(), "\n"))
	v.AltScreen = true
	v.WindowTitle = "oncebus top"
	return v
}

var helpText = []string{
	"oncebus top shows the figures of one process, as its live page does.", "",
	"  q         quit",
	"  s         sort the tasks: those that do not run first, by lag, by keys, by name",
	"  p         pause, and go on",
	"  up, down  scroll the tasks",
	"  tab       the next process, with several --addr",
	"  ?         this help",
	"", "Rates are those of the last 10 seconds, commit times those of the last minute.",
	"More: deployments/OPERATIONS.md#live-page",
}

// lines returns the lines to draw, at most as many as the screen has.
func (s *screen) lines() []string {
	if s.width == 0 || s.height == 0 {
		return nil // bubbletea sends the size before anything else
	}
	p := s.processes[s.current]
	var body []line
	switch {
	case s.help:
		for _, text := range helpText {
			body = append(body, line{{text: text}})
		}
	case p.figures == nil:
		body = []line{{{"oncebus ", bold}, {"connecting to " + p.address, plain}}}
		if p.err != nil {
			body = append(body, line{{p.err.Error(), bad}})
		}
	default:
		body = s.body(p)
	}
	body = body[:min(len(body), s.height-1)]
	out := make([]string, 0, s.height)
	for _, l := range body {
		out = append(out, l.write(s.width, true))
	}
	for len(out) < s.height-1 {
		out = append(out, "")
	}
	return append(out, s.footer().write(s.width, true))
}

// body lays out the figures of a process in the lines above the footer. The tasks get the lines that the other
// parts leave.
func (s *screen) body(p shown) []line {
	lines := summary(p.figures)
	if p.err != nil {
		lines = append([]line{{{"disconnected, connecting again: " + p.err.Error(), bad}}}, lines...)
	}
	lines = append(append(lines, line{}), routes(p.figures, s.width, routesShown)...)
	below := warnings(p.figures, warningsShown)
	if len(below) > 0 {
		below = append([]line{{}}, below...)
	}
	if who := senders(p.figures, s.width, sendersShown); who != nil && s.height > len(lines)+len(below)+len(who)+2*tasksLeast {
		lines = append(append(lines, line{}), who...)
	}
	room := max(tasksLeast, s.height-2-len(lines)-len(below))
	lines = append(append(lines, line{}), tasks(p.figures, s.width, s.sort, s.from, room-1)...)
	return append(lines, below...)
}

func (s *screen) footer() line {
	l := line{{"q", bold}, {" quit  ", faint}, {"s", bold}, {" sort: " + s.sort.String() + "  ", faint}, {"p", bold}, {" pause  ", faint}, {"?", bold}, {" help", faint}}
	if n := len(s.processes); n > 1 {
		l = append(l, piece{"  tab", bold}, piece{fmt.Sprintf(" process %d of %d", s.current+1, n), faint})
	}
	if s.paused {
		l = append(l, piece{"  paused", warn})
	}
	return l
}

// run draws the feeds on a terminal until the user quits or ctx is done.
func run(ctx context.Context, feeds []*feed, by order, in io.Reader, terminal *os.File, environ []string) error {
	s := &screen{sort: by}
	for _, f := range feeds {
		s.processes = append(s.processes, shown{address: f.address})
	}
	program := tea.NewProgram(s, tea.WithContext(ctx), tea.WithInput(in), tea.WithOutput(terminal), tea.WithEnvironment(environ), tea.WithoutSignalHandler())
	following, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	for i, f := range feeds {
		wg.Go(func() {
			f.follow(following, func(figures *page.Snapshot) { program.Send(figuresMsg{i, figures}) }, func(err error) { program.Send(lostMsg{i, err}) })
		})
	}
	_, err := program.Run()
	stop()
	wg.Wait()
	if ctx.Err() != nil && errors.Is(err, tea.ErrProgramKilled) {
		return nil // it stopped because ctx is done
	}
	return err
}
