//go:build unix

package main_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	live "oncebus/cmd/oncebus/page"
	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/embedded"
	"oncebus/processor/kafkatest/program"
)

// terminal is a terminal of tmux in which a program runs.
type terminal struct {
	t   *testing.T
	dir string // of the socket
}

// newTerminal runs a program in a terminal of 80 columns and 24 lines.
func newTerminal(t *testing.T, environ []string, command ...string) *terminal {
	t.Helper()
	term := &terminal{t: t, dir: t.TempDir()}
	config := kafkatest.ReplaceFile(t, filepath.Join(term.dir, "tmux.conf"), []byte("set -g remain-on-exit on\nset -g default-terminal screen-256color\n"))
	args := append([]string{"-f", config, "new-session", "-d", "-s", "top", "-x", "80", "-y", "24", "--", "env", "-i"}, environ...)
	// tmux 3.3 does not always have the exit code of a pane that has ended.
	args = append(args, "sh", "-c", `"$@"; echo $? > "`+filepath.Join(term.dir, "exit-code")+`"`, "sh")
	term.tmux(append(args, command...)...)
	t.Cleanup(func() { term.tmux("kill-server") })
	return term
}

// tmux runs a command of the terminal's own server and returns its output.
func (term *terminal) tmux(args ...string) string {
	term.t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(term.t.Context()), "tmux", append([]string{"-S", filepath.Join(term.dir, "s")}, args...)...)
	cmd.Env = append(program.Isolated(term.dir), "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	if err != nil {
		term.t.Fatalf("tmux %q: %v: %s", args, err, out)
	}
	return string(out)
}

// screen returns what the terminal shows, with styles or without.
func (term *terminal) screen(styles bool) string {
	term.t.Helper()
	if styles {
		return term.tmux("capture-pane", "-p", "-e", "-t", "top")
	}
	return term.tmux("capture-pane", "-p", "-t", "top")
}

// await waits until the screen matches, and returns it.
func (term *terminal) await(what, pattern string) (screen string) {
	term.t.Helper()
	want := regexp.MustCompile(pattern)
	ctx, cancel := context.WithTimeout(term.t.Context(), realDeadline)
	defer cancel()
	if err := kafkatest.Await(ctx, what, func(context.Context) error {
		if screen = term.screen(false); !want.MatchString(screen) {
			return errNotYet
		}
		return nil
	}); err != nil {
		term.t.Fatalf("%v; the screen shows\n%s", err, screen)
	}
	return screen
}

// checkSize fails the test if the screen has lines that are cut.
func (term *terminal) checkSize(screen string, width, height int) {
	term.t.Helper()
	lines := strings.Split(strings.TrimSuffix(screen, "\n"), "\n")
	if len(lines) != height {
		term.t.Errorf("%d lines, want %d", len(lines), height)
	}
	for _, l := range lines {
		if utf8.RuneCountInString(l) > width {
			term.t.Errorf("line %q is wider than %d", l, width)
		}
	}
}

// colours are the sequences that choose a colour other than the terminal's own (39 and 49).
var colours = regexp.MustCompile("\x1b\\[([0-9;]*;)?([34][0-8]|9[0-7])[;m]")

