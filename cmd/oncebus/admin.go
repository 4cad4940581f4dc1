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
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the HTTP server: nobody can hold a connection or a goroutine for
// long. The write limit leaves room for a scrape of many partitions.
const (
	httpHeaderTimeout = 5 * time.Second
	httpReadTimeout   = 10 * time.Second
	httpWriteTimeout  = 30 * time.Second
	httpIdleTimeout   = 2 * time.Minute
	httpStopTimeout   = 2 * time.Second
	httpHeaderBytes   = 16 << 10
)

// newRegistry returns a registry with the metrics of the Go runtime and the process.
func newRegistry() *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// newHandler serves
//
//	/metrics  what metrics gathers, in Prometheus' format
//	/healthz  200 as long as the process answers: it is alive
//	/readyz   200 when ready returns nil, else 503 and why not
//	/state    what state returns, as JSON
func newHandler(metrics *prometheus.Registry, ready func() error, state func() any, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(metrics, promhttp.HandlerFor(metrics, promhttp.HandlerOpts{
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelError),
	})))
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
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		body, err := json.MarshalIndent(state(), "", "  ")
		if err != nil {
			log.Error("state page failed", "error", err)
			writeText(w, http.StatusInternalServerError, "state cannot be shown: "+err.Error())
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = w.Write(append(body, '\n')) // a client that went away is nobody to tell
	})
	return mux
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, text+"\n") // as above
}

// httpServer is a server and the goroutine it serves on.
type httpServer struct {
	server *http.Server
	ended  chan struct{}
}

// serveHTTP serves handler on listener until stop is called. Should the server
// end by itself, failed is called with the reason.
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
			failed(fmt.Errorf("http server: %w", err))
		}
	}()
	return h
}

// stop lets open requests finish within httpStopTimeout, and cuts off the rest.
// That ctx is done already does not matter; it often is the reason to stop.
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
