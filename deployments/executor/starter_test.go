package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// answerStarts answers the questions of executors in place of oncebus. answer returns "" to grant a request, else the
// reason why it is not granted.
func (w *workbench) answerStarts(t *testing.T, answer func(kind, token, id string) string) {
	t.Helper()
	w.CreateTopic("answers", 2)
	w.answers, w.journal, w.renewEvery = "answers", filepath.Join(t.TempDir(), "journal"), time.Hour
	client := w.Client(kgo.ConsumeTopics("out"), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	t.Cleanup(func() { stop(); <-ended })
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			client.PollFetches(ctx).EachRecord(func(r *kgo.Record) {
				kind := string(headerOf(r, "oncebus-outcome"))
				if kind != "start" && kind != "renew" {
					return
				}
				given, reason := "granted", answer(kind, string(headerOf(r, "oncebus-claim-token")), string(headerOf(r, "oncebus-start-id")))
				if reason != "" {
					given = "superseded"
				}
				headers := slices.Concat(r.Headers, []kgo.RecordHeader{{Key: "oncebus-answer", Value: []byte(given)}, {Key: "oncebus-reason", Value: []byte(reason)}})
				client.Produce(ctx, &kgo.Record{Topic: "answers", Key: r.Key, Headers: headers}, nil)
			})
		}
	}()
}

// firstID grants the start of an attempt only to the first start id that asks. The executor "dead" has already been
// granted two starts.
func firstID() func(kind, token, id string) string {
	granted := map[string]string{"token-0": "dead", "token-2": "dead"}
	return func(_, token, id string) string {
		if granted[token] == "" {
			granted[token] = id
		}
		if granted[token] != id {
			return "started by " + granted[token]
		}
		return ""
	}
}

// outcomesSent reads n outcomes, as "token kind value". It skips the records that are questions.
func (w *workbench) outcomesSent(t *testing.T, ctx context.Context, n int) (sent []string) { //nolint:revive // t first, as in every helper
	t.Helper()
	for len(sent) < n {
		fetches := w.client.PollFetches(ctx)
		must(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) {
			if kind := string(headerOf(r, "oncebus-outcome")); kind != "start" && kind != "renew" {
				sent = append(sent, fmt.Sprintf("%s%s %s %s", headerOf(r, "oncebus-claim-token"), headerOf(r, "oncebus-reply-to"), kind, r.Value))
			}
		})
	}
	return sent
}

// counted is work that only counts its executions.
func (w *workbench) counted(_ context.Context, event *kgo.Record) ([]byte, error) {
	w.count(event)
	return event.Value, nil
}

// assertOutcomes runs the executor until it has sent n outcomes, and compares them with want.
func (w *workbench) assertOutcomes(t *testing.T, want string, n int, work func(context.Context, *kgo.Record) ([]byte, error)) {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx, work) }()
	if got := fmt.Sprint(w.outcomesSent(t, ctx, n)); got != want {
		t.Errorf("outcomes %s, want %s", got, want)
	}
	stop()
	must(t, <-ended)
}

// TestSupersededIsNotExecuted: the executor does not execute an event whose start is not granted, and executes the
// others.
func TestSupersededIsNotExecuted(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, 5)
	w.answerStarts(t, func(_, token, _ string) string {
		if token == "token-2" {
			return "token is for attempt 1, current is 2"
		}
		return ""
	})
	w.assertOutcomes(t, "[token-0 completed 0 token-1 completed 1 token-3 completed 3 token-4 completed 4]", 4, w.counted)
	for n := range 5 {
		if got := w.worked[n].Load(); got != 1 && n != 2 || got != 0 && n == 2 {
			t.Errorf("event %d was executed %d times", n, got)
		}
	}
}

