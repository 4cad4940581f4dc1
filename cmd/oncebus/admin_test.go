package main

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"oncebus/cmd/oncebus/access"
	"oncebus/cmd/oncebus/cli/clitest"
	"oncebus/cmd/oncebus/page"
	"oncebus/cmd/oncebus/settings"
)

func get(t *testing.T, h http.Handler, method, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
	return w
}

func TestHandler(t *testing.T) {
	var notReady error
	var state any = map[string]string{"app": "oncebus"}
	var briefly bool
	registry := newRegistry()
	registry.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "oncebus_probe", Help: "Help."}))
	h := newHandler(registry, func() error { return notReady }, func(brief bool) any {
		briefly = brief
		return state
	}, nil, func(h http.Handler) http.Handler { return h }, slog.New(slog.DiscardHandler))

	if w := get(t, h, "GET", "/healthz"); w.Code != 200 || w.Body.String() != "alive\n" {
		t.Errorf("/healthz: %d %q", w.Code, w.Body)
	}
	if w := get(t, h, "GET", "/readyz"); w.Code != 200 || w.Body.String() != "ready\n" {
		t.Errorf("/readyz: %d %q", w.Code, w.Body)
	}
	notReady = errors.New("task 3 is restoring")
	if w := get(t, h, "GET", "/readyz"); w.Code != 503 || w.Body.String() != "not ready: task 3 is restoring\n" {
		t.Errorf("/readyz: %d %q", w.Code, w.Body)
	}
	if w := get(t, h, "GET", "/healthz"); w.Code != 200 {
		t.Errorf("/healthz is %d while not ready", w.Code)
	}
	w := get(t, h, "GET", "/state")
	var back map[string]string
	if err := json.Unmarshal(w.Body.Bytes(), &back); err != nil || w.Code != 200 || back["app"] != "oncebus" ||
		w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("/state: %d %v %q, %v", w.Code, w.Header(), w.Body, err)
	}
	if !briefly {
		t.Error("/state is not brief")
	}
	if get(t, h, "GET", "/state?keys=tasks"); briefly {
		t.Error("/state?keys=tasks is brief")
	}
	state = math.Inf(1)
	if w := get(t, h, "GET", "/state"); w.Code != 500 {
		t.Errorf("/state that cannot be encoded: %d", w.Code)
	}
	metrics := get(t, h, "GET", "/metrics").Body.String()
	for _, want := range []string{"# HELP oncebus_probe Help.\n", "\ngo_goroutines ", "\nprocess_open_fds "} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics lacks %q", want)
		}
	}
	for path, want := range map[string]int{"/": 404, "/metrics/x": 404} {
		if w := get(t, h, "GET", path); w.Code != want {
			t.Errorf("GET %s: %d", path, w.Code)
		}
	}
	if w := get(t, h, "POST", "/state"); w.Code != 405 {
		t.Errorf("POST /state: %d", w.Code)
	}
}

func TestServeHTTP(t *testing.T) {
	listener := clitest.Listen(t)
	inside, release := make(chan struct{}), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(inside)
		<-release
		_, _ = io.WriteString(w, "finished") // the client's side is checked
	})
	failed := make(chan error, 1)
	server := serveHTTP(listener, handler, slog.New(slog.DiscardHandler), func(err error) { failed <- err })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	body := make(chan string, 1)
	go func() {
		_, text, err := clitest.Get(t.Context(), client, "http://"+listener.Addr().String())
		if err != nil {
			text = err.Error()
		}
		body <- text
	}()
	<-inside
	stopped := make(chan error, 1)
	go func() { stopped <- server.stop(t.Context()) }()
	close(release)
	if got := <-body; got != "finished" {
		t.Errorf("an open request got %q", got)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	select {
	case err := <-failed:
		t.Errorf("a stop is reported as a failure: %v", err)
	default:
	}
}

func TestServeHTTPReportsItsEnd(t *testing.T) {
	listener := clitest.Listen(t)
	failed := make(chan error, 1)
	server := serveHTTP(listener, http.NotFoundHandler(), slog.New(slog.DiscardHandler), func(err error) { failed <- err })
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !strings.HasPrefix(err.Error(), "serve admin pages: ") {
		t.Error(err)
	}
	if err := server.stop(t.Context()); err != nil {
		t.Error(err)
	}
}

// stuckCollector answers no scrape until it is closed.
type stuckCollector chan struct{}

func (stuckCollector) Describe(chan<- *prometheus.Desc)   {}
func (c stuckCollector) Collect(chan<- prometheus.Metric) { <-c }

// unusedListener has no connections.
type unusedListener chan struct{}

func (l unusedListener) Accept() (net.Conn, error) {
	<-l
	return nil, net.ErrClosed
}

func (l unusedListener) Close() error {
	close(l)
	return nil
}

func (unusedListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestStopWaitsForNoReading: a reading of the live page hangs, as a collector may wait for a broker. The
// process stops all the same: it is done with its work.
func TestStopWaitsForNoReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck, registry := make(stuckCollector), prometheus.NewRegistry()
		registry.MustRegister(stuck)
		server, err := serveAdmin(t.Context(), make(unusedListener), settings.Settings{Admin: access.Config{Page: true}}, registry,
			slog.New(slog.DiscardHandler), func() error { return nil }, work{page: page.Source{Log: &page.Log{}}}, func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the page waits for the collector
		if err := server.stop(t.Context()); err != nil {
			t.Error(err)
		}
		close(stuck)
	})
}

// TestAdminAccess: a token protects what holds figures. Probes and the page's own files are open, and the page can be off.
func TestAdminAccess(t *testing.T) {
	const token = "0123456789abcdef"
	log := slog.New(slog.DiscardHandler)
	for _, on := range []bool{true, false} {
		registry := newRegistry()
		guard, err := access.New(access.Config{Token: token}, registry, log)
		if err != nil {
			t.Fatal(err)
		}
		ready := func() error { return nil }
		var live *page.Page
		if on {
			live = page.New(page.Source{Role: page.RoleIngress, Metrics: registry, Ready: ready, Log: &page.Log{}})
		}
		h := newHandler(registry, ready, func(bool) any { return nil }, live, guard.Protect, log)
		protected, open := []string{"/metrics", "/state"}, []string{"/healthz", "/readyz"}
		if on {
			protected, open = append(protected, "/snapshot"), append(open, "/", "/page/page.js")
			if w := get(t, h, "GET", "/live"); w.Code != http.StatusUnauthorized {
				t.Errorf("/live: %d", w.Code)
			}
		} else {
			for _, path := range []string{"/", "/live", "/snapshot", "/page/page.js"} {
				if w := get(t, h, "GET", path); w.Code != http.StatusNotFound {
					t.Errorf("the page is off, but %s: %d", path, w.Code)
				}
			}
		}
		for _, path := range open {
			if w := get(t, h, "GET", path); w.Code != http.StatusOK {
				t.Errorf("%s: %d", path, w.Code)
			}
		}
		for _, path := range protected {
			if w := get(t, h, "GET", path); w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "go_goroutines") {
				t.Errorf("%s without a token: %d %s", path, w.Code, w.Body)
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, http.NoBody)
			r.Header.Set("Authorization", "Bearer "+token)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				t.Errorf("%s with the token: %d", path, w.Code)
			}
		}
	}
}
