package top

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"oncebus/cmd/oncebus/cli"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/cmd/oncebus/page"
	"oncebus/processor/app"
	"oncebus/processor/kafkatest/golden"
)

var commands = cli.Commands{Command}

// figures are those of a process with n tasks, of which the third restores.
func figures(n int) *page.Snapshot {
	up, eta := true, 12.5
	at := time.Date(2026, 11, 25, 12, 0, 0, 0, time.Local)
	s := &page.Snapshot{
		Time: at, Role: page.RoleRun, Version: "v1.2.3", App: "trading", Instance: "worker-1", BrokerUp: &up, Ready: n < 3,
		Events:  page.Events{Total: 1_234_567, PerSecond: 98.7, Duplicates: 1000, DuplicateShare: 0.1234, Verdicts: []page.Verdict{{Verdict: "unique", Total: 1_233_560}, {Verdict: "missing_key", Total: 7}}},
		Lag:     page.Lag{Records: 1200, Seconds: 0.25},
		Inputs:  &page.Inputs{Records: 3400},
		Commits: []page.Commit{{Stage: "dedup", P50: 0.0014, P99: 0.072}, {Stage: "route", P50: 0.001, P99: 0.002}},
		Disk:    &page.Disk{StateBytes: 3 << 20, FreeBytes: 47 << 30},
		Log:     []page.Entry{{Time: at, Level: "WARN", Text: "restore failed, retrying", Count: 3, Advice: "Nothing yet: it is tried again."}},
	}
	for _, name := range []string{"orders", "signals"} {
		s.Routes = append(s.Routes, page.Route{Name: name, Events: page.Events{Total: 617_283, PerSecond: 49.3, Verdicts: []page.Verdict{{Verdict: "unique", Total: 617_280}}}})
	}
	for i := range n {
		t := page.Task{Task: fmt.Sprintf("trading-repartition/%d", i), Process: "worker-1", Worker: "trading-worker-1-dedup-0", State: "running", LagRecords: float64(i * 100), Keys: uint64(1000 - i)}
		if i == 2 {
			s.Reason = "task trading-repartition/2 is restoring"
			t.State, t.LagRecords, t.LagSeconds, t.Keys = "restoring", -1, -1, 0
			t.Restore = &page.Restore{RemainingRecords: 5000, PerSecond: 400, ETASeconds: &eta}
		}
		s.Tasks = append(s.Tasks, t)
	}
	return s
}

// TestRouteThatIsOffIsMarked: nothing else on the screen shows why all of its events pass.
func TestRouteThatIsOffIsMarked(t *testing.T) {
	s := figures(1)
	s.Routes[0].Off = true
	if text := strings.Join(bare(screenOf(120, 40, s).lines()), "\n"); !strings.Contains(text, "orders (off)") || strings.Contains(text, "signals (off)") {
		t.Errorf("the screen does not mark the route that is off:\n%s", text)
	}
}

// screenOf is a screen of a size that shows a process.
func screenOf(width, height int, s *page.Snapshot) *screen {
	m := &screen{processes: []shown{{address: "http://one"}}}
	m.Update(tea.WindowSizeMsg{Width: width, Height: height})
	m.Update(figuresMsg{0, s})
	return m
}

// bare removes the styles.
func bare(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		for _, p := range []paint{bold, faint, good, warn, bad, unpaint} {
			l = strings.ReplaceAll(l, string(p), "")
		}
		out[i] = l
	}
	return out
}

// TestScreenFits: whatever the size and the number of tasks, no line is wider than the terminal, and there are as many as it has.
func TestScreenFits(t *testing.T) {
	for _, n := range []int{0, 1, 6, 400} {
		for width := 1; width <= 200; width += 7 {
			for height := 1; height <= 60; height += 3 {
				s := screenOf(width, height, figures(n))
				s.processes[0].err = io.ErrUnexpectedEOF
				for _, help := range []bool{false, true} {
					s.help = help
					lines := bare(s.lines())
					if len(lines) != height {
						t.Fatalf("%d x %d, %d tasks: %d lines", width, height, n, len(lines))
					}
					for _, l := range lines {
						if utf8.RuneCountInString(l) > width || strings.Contains(l, "\n") {
							t.Fatalf("%d x %d, %d tasks: line %q", width, height, n, l)
						}
					}
				}
			}
		}
	}
}