// TestStartsAcrossCrashes: an executor dies after it has asked, or after the work. Its next start executes the events
// that were not executed, sends the outcomes that were not sent, and executes nothing twice. Another executor that
// reads the same events executes none of them.
func TestStartsAcrossCrashes(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, 5)
	w.answerStarts(t, firstID())
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	// This is the journal of a process that was killed before the work of its second event, during the work of its
	// fifth event, and in the middle of a line. It had finished its third event.
	must(t, os.WriteFile(w.journal, []byte(`{"id":"dead"}
{"state":"asked","token":"token-0","value":"MA=="}
{"state":"asked","token":"token-1","value":"MQ=="}
{"state":"asked","token":"token-2","value":"Mg=="}
{"state":"sent","token":"token-2"}
{"state":"asked","token":"token-4","value":"NA=="}
{"state":"begun","token":"token-4"}
{"state":"done","token":"token-0","outcome":"completed","result":"MA=="}
{"state":"done","tok`), 0o600))
	s, err := openJournal(w.journal)
	must(t, err)
	if _, err := openJournal(w.journal); err == nil || !strings.Contains(err.Error(), "another process has it") {
		t.Errorf("a second process opened the journal: %v", err)
	}
	must(t, s.close())
	running, kill := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.run(running, w.counted) }()
	sent := w.outcomesSent(t, ctx, 4)
	kill()
	must(t, <-ended)
	cut := "token-4 submitted a crash cut the work off, and nothing says whether it had its effect: look, and write the outcome"
	if got, want := fmt.Sprint(sent), "[token-0 completed 0 token-1 completed 1 "+cut+" token-3 completed 3]"; got != want {
		t.Errorf("outcomes %s, want %s", got, want)
	}
	other := w.settings
	other.journal, other.group = filepath.Join(t.TempDir(), "other"), "others"
	running, kill = context.WithCancel(ctx)
	go func() {
		ended <- other.run(running, func(_ context.Context, event *kgo.Record) ([]byte, error) {
			t.Errorf("event %s was executed by another executor", event.Value)
			return nil, nil
		})
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for ; ctx.Err() == nil; <-tick.C {
		if text, err := os.ReadFile(other.journal); err == nil && strings.Count(string(text), `"sent"`) == 5 {
			break
		}
	}
	kill()
	must(t, <-ended)
	for n, want := range []int32{0, 1, 0, 1, 0} {
		if got := w.worked[n].Load(); got != want {
			t.Errorf("event %d was executed %d times, want %d", n, got, want)
		}
	}
}

// TestSupersededWhileItRuns: if the claim of a running attempt is erased, the answer to the next renewal ends the
// work.
func TestSupersededWhileItRuns(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, 1)
	var renewals atomic.Int32
	w.answerStarts(t, func(kind, _, _ string) string {
		if kind == "renew" && renewals.Add(1) == 3 {
			return "the key is freed"
		}
		return ""
	})
	w.renewEvery = time.Millisecond
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- w.run(ctx, func(running context.Context, _ *kgo.Record) ([]byte, error) {
			<-running.Done()
			return nil, context.Cause(running)
		})
	}()
	if got, want := fmt.Sprint(w.outcomesSent(t, ctx, 1)), "[token-0 failed superseded: the key is freed]"; got != want {
		t.Errorf("outcomes %s, want %s", got, want)
	}
	stop()
	must(t, <-ended)
}

// TestSupersededWithoutAQuestion: the answer superseded ends the work at once, even if the next renewal is far away.
func TestSupersededWithoutAQuestion(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, 1)
	w.answerStarts(t, func(_, _, _ string) string { return "" })
	client := w.Client()
	ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- w.run(ctx, func(running context.Context, event *kgo.Record) ([]byte, error) {
			for _, token := range []string{"another", string(headerOf(event, "oncebus-claim-token"))} {
				client.Produce(ctx, &kgo.Record{Topic: "answers", Headers: []kgo.RecordHeader{
					{Key: "oncebus-claim-token", Value: []byte(token)}, {Key: "oncebus-answer", Value: []byte("superseded")}, {Key: "oncebus-reason", Value: []byte("the attempt was erased")},
				}}, nil)
			}
			<-running.Done()
			return nil, context.Cause(running)
		})
	}()
	if got, want := fmt.Sprint(w.outcomesSent(t, ctx, 1)), "[token-0 failed superseded: the attempt was erased]"; got != want {
		t.Errorf("outcomes %s, want %s", got, want)
	}
	stop()
	must(t, <-ended)
}

