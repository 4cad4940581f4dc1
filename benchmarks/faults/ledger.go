//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	decisions "oncebus/processor/app"
	"oncebus/processor/kafkatest"
)

// ledger is a mini app with a routed and a prepartitioned topic. It keeps an account of every event that it
// sends: the places from which the app may read the event, and the fate that the event must have.
type ledger struct {
	*mini
	events  []*entry
	deleted map[place]bool // records that a refusal has named as deleted before they were read
	decided map[decisions.Problem]int
}

// place is the position of a record in an input topic.
type place struct {
	topic     string
	partition int32
	offset    int64
}

// entry is an event in the account.
type entry struct {
	id     string
	keyed  bool
	at     time.Time // the event time, which duplicates repeat
	home   int32     // its partition in the prepartitioned topic
	places []place   // the places of its records
	fate   fate
}

// fate says what the app may do with an event that was not deleted.
type fate uint8

const (
	emittedOnce fate = iota
	// maybeLate: after a decision the app does not know what was emitted, so the records of the event may be
	// late. The event must not be emitted twice, and none of its records may vanish without a trace.
	maybeLate
	// outputLost: the topic to which the event was emitted was deleted. The event is not emitted again.
	outputLost
	// deadLetter: the event is from the future. It becomes a dead letter and is not emitted.
	deadLetter
	// emittedOnceLater: the event was from the future, and no longer is. It is emitted once.
	emittedOnceLater
)

// The topics of a ledger besides those of a mini app, without the app's prefix.
const (
	keyedRaw, keyedUnique = "keyed.raw", "keyed.unique"
	// ledgerEvents is how many events one call of send produces for each input partition.
	ledgerEvents = 30
)

// ledgerRoutes is the routes file of a ledger. None of the routes drops events, and leases are so long that none
// ends.
const ledgerRoutes = `routes:
  - name: orders
    topics: [APP.orders.raw]
    key: [record_key]
    window: 1h
    skew: 10m
    output: APP.orders.unique
    dead_letter: APP.dead-letter
  - name: keyed
    topics: [APP.keyed.raw]
    prepartitioned: true
    key: [record_key]
    window: 1h
    skew: 10m
    output: APP.keyed.unique
    dead_letter: APP.dead-letter
  - name: ops
    topics: [APP.ops.raw]
    mode: claim
    key: [record_key]
    window: 1h
    skew: 10m
    lease: 10m
    while_in_progress: reject
    output: APP.ops.run
    outcomes: APP.ops.outcomes
    replies: APP.ops.replies
    dead_letter: APP.ops.dead
`

// openLedger creates the app of a ledger on the cluster of h, starts its process, and sends the first events.
func (h *harness) openLedger(ctx context.Context) (*ledger, error) {
	a, err := h.newApp(fmt.Sprintf("m%d", miniCount.Add(1)), "a")
	if err != nil {
		return nil, err
	}
	l := &ledger{mini: &mini{app: a, s: a.slots[0]}, deleted: map[place]bool{}, decided: map[decisions.Problem]int{}}
	if l.client, err = kgo.NewClient(kgo.SeedBrokers(h.cluster.seeds()...), kgo.ClientID("ledger")); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startMax)
	defer cancel()
	err = os.WriteFile(a.routesFile(), []byte(strings.ReplaceAll(ledgerRoutes, "APP", a.id)), 0o600)
	if err == nil {
		err = l.createTopic(ctx, l.topic(keyedRaw))
	}
	if err == nil {
		err = inOrder(ctx, l.startReady, l.send, l.account)
	}
	if err != nil {
		return nil, errors.Join(err, l.close(ctx))
	}
	return l, nil
}

func (l *ledger) createTopic(ctx context.Context, topic string) error {
	after := "9223372036854775807"
	resp, err := l.h.admin.CreateTopics(ctx, int32(partitions), int16(l.h.set.nodes), map[string]*string{"message.timestamp.after.max.ms": &after}, topic)
	if err == nil {
		err = resp.Error()
	}
	return err
}

