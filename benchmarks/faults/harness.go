//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// harness is one run: the cluster, the program under test, and the findings.
type harness struct {
	ctx     context.Context
	halt    context.Context // ends when the run must draw no more faults
	set     settings
	dir     string // the directory of data and logs
	binary  string // the program that starting processes run
	current string // the program of this checkout, if binary is a program of an earlier commit
	cluster *cluster
	client  *kgo.Client // an admin client
	admin   *kadm.Client
	rng     *rand.Rand // draws the schedule; the traffic has its own
	began   time.Time

	mu         sync.Mutex
	violations []violation
	journal    *os.File // events of the run, one JSON object per line
}

// violation is a broken promise.
type violation struct {
	// Promise names the broken promise: K1 to K12 of the oracle, claims for the oracle's findings in claim mode, or a
	// check of the harness itself: fault, heal, process, scenario, traffic, observer, http, markers.
	Promise string `json:"promise"`
	Message string `json:"message"`
}

// violationsShown is how many violations of each promise the terminal shows; the journal has all of them.
const violationsShown = 5

// violate records that a promise was broken. The run continues to the end of the epoch.
func (h *harness) violate(promise, format string, args ...any) {
	v := violation{Promise: promise, Message: fmt.Sprintf(format, args...)}
	h.mu.Lock()
	h.violations = append(h.violations, v)
	n := 0
	for _, other := range h.violations {
		if other.Promise == v.Promise {
			n++
		}
	}
	h.mu.Unlock()
	if n <= violationsShown {
		h.say("VIOLATION %s: %s", v.Promise, v.Message)
	}
	h.note("violation", map[string]any{"promise": v.Promise, "message": v.Message})
}

// patience returns how long to wait for an event that is due within limit; with -lenient, longer.
func (h *harness) patience(limit time.Duration) time.Duration {
	if h.set.lenient {
		return 10 * limit
	}
	return limit
}

func (h *harness) violated() []violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.violations)
}

// clock returns the time since the start, as text for the terminal.
func (h *harness) clock() string { return fmt.Sprintf("%7.1f", time.Since(h.began).Seconds()) }

// say prints a line on the terminal.
func (h *harness) say(format string, args ...any) {
	fmt.Printf("%s %s\n", h.clock(), fmt.Sprintf(format, args...))
}

// note writes an entry of the journal.
func (h *harness) note(what string, fields map[string]any) {
	entry := map[string]any{"at": time.Now().Format(time.RFC3339Nano), "what": what}
	maps.Copy(entry, fields)
	line, err := json.Marshal(entry)
	if err != nil {
		line = fmt.Appendf(nil, `{"what":"journal","error":%q}`, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.journal.Write(append(line, '\n')); err != nil {
		fmt.Fprintln(os.Stderr, "faults: journal:", err)
	}
}

// run sets everything up, runs the epochs, and reports. When halt ends, it draws no more faults, and checks the
// epochs that have begun.
func run(ctx, halt context.Context, s settings) error {
	h := &harness{ctx: ctx, halt: halt, set: s, rng: rand.New(rand.NewPCG(s.seed, 1)), began: time.Now()}
	if err := h.prepare(); err != nil {
		return err
	}
	rep, err := h.campaign()
	h.client.Close()
	err = errors.Join(err, h.cluster.close(), h.journal.Close())
	err = errors.Join(err, rep.finish(h))
	if err = errors.Join(err, rep.verdict(h)); err != nil {
		fmt.Printf("seed %d; logs, journal and history are kept in %s\n", s.seed, h.dir)
		return err
	}
	return h.cleanUp()
}

// prepare makes the directories, builds the program and starts Kafka.
func (h *harness) prepare() error {
	var err error
	if h.dir = h.set.work; h.dir == "" {
		if h.dir, err = os.MkdirTemp("", "oncebus-faults-"); err != nil {
			return err
		}
	}
	for _, dir := range []string{"logs", "kafka"} {
		if err := os.MkdirAll(filepath.Join(h.dir, dir), 0o700); err != nil {
			return err
		}
	}
	if h.journal, err = os.Create(filepath.Join(h.dir, "journal.jsonl")); err != nil {
		return err
	}
	h.note("start", map[string]any{"seed": h.set.seed, "nodes": h.set.nodes, "duration": h.set.duration.String()})
	if h.binary, err = program.Build(h.ctx, h.dir, "-tags", "failpoints"); err != nil {
		return err
	}
	if h.cluster, err = startCluster(h.ctx, filepath.Join(h.dir, "kafka"), h.set.nodes, h.set.kafka); err != nil {
		return err
	}
	if err := h.connect(); err != nil {
		return err
	}
	h.say("Kafka runs; data and logs in %s", h.dir)
	if err := loopDisks(); err != nil {
		h.say("note: faults that need a disk of their own are left out: %v", err)
	}
	return nil
}

// connect makes the harness's own client.
func (h *harness) connect() (err error) {
	// Brokers stop and return often, so the client may refresh its metadata every 100 ms.
	if h.client, err = kgo.NewClient(kgo.SeedBrokers(h.cluster.seeds()...), kgo.MetadataMinAge(100*time.Millisecond), kgo.ClientID("harness")); err == nil {
		h.admin = kadm.NewClient(h.client)
	}
	return err
}

// cleanUp removes the files of a run without findings, unless a flag named their directory.
func (h *harness) cleanUp() error {
	if h.set.work != "" {
		return nil
	}
	return os.RemoveAll(h.dir)
}

// readCommitted reads topics read_committed from their start to their last stable offset, partition by partition in offset order.
func (h *harness) readCommitted(ctx context.Context, topics ...string) ([]*kgo.Record, error) {
	return kafkatest.ReadCommitted(ctx, h.client, nil, topics...)
}