// TestJournalOfAnotherProgram: a file that is no journal is not used, and stays.
func TestJournalOfAnotherProgram(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"hello\n":                         "line 1 has no id",
		"{}\n":                            "line 1 has no id",
		"{\"id\":\"x\"}\nhello\n{}\n":     "line 2: ",
		"{\"id\":\"x\"}\n{\"state\":1}\n": "line 2: ",
	} {
		path := filepath.Join(t.TempDir(), "journal")
		must(t, os.WriteFile(path, []byte(text), 0o600))
		if _, err := openJournal(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if kept, err := os.ReadFile(path); err != nil || string(kept) != text {
			t.Errorf("%q became %q, %v", text, kept, err)
		}
	}
	if _, err := openJournal(t.TempDir()); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory: %v", err)
	}
}

// TestWorkIsNotedBefore: while an event is being worked on, the journal on the disk already says so.
func TestWorkIsNotedBefore(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, 1)
	w.answerStarts(t, func(_, _, _ string) string { return "" })
	w.assertOutcomes(t, "[token-0 completed 0]", 1, func(_ context.Context, event *kgo.Record) ([]byte, error) {
		if text, err := os.ReadFile(w.journal); err != nil || !strings.Contains(string(text), `{"state":"begun","token":"token-0"}`) {
			t.Errorf("the journal says nothing of the work: %s, %v", text, err)
		}
		return event.Value, nil
	})
}

// TestRepeatableWorkRunsAgain: work that a crash cut off runs again only if the settings say so.
func TestRepeatableWorkRunsAgain(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, 1)
	w.answerStarts(t, func(_, _, _ string) string { return "" })
	w.repeatable = true
	must(t, os.WriteFile(w.journal, []byte(`{"id":"dead"}
{"state":"asked","token":"token-0","value":"MA=="}
{"state":"begun","token":"token-0"}
`), 0o600))
	w.assertOutcomes(t, "[token-0 completed 0]", 1, w.counted)
	w.assertWorkedOnce(t, 1)
}

// TestEventWithoutAClaimIsExecuted: an event that was forwarded without a claim is executed once, even after a crash.
// Its outcome goes only to the request that waits for it. -claimed-only skips the event.
func TestEventWithoutAClaimIsExecuted(t *testing.T) {
	t.Parallel()
	for name, claimedOnly := range map[string]bool{"executed": false, "skipped": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorkbench(t, 0)
			w.answerStarts(t, func(_, _, _ string) string { return "" })
			w.claimedOnly = claimedOnly
			all := events(3)
			all[0].Headers, all[1].Headers = nil, []kgo.RecordHeader{{Key: "oncebus-reply-to", Value: []byte("here")}}
			must(t, w.Client().ProduceSync(t.Context(), all...).FirstErr())
			// The previous process was killed after it had executed the first event.
			must(t, os.WriteFile(w.journal, []byte(`{"id":"dead"}
{"state":"asked","token":"in/0/0","value":"MA==","unclaimed":true,"reply_to":"there"}
{"state":"begun","token":"in/0/0"}
{"state":"done","token":"in/0/0","outcome":"completed","result":"MA=="}
`), 0o600))
			outcomes, sent, want := "[there completed 0 here completed 1 token-2 completed 2]", 3, [...]int32{0, 1, 1}
			if claimedOnly {
				outcomes, sent, want[1] = "[there completed 0 token-2 completed 2]", 2, 0
			}
			w.assertOutcomes(t, outcomes, sent, w.counted)
			for n := range want {
				if got := w.worked[n].Load(); got != want[n] {
					t.Errorf("event %d was executed %d times, want %d", n, got, want[n])
				}
			}
		})
	}
}