// close ends the process and deletes the topics.
func (l *ledger) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), miniMax)
	defer cancel()
	killed := l.s.kill()
	_, err := l.h.admin.DeleteTopics(ctx, l.topic(keyedRaw), l.topic(keyedUnique), l.changelogs()[1])
	return errors.Join(killed, err, l.mini.close(ctx))
}

// leave ends the process but does not delete the topics, because the broker ends as well. After a step of its
// clock, a broker may stay fenced for ever, because its requests to the controller time out before they are
// sent; a fenced broker could not delete topics.
func (l *ledger) leave() error {
	l.client.Close()
	return l.s.kill()
}

// changelogs returns the changelogs of the routed and of the prepartitioned topic.
func (l *ledger) changelogs() []string {
	return []string{l.changelog(), l.id + "-" + l.topic(keyedRaw) + "-changelog"}
}

// inputs returns the topics that users write to.
func (l *ledger) inputs() []string { return []string{l.topic("orders.raw"), l.topic(keyedRaw)} }

// send sends new events to every partition of both topics, and a duplicate of each.
func (l *ledger) send(ctx context.Context) error { return l.sendEach(ctx, ledgerEvents) }

// sendEach sends the given number of new events to each partition of both topics, and a duplicate of each event.
func (l *ledger) sendEach(ctx context.Context, each int) error {
	from := len(l.events)
	for n := range each * (rawPartitions + partitions) {
		e := &entry{id: fmt.Sprintf("event-%d", from+n), at: time.Now(), keyed: n >= each*rawPartitions, home: int32(n % partitions)}
		l.events = append(l.events, e)
	}
	if err := l.produce(ctx, l.events[from:]); err != nil {
		return err
	}
	return l.produce(ctx, l.events[from:])
}

// resend sends a duplicate of every event.
func (l *ledger) resend(ctx context.Context) error { return l.produce(ctx, l.events) }

// produce sends a record of each event and adds the record's place to the entry. It uses a new client each time,
// because a client that knows a topic keeps using the id of the former topic.
func (l *ledger) produce(ctx context.Context, events []*entry) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(l.h.cluster.seeds()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ClientID("ledger"))
	if err != nil {
		return err
	}
	defer client.Close()
	var records []*kgo.Record
	for n, e := range events {
		r := &kgo.Record{Topic: l.topic("orders.raw"), Partition: int32((n + len(e.places)) % rawPartitions), Key: []byte(e.id), Value: []byte("{}"), Timestamp: e.at}
		if e.keyed {
			r.Topic, r.Partition = l.topic(keyedRaw), e.home
		}
		records = append(records, r)
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return fmt.Errorf("send to the app %s: %w", l.id, err)
	}
	for n, e := range events {
		r := records[n]
		e.places = append(e.places, place{r.Topic, r.Partition, r.Offset})
	}
	return nil
}

