//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"oncebus/processor/kafkatest/program"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kgo"
)

// envPlain has the settings of the plain server's process.
const envPlain = "ONCEBUS_BENCH_PLAIN"

// plain is the smallest HTTP server that produces events: it reads the body, produces it with acks from all in-sync
// replicas, and responds 202. It checks no signature, derives no key and writes no log.
type plain struct {
	Brokers []string
	Topic   string

	client *kgo.Client
}

// startPlain starts a plain server in its own process.
func (a *app) startPlain(ctx context.Context) (*program.Process, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(plain{Brokers: a.broker.Seeds(), Topic: a.input()})
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Env = append(program.Inherited(), envPlain+"="+string(text))
	s, err := program.Start(a.id, cmd, a.path(".log"))
	if err != nil {
		return nil, err
	}
	if err := ready(ctx, s); err != nil {
		return nil, err
	}
	return s, nil
}

// plainMain is the main function of a plain server's process; elsewhere it does
// nothing.
func plainMain() {
	text, is := os.LookupEnv(envPlain)
	if !is {
		return
	}
	var p plain
	err := json.Unmarshal([]byte(text), &p)
	if err == nil {
		err = p.serve()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve works until SIGTERM.
func (p *plain) serve() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Like the ingress, the producer does not linger: events that arrive while a produce request is in flight share
	// the next request.
	p.client, err = kgo.NewClient(kgo.SeedBrokers(p.Brokers...), kgo.DefaultProduceTopic(p.Topic), kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	defer p.client.Close()
	if err := p.client.Ping(ctx); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("POST "+requestPath, p)
	mux.Handle("/metrics", promhttp.Handler())
	mux.HandleFunc("/readyz", func(http.ResponseWriter, *http.Request) {})
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	fmt.Fprintf(os.Stderr, "{\"msg\":%q,\"addr\":%q}\n", program.ListensHTTP, listener.Addr()) // in the format of oncebus's log
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return server.Shutdown(closing)
}

// plainBodyMax is the ingress's default.
const plainBodyMax = 1 << 20

var accepted = []byte(`{"status":"accepted"}`)

// ServeHTTP implements http.Handler.
func (p *plain) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, plainBodyMax))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	sent := make(chan error, 1)
	p.client.Produce(r.Context(), &kgo.Record{Value: body}, func(_ *kgo.Record, err error) { sent <- err })
	if err := <-sent; err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusAccepted)
	_, _ = w.Write(accepted) // the client may have disconnected
}
