//go:build unix

package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const senderRoutes = seedRoutes + "    sender: {header: feed}\n"

// senderTraffic are events of 500 senders. Each is sent twice, and one sender sends 40 % of
// the duplicates. The two of an event are in one partition, so the second is the duplicate.
type senderTraffic struct {
	w     *world
	sent  int
	truth map[string]int // duplicates by sender
}

// heavySender is the one that sends most.
const heavySender = "feed-042"

// send sends n events, and then their duplicates.
func (s *senderTraffic) send(n int) {
	s.w.t.Helper()
	now := time.Now().Truncate(time.Millisecond)
	event := func(number int, feed string, at time.Time) *kgo.Record {
		return &kgo.Record{Topic: s.w.topic("signals.raw"), Partition: int32(number % realPartitions), Timestamp: at, Value: fmt.Appendf(nil, `{"id":"e-%d"}`, number),
			Headers: []kgo.RecordHeader{withHeader("feed", []byte(feed))}}
	}
	var firsts, seconds []*kgo.Record
	for range n {
		feed := fmt.Sprintf("feed-%03d", s.w.rng.IntN(500))
		if s.sent%5 < 2 {
			feed = heavySender
		} else if feed == heavySender {
			feed = "feed-043"
		}
		s.truth[feed]++
		firsts = append(firsts, event(s.sent, fmt.Sprintf("feed-%03d", s.w.rng.IntN(500)), now))
		seconds = append(seconds, event(s.sent, feed, now.Add(2*time.Second)))
		s.sent++
	}
	s.w.produce(append(firsts, seconds...)...)
}

// shownDuplicates is what `oncebus stats` prints of duplicates.
type shownDuplicates struct {
	Route string
	Days  []struct {
		Day        string
		Duplicates int
	}
	Delays []struct {
		UpToSeconds float64 `json:"up_to_seconds"`
		Duplicates  int
	}
	Senders struct {
		Duplicates, Other int
		Top               []struct {
			Sender            string
			Duplicates, Error int
		}
	}
}

// TestRealSendersOfDuplicates: of 200,000 events of 500 senders one sends 40 % of the duplicates.
// `oncebus stats` and the metrics name it, with a number within the stated error, although one
// of the two processes is killed twice.
func TestRealSendersOfDuplicates(t *testing.T) {
	t.Parallel()
	w := newWorld(t, senderRoutes)
	w.createTopics(nil, "signals.raw", "signals.unique", "dead-letter")
	s := &senderTraffic{w: w, truth: map[string]int{}}
	a, b := w.start("a"), w.start("b")
	a.awaitReady()
	b.awaitReady()
	s.send(40_000)
	a.kill()
	s.send(30_000)
	a = w.start("a")
	a.awaitReady()
	s.send(30_000)
	w.drained([]string{"signals.raw"}, []string{"signals.unique"})

	out, stderr, code := w.oncebus("", "stats", "-o", "json")
	var stats struct{ Duplicates []shownDuplicates }
	if err := json.Unmarshal([]byte(out), &stats); err != nil || code != 0 || len(stats.Duplicates) != 1 {
		t.Fatalf("stats: %d, %v, %s%s", code, err, out, stderr)
	}
	s.check(&stats.Duplicates[0])
	people, _, _ := w.oncebus("", "stats", "--days", "1")
	if !strings.Contains(people, heavySender) {
		t.Errorf("stats does not name %s:\n%s", heavySender, people)
	}
	eventually(t, "the metrics have all duplicates", func(ctx context.Context) error { return s.checkMetrics(ctx, a, b) })
	t.Logf("%s sent %d of %d duplicates; stats:\n%s", heavySender, s.truth[heavySender], s.sent, people)
	a.stop()
	b.stop()
}

// within reports whether a count of a sender is within the stated error: at most a 128th of all
// duplicates.
func (s *senderTraffic) within(sender string, count int) bool {
	return count >= s.truth[sender] && count <= s.truth[sender]+s.sent/128
}

// check compares what `oncebus stats` says with what was sent.
func (s *senderTraffic) check(got *shownDuplicates) {
	t := s.w.t
	t.Helper()
	days, delays := 0, 0
	for _, day := range got.Days {
		days += day.Duplicates
	}
	for _, delay := range got.Delays {
		delays += delay.Duplicates
	}
	if got.Route != "signals" || days != s.sent || delays != s.sent || len(got.Delays) != 1 || got.Delays[0].UpToSeconds != 3 {
		t.Errorf("%d duplicates were sent 2 s after the first event; stats has %+v", s.sent, got)
	}
	senders := got.Senders
	if senders.Duplicates != s.sent || len(senders.Top) != 10 || senders.Top[0].Sender != heavySender || !s.within(heavySender, senders.Top[0].Duplicates) {
		t.Errorf("%s sent %d of %d duplicates; stats has %+v", heavySender, s.truth[heavySender], s.sent, senders)
	}
	all := senders.Other
	for _, one := range senders.Top {
		all += one.Duplicates
		if one.Error > s.sent/128 || one.Duplicates-one.Error > s.truth[one.Sender] || !s.within(one.Sender, one.Duplicates) {
			t.Errorf("%+v, it sent %d", one, s.truth[one.Sender])
		}
	}
	if all != s.sent {
		t.Errorf("the senders have %d of %d duplicates", all, s.sent)
	}
}

// checkMetrics compares the metrics of the processes with what was sent. They are at most a
// second old.
func (s *senderTraffic) checkMetrics(ctx context.Context, services ...*service) error {
	all, heavy := 0, 0
	for _, service := range services {
		senders, err := service.metric(ctx, "oncebus_sender_duplicates")
		if err != nil {
			return err
		}
		if len(senders) > 11 {
			return fmt.Errorf("process %s has %d series of senders", service.Name, len(senders))
		}
		for sender, n := range senders {
			all += n
			if sender == "signals/"+heavySender {
				heavy += n
			}
		}
	}
	if all != s.sent || !s.within(heavySender, heavy) {
		return fmt.Errorf("the metrics have %d duplicates, %d of them from %s; it sent %d of %d", all, heavy, heavySender, s.truth[heavySender], s.sent)
	}
	return nil
}
