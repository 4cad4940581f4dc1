package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	s, err := readSettings()
	if err != nil {
		fmt.Fprintln(os.Stderr, "handwritten:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err = s.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "handwritten:", err)
		os.Exit(1)
	}
}

// settings come from the environment, ONCEBUS_HANDWRITTEN_NAME.
type settings struct {
	brokers                        []string
	group, instance, input, output string
	store, server                  string
	workers                        int
	commit, window, session        time.Duration
}

func readSettings() (s settings, err error) {
	text := func(name string) string {
		value, is := os.LookupEnv("ONCEBUS_HANDWRITTEN_" + name)
		if !is {
			err = errors.Join(err, fmt.Errorf("ONCEBUS_HANDWRITTEN_%s is not set: package peers starts this program", name))
		}
		return value
	}
	number := func(name string) int {
		n, wrong := strconv.Atoi(text(name))
		if wrong != nil || n < 1 {
			err = errors.Join(err, fmt.Errorf("ONCEBUS_HANDWRITTEN_%s is not a number from 1", name))
		}
		return n
	}
	millis := func(name string) time.Duration { return time.Duration(number(name)) * time.Millisecond }
	s = settings{
		brokers: strings.Split(text("BROKERS"), ","), group: text("GROUP"), instance: text("INSTANCE"),
		input: text("INPUT"), output: text("OUTPUT"), store: text("STORE"), server: text("SERVER"),
		workers: number("WORKERS"), commit: millis("COMMIT_MS"), window: millis("WINDOW_MS"), session: millis("SESSION_MS"),
	}
	return s, err
}

// open returns a connection to the store for one worker.
func (s settings) open(ctx context.Context) (store, error) {
	switch s.store {
	case "redis":
		return openRedis(s.server, s.window, false)
	case "redis-position":
		return openRedis(s.server, s.window, true)
	case "postgres":
		return openPostgres(ctx, s.server)
	}
	return nil, fmt.Errorf("no store %q, need redis, redis-position or postgres", s.store)
}

// run works with all workers until ctx ends, or one fails.
func (s settings) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, s.workers+1)
	var wg sync.WaitGroup
	if s.store == "postgres" {
		if err := createTable(ctx, s.server); err != nil {
			return err
		}
		wg.Go(func() {
			if errs[s.workers] = expire(ctx, s.server, s.window); errs[s.workers] != nil {
				cancel()
			}
		})
	}
	for i := range s.workers {
		wg.Go(func() {
			if errs[i] = s.work(ctx, i); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