// account waits until the app has done with every event what the event's fate requires. No event may be emitted
// twice.
func (l *ledger) account(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	return kafkatest.AwaitEvery(ctx, 100*time.Millisecond, "every event of "+l.id+" is accounted for", func(ctx context.Context) error {
		emitted, dead := map[string]int{}, map[string]int{}
		records, err := l.h.readCommitted(ctx, l.topic("orders.unique"), l.topic(keyedUnique), l.topic("dead-letter"))
		if err != nil {
			return err
		}
		for _, r := range records {
			if r.Topic == l.topic("dead-letter") {
				dead[string(r.Key)]++
			} else {
				emitted[string(r.Key)]++
			}
		}
		var missing []string
		for _, e := range l.events {
			there, err := l.judge(e, emitted[e.id], dead[e.id])
			if err != nil {
				return kafkatest.Fatal(err)
			}
			if !there {
				missing = append(missing, e.id)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("%d of %d events are missing, the first is %s", len(missing), len(l.events), missing[0])
		}
		return nil
	})
}

// judge compares an event's fate with the numbers of times that the event was emitted and became a dead letter.
// there is false if a record is missing that may still arrive.
func (l *ledger) judge(e *entry, emitted, dead int) (there bool, err error) {
	switch {
	case emitted > 1:
		return false, fmt.Errorf("%s was emitted %d times", e.id, emitted)
	case emitted > 0 && (e.fate == outputLost || l.lost(e)):
		return false, fmt.Errorf("%s was emitted, although its output or all of its records (%v) are deleted", e.id, e.places)
	case emitted > 0 && e.fate == deadLetter:
		return false, fmt.Errorf("%s was emitted, although it is from the future", e.id)
	case dead > 0 && (e.fate == emittedOnce || e.fate == outputLost):
		return false, fmt.Errorf("%s is a dead letter", e.id)
	case emitted == 0 && e.fate == emittedOnceLater:
		return false, nil
	}
	return emitted+dead > 0 || e.fate == outputLost || l.lost(e), nil
}

// lost reports whether all records of an event were deleted before the app read them.
func (l *ledger) lost(e *entry) bool {
	for _, p := range e.places {
		if !l.deleted[p] {
			return false
		}
	}
	return true
}

// condemn sets the same fate for all events that were sent so far.
func (l *ledger) condemn(f fate) {
	for _, e := range l.events {
		e.fate = f
	}
}

// goOn sends new events and a duplicate of every earlier event. After that, the app must do with each event
// what the event's fate requires.
func (l *ledger) goOn(ctx context.Context) error { return inOrder(ctx, l.resend, l.send, l.account) }

// oncebus runs a command of the program with the settings of the process.
func (l *ledger) oncebus(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, l.h.binary, args...)
	cmd.Env = l.s.environ(nil)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("oncebus %s: %w: %s", strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// startReady starts the process and waits until it is ready.
func (l *ledger) startReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	if err := l.s.start(ctx); err != nil {
		return err
	}
	return l.s.awaitReady(ctx)
}

func (l *ledger) stop(context.Context) error      { return l.s.stop() }
func (l *ledger) kill(context.Context) error      { return l.s.kill() }
func (l *ledger) loseState(context.Context) error { return loseStores(l.s) }

// flagIncomplete is the flag of a checkpoint which says that the changelog lacks rows.
const flagIncomplete = 16

// awaitSwept waits until the newest checkpoint of every changelog partition says that the changelog lacks no row.
// Until then only the local state is complete.
func (l *ledger) awaitSwept(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	return kafkatest.Await(ctx, "the rows of "+l.id+" are in its changelogs again", func(ctx context.Context) error {
		records, err := l.h.readCommitted(ctx, l.changelogs()...)
		if err != nil {
			return err
		}
		incomplete := map[string]bool{}
		for _, r := range records {
			if string(r.Key) == "checkpoint" && len(r.Value) > 1 {
				incomplete[fmt.Sprint(r.Topic, "/", r.Partition)] = r.Value[1]&flagIncomplete != 0
			}
		}
		for partition, is := range incomplete {
			if is {
				return fmt.Errorf("the changelog of %s lacks rows", partition)
			}
		}
		return nil
	})
}

// awaitFlushed waits until all rows are on disk.
func (l *ledger) awaitFlushed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(miniMax))
	defer cancel()
	return kafkatest.Await(ctx, "all rows are on disk", func(ctx context.Context) error {
		m, err := l.s.current().Metrics(ctx)
		if err != nil {
			return err
		}
		if n := m.Sum("oncebus_state_recent_rows"); n > 0 {
			return fmt.Errorf("%v rows are in memory", n)
		}
		return nil
	})
}

// step is one part of a fault.
type step func(context.Context) error

// inOrder takes the steps one after the other until one fails.
func inOrder(ctx context.Context, steps ...step) error {
	for _, s := range steps {
		if err := s(ctx); err != nil {
			return err
		}
	}
	return nil
}