// TestAskedEventWithoutAClaimHasAnOutcome: a process is stopped before the work of an event without a claim, and its
// next start reads the event again. The request that waits for the event then gets the outcome of the work.
func TestAskedEventWithoutAClaimHasAnOutcome(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, 0)
	w.answerStarts(t, func(_, _, _ string) string { return "" })
	all := events(1)
	all[0].Headers = []kgo.RecordHeader{{Key: "oncebus-reply-to", Value: []byte("here")}}
	must(t, w.Client().ProduceSync(t.Context(), all...).FirstErr())
	must(t, os.WriteFile(w.journal, []byte(`{"id":"dead"}
{"state":"asked","token":"in/0/0","value":"MA==","unclaimed":true,"reply_to":"here"}
`), 0o600))
	w.assertOutcomes(t, "[here completed 0]", 1, w.counted)
}

// TestStopLeavesTimeToSend: a stop waits for the work, so the time for sending what was executed begins only when the
// work is done.
func TestStopLeavesTimeToSend(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		stop()
		<-time.After(2 * stopMax) // the work
		late, cancel := untilStopped(ctx)
		defer cancel()
		<-time.After(stopMax - 1)
		synctest.Wait()
		if err := late.Err(); err != nil {
			t.Errorf("the context is over before its time: %v", err)
		}
		<-time.After(2)
		synctest.Wait()
		if late.Err() == nil {
			t.Error("a stop has no end")
		}
	})
}

// TestStopHandsOver: a process that is stopped during its work sends what it has executed. Its next start, or another
// process of the group, executes the other events. No event is executed twice, with or without a claim.
func TestStopHandsOver(t *testing.T) {
	t.Parallel()
	for name, asks := range map[string]bool{"executes at once": false, "asks before": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, dir := newWorkbench(t, 4), t.TempDir()
			var all []*kgo.Record // two of the events have no claim
			for n, event := range events(6) {
				if event.Headers = nil; n > 3 {
					all = append(all, event)
				}
			}
			must(t, w.Client().ProduceSync(t.Context(), all...).FirstErr())
			if asks {
				w.answerStarts(t, func(_, _, _ string) string { return "" })
			}
			ctx, stop := context.WithTimeout(t.Context(), 30*time.Second)
			defer stop()
			sent := ""
			for _, run := range []struct {
				last    string // the event during whose work the process is stopped
				sent    int
				process string
			}{{"1", 2, "one"}, {"4", 2, "one"}, {"5", 0, "another"}} {
				w.instance, w.journal = run.process, filepath.Join(dir, run.process)
				running, stop := context.WithCancel(ctx)
				must(t, w.run(running, func(work context.Context, event *kgo.Record) ([]byte, error) {
					w.count(event)
					if string(event.Value) == run.last {
						stop()
					}
					return event.Value, work.Err()
				}))
				stop()
				sent += fmt.Sprint(w.outcomesSent(t, ctx, run.sent))
			}
			if want := "[token-0 completed 0 token-1 completed 1][token-2 completed 2 token-3 completed 3][]"; sent != want {
				t.Errorf("outcomes %s, want %s", sent, want)
			}
			w.assertWorkedOnce(t, 6)
		})
	}
}

// TestAnswerToAnEarlierStart: after a restart, an answer arrives to a question of the previous process. It must not
// start the event, whose attempt has been superseded since.
func TestAnswerToAnEarlierStart(t *testing.T) {
	t.Parallel()
	w := newWorkbench(t, 2)
	client := w.Client()
	w.answerStarts(t, func(_, token, id string) string {
		if token != "token-0" {
			return ""
		}
		must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "answers", Key: []byte(token), Headers: []kgo.RecordHeader{
			{Key: "oncebus-claim-token", Value: []byte(token)}, {Key: "oncebus-outcome", Value: []byte("start")},
			{Key: "oncebus-start-id", Value: []byte(id)}, {Key: "oncebus-answer", Value: []byte("granted")},
		}}).FirstErr())
		return "the attempt was erased"
	})
	w.assertOutcomes(t, "[token-1 completed 1]", 1, w.counted)
	if n := w.worked[0].Load(); n != 0 {
		t.Errorf("the superseded event was executed %d times", n)
	}
}
