package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"oncebus/cmd/oncebus/page"
)

// Limits of the admin server, so that no client occupies a connection or a goroutine for long. The write limit
// is long enough for a scrape with the metrics of many partitions.
const (
	httpHeaderTimeout = 5 * time.Second
	httpReadTimeout   = 10 * time.Second
	httpWriteTimeout  = 30 * time.Second
	httpIdleTimeout   = 2 * time.Minute
	httpStopTimeout   = 2 * time.Second
	httpHeaderBytes   = 16 << 10
)

// newRegistry returns a registry with the metrics of the build, the Go runtime and the process.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	registerBuild(reg)
	registerRuntime(reg)
	return reg
}

// registerBuild registers a metric with the version and the commit from which the binary was built.
func registerBuild(reg prometheus.Registerer) {
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "oncebus_build_info",
		Help:        "Always 1, with the build in its labels. Processes that differ for longer than a rolling update takes were left out of it.",
		ConstLabels: prometheus.Labels{"version": version(), "commit": commit(), "go": runtime.Version()}}, func() float64 { return 1 }))
}

// runtimeMetrics matches the metrics of the Go runtime that we export in addition to the collector's own
// choice: how long goroutines wait to be scheduled, how long the garbage collector stops all goroutines, how
// much CPU it takes, and how long goroutines wait for mutexes. The runtime has a hundred other metrics, but no
// operator could act on them.
var runtimeMetrics = regexp.MustCompile(`^/(sched/(latencies|pauses/total/gc):seconds|cpu/classes/gc/total:cpu-seconds|sync/mutex/wait/total:seconds)$`)

// registerRuntime exports the metrics of the Go runtime and the process.
func registerRuntime(reg prometheus.Registerer) {
	reg.MustRegister(
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.GoRuntimeMetricsRule{Matcher: runtimeMetrics})),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
}

// newHandler serves
//
//	/metrics  the metrics, in the Prometheus text format
//	/healthz  200 while the process responds
//	/readyz   200 when ready returns nil, else 503 and its error
//	/state    the result of state, as JSON; state gets brief unless the query has ?keys=tasks
//	/         the live page, with /live and /snapshot, unless live is nil
//
// protect wraps the handlers that show figures.
func newHandler(metrics *prometheus.Registry, ready func() error, state func(brief bool) any, live *page.Page, protect func(http.Handler) http.Handler, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	if live != nil {
		live.Register(mux, protect)
	}
	mux.Handle("GET /metrics", protect(promhttp.InstrumentMetricHandler(metrics, promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError),
	}))))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		writeText(w, http.StatusOK, "alive")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			writeText(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		writeText(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /state", protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := json.MarshalIndent(state(r.URL.Query().Get("keys") != "tasks"), "", "  ")
		if err != nil {
			log.Error("encode state failed", "error", err)
			writeText(w, http.StatusInternalServerError, "encode state: "+err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(append(body, '\n')) // fails only if the client disconnected
	})))
	return mux
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // fails only if the client disconnected
}

// httpServer is a server together with the goroutine that it serves on.
type httpServer struct {
	server *http.Server
	ended  chan struct{}
}

// serveHTTP serves handler on listener until stop is called. It calls failed if the server ends before that.
func serveHTTP(listener net.Listener, handler http.Handler, log *slog.Logger, failed func(error)) *httpServer {
	h := &httpServer{
		server: &http.Server{
			Handler:           handler,
			ReadHeaderTimeout: httpHeaderTimeout,
			ReadTimeout:       httpReadTimeout,
			WriteTimeout:      httpWriteTimeout,
			IdleTimeout:       httpIdleTimeout,
			MaxHeaderBytes:    httpHeaderBytes,
			ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
		ended: make(chan struct{}),
	}
	go func() {
		defer close(h.ended)
		if err := h.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed(fmt.Errorf("serve admin pages: %w", err))
		}
	}()
	return h
}

// stop waits at most httpStopTimeout for open requests and then closes their connections. It waits even if ctx
// is done, because ctx is usually done when a process stops.
func (h *httpServer) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), httpStopTimeout)
	defer cancel()
	err := h.server.Shutdown(ctx)
	if err != nil {
		err = errors.Join(err, h.server.Close())
	}
	<-h.ended
	return err
}