func TestScreenOf80x24(t *testing.T) {
	golden.Assert(t, "80x24.txt", strings.Join(bare(screenOf(80, 24, figures(12)).lines()), "\n")+"\n")
}

// TestScreenInAHold: the hold with its reason, what waits in the inputs meanwhile, and the input that
// keeps stream time back.
func TestScreenInAHold(t *testing.T) {
	f := figures(1)
	f.Inputs = &page.Inputs{Records: 5000, Unknown: 1}
	f.Hold = &page.Hold{Reason: "repair", By: "ada", Since: f.Time}
	f.TimeHeld = []app.HeldTime{{Namespace: "orders", Source: "orders.raw/3", BehindMS: 5_400_000, Since: f.Time}}
	text := strings.Join(bare(screenOf(100, 24, f).lines()), "\n")
	for _, want := range []string{
		"oldest waits 250 ms    inputs  5,000 records  unknown partitions: 1\n",
		"hold    held since 2026-11-25 12:00:00 by ada: repair\n",
		"time    orders.raw/3 keeps stream time of orders back, by 1h30m0s since 2026-11-25 12:00:00\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}

func TestKeys(t *testing.T) {
	s := screenOf(100, 30, figures(40))
	first := func() string {
		for i, l := range bare(s.lines()) {
			if strings.HasPrefix(l, "TASK") {
				name, _, _ := strings.Cut(bare(s.lines())[i+1], " ")
				return name
			}
		}
		t.Fatal("no tasks")
		return ""
	}
	press := func(keys ...rune) {
		for _, k := range keys {
			s.Update(tea.KeyPressMsg{Code: k, Text: string(k)})
		}
	}
	expect := func(what, want string) {
		t.Helper()
		if got := first(); got != "trading-repartition/"+want {
			t.Errorf("%s: the first task is %s, want %s", what, got, want)
		}
	}
	expect("by state", "2")
	press('s')
	expect("by lag", "39")
	press('s')
	expect("by keys", "0")
	press('s')
	expect("by name", "0")
	press('j', 'j', 'k')
	expect("scrolled by one", "1")
	press('p')
	fewer := figures(1)
	s.Update(figuresMsg{0, fewer})
	expect("paused", "1")
	if !strings.Contains(strings.Join(bare(s.lines()), "\n"), "paused") {
		t.Error("the pause is not shown")
	}
	press('p')
	s.Update(figuresMsg{0, fewer})
	expect("going on", "0")
	press('?')
	if text := strings.Join(bare(s.lines()), "\n"); !strings.Contains(text, "sort the tasks") {
		t.Errorf("no help:\n%s", text)
	}
	if _, cmd := s.Update(tea.KeyPressMsg{Code: 'q', Text: "q"}); cmd == nil || cmd() != (tea.QuitMsg{}) {
		t.Error("q does not quit")
	}
}

// TestSeveralProcesses: tab shows the next one, and one that is gone keeps its figures.
func TestSeveralProcesses(t *testing.T) {
	s := &screen{processes: []shown{{address: "http://one"}, {address: "http://two"}}}
	s.Update(tea.WindowSizeMsg{Width: 100, Height: 30})
	if text := strings.Join(bare(s.lines()), "\n"); !strings.Contains(text, "connecting to http://one") || !strings.Contains(text, "tab process 1 of 2") {
		t.Errorf("%s", text)
	}
	s.Update(figuresMsg{1, figures(1)})
	s.Update(tea.KeyPressMsg{Code: tea.KeyTab})
	s.Update(lostMsg{1, io.ErrUnexpectedEOF})
	if text := strings.Join(bare(s.lines()), "\n"); !strings.Contains(text, "disconnected, connecting again: unexpected EOF") || !strings.Contains(text, "1,234,567 in all") {
		t.Errorf("%s", text)
	}
	s.Update(figuresMsg{1, figures(1)})
	if text := strings.Join(bare(s.lines()), "\n"); strings.Contains(text, "disconnected") {
		t.Errorf("%s", text)
	}
}

// serve serves a snapshot, and a stream that ends after it, to holders of a token.
func serve(t *testing.T, s *page.Snapshot, token string) (address string, streams *atomic.Int64) {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	streams = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Authorization") != "Bearer "+token:
			http.Error(w, "the bearer token is required", http.StatusUnauthorized)
		case r.URL.Path == page.PathSnapshot:
			_, _ = w.Write(append(text, '\n'))
		case r.URL.Path == page.PathStream:
			streams.Add(1)
			_, _ = fmt.Fprintf(w, "event: history\ndata: {}\n\nevent: snapshot\ndata: %s\n\n", text)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, streams
}

func TestOnce(t *testing.T) {
	const token = "0123456789abcdef"
	want := figures(3)
	address, _ := serve(t, want, token)
	file := clitest.WriteFile(t, "token", token+"\n")
	execute := func(environ []string, args ...string) clitest.Result {
		return clitest.Run(t.Context(), commands, environ, "", append([]string{"top"}, args...)...)
	}
	got := execute(nil, "--addr", address, "--token-file", file)
	for _, part := range []string{"oncebus trading  run worker-1  not ready", "1,234,567 in all", "12.3 %", "1,200 records", "p50 1.4 ms  p99 72 ms", "47.0 GiB free", "5,000 left, ready in 12.5 s", "617,283", "restore failed, retrying (3 times)  -> Nothing yet"} {
		if !strings.Contains(got.Stdout, part) {
			t.Errorf("the text lacks %q:\n%s", part, got.Stdout)
		}
	}
	if got.Code != cli.ExitStopped || strings.Contains(got.Stdout, "\x1b") {
		t.Errorf("%+v", got)
	}
	got = execute([]string{"ONCEBUS_ADMIN_ADDR=" + strings.TrimPrefix(address, "http://"), "ONCEBUS_ADMIN_TOKEN=" + token}, "-o", "json")
	var read page.Snapshot
	if err := json.Unmarshal([]byte(got.Stdout), &read); err != nil || read.Events.Total != want.Events.Total || len(read.Tasks) != 3 || got.Code != cli.ExitStopped {
		t.Errorf("%v, %+v", err, got)
	}
	if got = execute(nil, "--addr", address); got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "401 Unauthorized: the bearer token is required") {
		t.Errorf("without a token: %+v", got)
	}
	if got = execute(nil, "--addr", address+"/nothing", "--token-file", file); got.Code != cli.ExitFailed || !strings.Contains(got.Stderr, "ONCEBUS_ADMIN_PAGE") {
		t.Errorf("without a page: %+v", got)
	}
	for _, wrong := range [][]string{{"--addr", "ftp://x"}, {"--sort", "size"}, {"--token-file", "/nowhere"}, {"--cert-file", "/nowhere"}} {
		if got = execute(nil, wrong...); got.Code != cli.ExitWrong || got.Stdout != "" {
			t.Errorf("%q: %+v", wrong, got)
		}
	}
}

// TestFollowConnectsAgain: a stream that ends begins again.
func TestFollowConnectsAgain(t *testing.T) {
	address, streams := serve(t, figures(2), "t")
	o := options{addresses: []string{address}}
	feeds, err := o.feeds([]string{"ONCEBUS_ADMIN_TOKEN=t"})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *page.Snapshot, 10)
	lost := make(chan error, 10)
	go func() {
		feeds[0].follow(t.Context(), func(s *page.Snapshot) { got <- s }, func(err error) { lost <- err })
	}()
	for range 2 {
		if s := <-got; len(s.Tasks) != 2 {
			t.Errorf("%+v", s)
		}
		if err := <-lost; !strings.Contains(err.Error(), "ended the stream") {
			t.Error(err)
		}
	}
	if streams.Load() < 2 {
		t.Errorf("%d streams", streams.Load())
	}
}

func TestAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:8080": "http://127.0.0.1:8080", "0.0.0.0:80": "http://127.0.0.1:80", ":8080": "http://127.0.0.1:8080", "[::]:80": "http://127.0.0.1:80",
		"https://one.example:8443/": "https://one.example:8443",
	} {
		if got, err := parseAddress(text); got != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

func TestUnits(t *testing.T) {
	got := []string{count(0), count(999), count(-1000), count(1234567), rate(0), rate(5), rate(99.94), rate(1234.5), duration(-1), duration(0), duration(0.0000123), duration(0.0042), duration(0.25), duration(59), duration(3599), duration(7260), size(12), size(5 << 30)}
	want := []string{"0", "999", "-1,000", "1,234,567", "0", "5.0", "99.9", "1,234", "unknown", "0 s", "12 µs", "4.2 ms", "250 ms", "59.0 s", "59 min 59 s", "2 h 1 min", "12 B", "5.0 GiB"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\n%q", got, want)
	}
}