// TestRealTopInATerminal: the figures of a real process, in a real terminal and as output of a script, are those of /metrics.
func TestRealTopInATerminal(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("tmux"); err != nil {
		kafkatest.Lack(t, "no tmux in PATH: 'oncebus top' is not tested in a terminal")
	}
	cluster := embedded.Start(t)
	w := &watched{world: newWorldOf(t, "trading", pageRoutes, cluster.ListenAddrs(), cluster.Admin(), false)}
	w.createTopics(nil, "orders.raw", "signals.raw")
	one := w.start("worker-1")
	w.produce(w.step(3000)...)
	one.awaitReady()
	w.drained([]string{"orders.raw", "signals.raw"}, []string{"orders.unique", "signals.unique", "dead-letter"})
	w.compareTop(one)

	top := []string{program.Shared(t), "top", "--addr", one.Address(program.ListensHTTP)}
	environ := []string{"PATH=" + os.Getenv("PATH"), "TERM=screen-256color", "LC_ALL=C.UTF-8"}
	term := newTerminal(t, environ, top...)
	screen := term.await("the figures", `3,000 in all(.|\n)*trading-repartition/5`)
	term.checkSize(screen, 80, 24)
	if !colours.MatchString(term.screen(true)) {
		t.Error("the screen has no colours")
	}
	for keys, want := range map[string]string{"s": "sort: lag", "p": "paused"} {
		term.tmux("send-keys", "-t", "top", keys)
		term.await("the answer to key "+keys, want)
	}
	term.tmux("send-keys", "-t", "top", "p", "?")
	term.await("the help", "scroll the tasks")
	term.tmux("send-keys", "-t", "top", "?")
	term.tmux("resize-window", "-t", "top", "-x", "132", "-y", "40")
	term.checkSize(term.await("the owners in a wide terminal", `OWNER(.|\n)*worker-1 dedup-`), 132, 40)
	term.tmux("send-keys", "-t", "top", "q")
	term.awaitExit()

	term = newTerminal(t, append(environ, "NO_COLOR=1"), top...)
	term.await("the figures", "3,000 in all")
	if screen := term.screen(true); colours.MatchString(screen) {
		t.Errorf("colours in spite of NO_COLOR:\n%q", screen)
	}
	if err := one.Kill(); err != nil {
		t.Fatal(err)
	}
	term.await("the end of the process", "disconnected, connecting again(.|\n)*3,000 in all")
	term.tmux("send-keys", "-t", "top", "q")
	term.awaitExit()
}

// awaitExit waits until the program ends with exit code 0.
func (term *terminal) awaitExit() {
	term.t.Helper()
	eventually(term.t, "the end of top", func(context.Context) error {
		code, err := os.ReadFile(filepath.Join(term.dir, "exit-code"))
		if err == nil && string(code) != "0\n" {
			return fmt.Errorf("exit code %q", code) // or not written yet
		}
		return err
	})
}

// compareTop compares what 'oncebus top' prints for a script with /metrics.
func (w *watched) compareTop(one *service) {
	w.t().Helper()
	m, err := one.Metrics(w.t().Context())
	if err != nil {
		w.t().Fatal(err)
	}
	events := m.Counts("oncebus_events_total")
	address := "http://" + one.Address(program.ListensHTTP)
	got := execute(w.t().Context(), nil, "", "top", "--addr", address, "--output", "json")
	s := snapshotOf[live.Snapshot](w.t(), got.Stdout)
	text := execute(w.t().Context(), nil, "", "top", "--addr", address, "--once").Stdout
	duplicates := 0
	for _, r := range s.Routes {
		duplicates += events[r.Name+"/duplicate"]
		row := regexp.MustCompile(`(?m)^` + r.Name + ` .*$`).FindString(text)
		for _, v := range r.Events.Verdicts {
			if n := events[r.Name+"/"+v.Verdict]; v.Total != float64(n) || !strings.Contains(row, " "+grouped(n)) {
				w.t().Errorf("route %s, %s: JSON has %v, text %q, /metrics %d", r.Name, v.Verdict, v.Total, row, n)
			}
		}
	}
	if s.Events.Total != float64(w.sent) || s.Events.Duplicates != float64(duplicates) || duplicates == 0 || !strings.Contains(text, grouped(w.sent)+" in all") || !strings.Contains(text, grouped(duplicates)+" in all") {
		w.t().Errorf("%d sent, /metrics has %d duplicates, JSON %+v, text\n%s", w.sent, duplicates, s.Events, text)
	}
	keys := 0.0
	for _, task := range s.Tasks {
		keys += float64(task.Keys)
	}
	if want := m.Sum("oncebus_keys"); keys != want || len(s.Tasks) != realPartitions {
		w.t().Errorf("%d tasks with %v keys, /metrics has %v", len(s.Tasks), keys, want)
	}
}
