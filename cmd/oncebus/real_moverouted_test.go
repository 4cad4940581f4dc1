//go:build unix

package main_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// keyedTopicRoutes are seedRoutes with the topic prepartitioned.
var keyedTopicRoutes = strings.Replace(seedRoutes, "    window:", "    prepartitioned: true\n    window:", 1)

// growTopic adds partitions to an input, and waits until the producer of the test knows them.
func (w *world) growTopic(name string, by int) {
	w.t.Helper()
	topic := w.topic(name)
	grown, err := w.admin.CreatePartitions(w.t.Context(), by, topic)
	if err == nil {
		err = grown.Error()
	}
	if err != nil {
		w.t.Fatal(err)
	}
	eventually(w.t, "the added partitions", func(context.Context) error {
		w.producer.ForceMetadataRefresh()
		leader, _, err := w.producer.PartitionLeader(topic, int32(realPartitions+by-1))
		if err == nil && leader < 0 {
			err = errNotYet
		}
		return err
	})
}

// TestRealMoveToRouted moves the keys of a prepartitioned topic to a repartition topic while events
// and duplicates arrive at two processes. The move is undone once, then its command is killed in
// each phase, and a process while the input is held. Afterwards the topic gets partitions, and the
// producers send each key to any of them. Every event is emitted once.
func TestRealMoveToRouted(t *testing.T) {
	t.Parallel()
	rate := int(loadRate)
	w := newLoadedWorld(t, keyedTopicRoutes)
	w.createTopics(nil, seedInputs...)
	a, b := w.start("a", moveSettings...), w.start("b", moveSettings...)
	awaitTasks(t, realPartitions, a, b)
	pauses, stopWatching := w.watchOutput("signals.unique")
	var senders sync.WaitGroup
	var byKey atomic.Bool
	byKey.Store(true)
	var partitions atomic.Int32
	partitions.Store(realPartitions)
	traffic := &seedTraffic{w: w, keys: seedKeys}
	var sent atomic.Uint32
	traffic.place = func(id string) int32 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(id)) // never fails
		if !byKey.Load() {
			_, _ = h.Write([]byte{byte(sent.Add(1))})
		}
		return int32(h.Sum32() % uint32(partitions.Load()))
	}
	sending, stopSending := context.WithCancel(t.Context())
	senders.Go(func() { traffic.run(sending, rate) })
	w.awaitOutputs(pauses)
	routed := w.routesFile("routed.yaml", seedRoutes)
	toRouted := []string{"--to-routed", "--partitions", "12", "--routes", routed}

	pauses.begin("undone")
	w.killMove("holding:", "move-undone", toRouted...)
	stdout, stderr, code := w.oncebus("", "abort")
	t.Logf("abort: %d\n%s%s", code, stdout, stderr)
	if !strings.Contains(stdout, "undone: "+w.topic("signals.raw")+" stays prepartitioned") {
		t.Fatalf("not undone: %s", stdout)
	}
	awaitTasks(t, realPartitions, a, b)

	pauses.begin("to 12 routed partitions, command killed in each phase, process killed")
	for _, phase := range movePhases {
		w.killMove(phase, "move-"+strings.TrimSuffix(phase, ":"), toRouted...)
		if phase == "holding:" {
			a.kill()
			a = w.start("a", moveSettings...)
		}
	}
	stdout, stderr, code = w.oncebus("", "abort") // completes a move that has acted
	t.Logf("abort after the last kill: %d\n%s%s", code, stdout, stderr)
	awaitTasks(t, 12, a, b)

	pauses.begin("the topic grows")
	w.growTopic("signals.raw", 3)
	partitions.Store(realPartitions + 3)
	byKey.Store(false)
	b.kill()
	b = w.start("b", moveSettings...)
	awaitTasks(t, 12, a, b)
	w.awaitOutputs(pauses)
	pauses.begin("")
	stopSending()
	senders.Wait()
	if traffic.err != nil {
		t.Fatal(traffic.err)
	}
	w.taken(w.topicsOf(seedInputs))
	eventually(t, "the repartition topic is processed", func(ctx context.Context) error {
		return w.repartitionDone(ctx, fmt.Sprint(w.app, "-repartition-3"))
	})
	w.drained(seedInputs, seedOutputs)
	stopWatching()
	w.checkMoved(traffic)
	if stdout, stderr, code := w.oncebus("", "move", "--finish", "--routes", routed); !strings.Contains(stdout, "deleted: "+w.app+"-"+w.topic("signals.raw")+"-changelog") {
		t.Errorf("finish: %d\n%s%s", code, stdout, stderr)
	}
	a.stop()
	b.stop()
}
