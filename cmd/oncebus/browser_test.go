//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"oncebus/processor/kafkatest"
)

// browser is one tab of a real Chromium, which ends with the test.
type browser struct {
	t   *testing.T
	ctx context.Context
	axe string // the source of axe-core

	mu       sync.Mutex
	problems []string // exceptions, and what the console reports, such as a violation of the policy
	requests []string // addresses that the page requested
}

// newBrowser starts Chromium, which Debian's package chromium has. axe-core comes from the npm registry (.ci/axe).
func newBrowser(t *testing.T) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		kafkatest.Lack(t, "no chromium in PATH: the live page is not tested in a browser")
	}
	axe, err := os.ReadFile(os.Getenv("ONCEBUS_TEST_AXE"))
	if err != nil {
		kafkatest.Lack(t, "ONCEBUS_TEST_AXE does not name axe.min.js of axe-core (.ci/axe fetches it): %v", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox)
	for _, flag := range []string{"disable-gpu", "disable-quic", "disable-background-networking", "disable-component-update", "disable-sync"} {
		options = append(options, chromedp.Flag(flag, true))
	}
	allocator, endAllocator := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Errorf("close Chromium: %v", err)
		}
		end()
		endAllocator()
	})
	b := &browser{t: t, ctx: ctx, axe: string(axe)}
	if err := chromedp.Listen(ctx, b.note); err != nil {
		t.Fatalf("start Chromium: %v", err)
	}
	call(b, network.Enable, network.EnableParams{})
	call(b, log.Enable, cdp.Empty{})
	return b
}

// note keeps what the page reports and requests.
func (b *browser) note(event any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.problems = append(b.problems, "exception: "+e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		b.problems = append(b.problems, fmt.Sprintf("console: %s", e.Args[0].Value))
	case *log.EventEntryAdded:
		if e.Entry.Source != log.EntrySourceNetwork { // a failed request while the process is away
			b.problems = append(b.problems, fmt.Sprintf("%s: %s", e.Entry.Source, e.Entry.Text))
		}
	case *network.EventRequestWillBeSent:
		b.requests = append(b.requests, e.Request.URL)
	}
}

// run runs an action and returns its value.
func run[T any](b *browser, action chromedp.Action[T]) T {
	b.t.Helper()
	value, err := chromedp.Run(b.ctx, action)
	if err != nil {
		b.t.Fatal(err)
	}
	return value
}

// call sends a command of the protocol.
func call[P, R any](b *browser, command cdp.Command[P, R], params P) {
	b.t.Helper()
	if _, err := chromedp.Call(b.ctx, command, params); err != nil {
		b.t.Fatal(err)
	}
}

// evaluate returns the value of an expression in the page, awaited if it is a promise.
func evaluate[T any](b *browser, expression string) T {
	b.t.Helper()
	return run(b, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
}

// text returns what a reader sees of an element; "" while it is hidden.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return evaluate[string](b, fmt.Sprintf("(e => e?.checkVisibility() ? e.innerText.trim() : '')(document.querySelector(%q))", selector))
}

// table returns the cells of a table's body, as seen.
func (b *browser) table(id string) [][]string {
	b.t.Helper()
	return evaluate[[][]string](b, fmt.Sprintf("[...document.querySelectorAll('#%s tbody tr')].map(r => [...r.cells].map(c => c.innerText.trim()))", id))
}

// head returns the column titles of a table.
func (b *browser) head(id string) []string {
	b.t.Helper()
	return evaluate[[]string](b, fmt.Sprintf("[...document.querySelectorAll('#%s thead th')].map(c => c.textContent.trim())", id))
}

// await waits until a condition holds, and returns how long it took.
func (b *browser) await(what string, holds func() bool) time.Duration {
	b.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(b.t.Context(), realDeadline)
	defer cancel()
	if err := kafkatest.Await(ctx, what, func(context.Context) error {
		if !holds() {
			return errNotYet
		}
		return nil
	}); err != nil {
		b.t.Fatalf("%v; the page says %q, %q", err, b.text("#pill"), b.text("#alarm"))
	}
	return time.Since(began)
}