// deciding calls work, and meanwhile decides with the operator's command for every partition that waits for a
// decision. ways lists the expected problems and, for each, the ways to decide; deciding uses the first way
// that the refusal offers. No partition may wait because of another problem.
func (l *ledger) deciding(ctx context.Context, ways map[decisions.Problem][]decisions.Way, work func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.h.patience(2*miniMax))
	defer cancel()
	meta, err := l.h.admin.Metadata(ctx, l.id+"-manifest")
	if err != nil {
		return err
	}
	manifest := l.id + "-manifest"
	t := &decisions.Topology{App: l.id, Manifest: manifest, Topics: map[string]decisions.Topic{manifest: {ID: meta.Topics[manifest].ID}}}
	done := make(chan error, 1)
	go func() { done <- work(ctx) }()
	decided := map[string]bool{}
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(200 * time.Millisecond):
		}
		all, err := decisions.ReadDecisions(ctx, l.client, t, nil)
		if err != nil {
			continue // a broker is down: the next pass reads the refusals
		}
		for _, r := range all.Sorted() {
			if decided[r.Name()+r.Facts] {
				continue
			}
			n := slices.IndexFunc(ways[r.Problem], func(way decisions.Way) bool { return slices.Contains(r.Ways, way) })
			if n < 0 {
				cancel()
				return errors.Join(fmt.Errorf("%s waits because of %s, with the ways %v: %s", r.Name(), r.Problem, r.Ways, r.Detail), <-done)
			}
			way := ways[r.Problem][n]
			if err := l.decideOn(ctx, t, &r, way); err != nil {
				cancel()
				return errors.Join(err, <-done)
			}
			decided[r.Name()+r.Facts] = true
		}
	}
}

// decideOn accepts a refusal in one of its ways. For the first refusal of a problem it runs the command that the
// refusal names. For the others it writes the acceptance directly, which saves the time that a process takes.
func (l *ledger) decideOn(ctx context.Context, t *decisions.Topology, r *decisions.Refusal, way decisions.Way) error {
	if err := l.noteDeleted(r); err != nil {
		return err
	}
	target := "--task"
	if !strings.Contains(r.Command(), target) {
		target = "--route"
	}
	if !strings.Contains(r.Command(), way.Flag()) {
		return fmt.Errorf("%s waits because of %s, and its command %q lacks %s", r.Name(), r.Problem, r.Command(), way.Flag())
	}
	if l.decided[r.Problem]++; l.decided[r.Problem] > 1 {
		return decisions.WriteAcceptance(ctx, l.client, t, r, decisions.Acceptance{Way: way})
	}
	return l.oncebus(ctx, append([]string{"accept", target, r.Name()}, strings.Fields(way.Flag())...)...)
}

var deletedRange = regexp.MustCompile(`its records at offsets (\d+) to (\d+), at most (\d+), were deleted before they were read`)

// noteDeleted records which records a refusal names as deleted before they were read.
func (l *ledger) noteDeleted(r *decisions.Refusal) error {
	if r.Problem != decisions.InputDeleted {
		return nil
	}
	var numbers [3]int64
	found := deletedRange.FindStringSubmatch(r.Detail)
	for i := range numbers {
		if len(found) <= i+1 {
			return fmt.Errorf("the refusal of %s does not say which records were deleted: %s", r.Name(), r.Detail)
		}
		numbers[i], _ = strconv.ParseInt(found[i+1], 10, 64) // digits only
	}
	if numbers[2] != numbers[1]-numbers[0]+1 {
		return fmt.Errorf("the refusal of %s counts wrongly: %s", r.Name(), r.Detail)
	}
	for offset := numbers[0]; offset <= numbers[1]; offset++ {
		l.deleted[place{r.Topic, r.Partition, offset}] = true
	}
	return nil
}

// expectDecided returns a step that checks that decisions were made on exactly these problems.
func (l *ledger) expectDecided(problems ...decisions.Problem) step {
	return func(context.Context) error {
		want := map[decisions.Problem]bool{}
		for _, p := range problems {
			if want[p] = true; l.decided[p] == 0 {
				return fmt.Errorf("no partition waited because of %s; decided were %v", p, l.decided)
			}
		}
		for p, n := range l.decided {
			if !want[p] {
				return fmt.Errorf("%d partitions waited because of %s", n, p)
			}
		}
		return nil
	}
}