// awaitPill waits until the status of the page has this text.
func (b *browser) awaitPill(want string) time.Duration {
	b.t.Helper()
	return b.await("status "+want, func() bool { return b.text("#pill") == want })
}

// view sets size and colours of the window.
func (b *browser) view(width, height int64, scheme string) {
	b.t.Helper()
	run(b, chromedp.EmulateViewport(width, height))
	call(b, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}})
	// The page draws its charts again 100 ms after a change of size.
	evaluate[bool](b, "new Promise(done => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => done(true))), 200))")
	b.awaitColours()
}

// awaitColours waits until no colour of the page is on its way to another one, which takes 0.2 s from the first frame that a busy
// machine draws: a contrast in between is that of no state.
func (b *browser) awaitColours() {
	b.t.Helper()
	b.await("the last colours", func() bool { return evaluate[int](b, "document.getAnimations().length") == 0 })
}

// checkAccess runs axe-core, whose rules are those of WCAG 2.2 AA and good practice, and fails the test with every violation.
func (b *browser) checkAccess(what string) {
	b.t.Helper()
	if !evaluate[bool](b, "typeof axe !== 'undefined'") {
		evaluate[bool](b, b.axe+"; true")
	}
	b.awaitColours() // a status that has just changed
	type result struct {
		Passes     int `json:"passes"`
		Violations []struct {
			ID    string `json:"id"`
			Help  string `json:"help"`
			Nodes []struct {
				HTML    string `json:"html"`
				Summary string `json:"failureSummary"`
			} `json:"nodes"`
		} `json:"violations"`
	}
	found := evaluate[result](b, `axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]})
		.then(r => ({passes: r.passes.length, violations: r.violations.map(v => ({id: v.id, help: v.help, nodes: v.nodes.map(n => ({html: n.html, failureSummary: n.failureSummary}))}))}))`)
	if found.Passes < 10 {
		b.t.Errorf("%s: axe-core applied only %d rules", what, found.Passes)
	}
	for _, v := range found.Violations {
		b.t.Errorf("%s: %s: %s", what, v.ID, v.Help)
		for _, n := range v.Nodes {
			b.t.Errorf("  %s\n  %s", n.HTML, n.Summary)
		}
	}
}

// checkWidth fails the test if the page is wider than its window.
func (b *browser) checkWidth(what string) {
	b.t.Helper()
	if got := evaluate[[]int](b, "[document.documentElement.scrollWidth, innerWidth]"); got[0] > got[1] {
		wide := evaluate[[]string](b, "[...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll')).map(e => e.tagName + '#' + e.id + '.' + e.className)")
		b.t.Errorf("%s: the page is %d wide in a window of %d: %v", what, got[0], got[1], wide)
	}
}

// screenshot writes a picture if ONCEBUS_TEST_SCREENSHOTS names a directory (make screenshots).
func (b *browser) screenshot(name string) {
	b.t.Helper()
	dir := os.Getenv("ONCEBUS_TEST_SCREENSHOTS")
	if dir == "" {
		return
	}
	png := run(b, chromedp.CaptureScreenshot())
	const most = 150 << 10
	if len(png) > most {
		b.t.Errorf("%s has %d bytes, want at most %d", name, len(png), most)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// checkQuiet fails the test if the page reported a problem, or requested something of another address.
func (b *browser) checkQuiet(address string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, p := range b.problems {
		b.t.Errorf("the page reports %s", p)
	}
	if slices.ContainsFunc(b.requests, func(r string) bool { return !strings.HasPrefix(r, address) && !strings.HasPrefix(r, "data:") }) || len(b.requests) < 5 {
		b.t.Errorf("the page requested %q", b.requests)
	}
}

// fetch returns a path of the page, with the token of the tab.
func (b *browser) fetch(path string) string {
	b.t.Helper()
	return evaluate[string](b, fmt.Sprintf(`fetch(%q, {headers: {Authorization: "Bearer " + sessionStorage.getItem("oncebus-token")}}).then(r => r.text())`, path))
}

// snapshotOf reads a JSON text.
func snapshotOf[T any](t *testing.T, text string) (value T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}
