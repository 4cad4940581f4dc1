package processor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"oncebus/processor/app"
)

// inputLags returns the lag of each input partition of an instance that has a lag.
func inputLags(i *instance) map[string]int64 {
	lags := map[string]int64{}
	for _, in := range i.State().Inputs {
		if in.Lag != 0 {
			lags[in.Partition] = in.Lag
		}
	}
	return lags
}

// TestInputThatIsNotReadIsNamed leaves one of two inputs unread. Then /state names the partition that keeps stream
// time back, how far and since when, and the gauges rise. Once the events of that input are read, the namespace is up
// to date again.
func TestInputThatIsNotReadIsNamed(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.ReplaceAll(benchRoutes, "[signals.raw]", "[signals.raw, alerts.raw]"))
	b.createTopic("signals.raw", 2)
	b.createTopic("alerts.raw", 1)
	alert := func(id string, at int64) { r := signal(id, 0, at); r.Topic = "alerts.raw"; b.produce(r) }
	began := time.Now().Add(-time.Minute) // the broker's clock is read a little earlier
	cfg := b.config("one")
	cfg.SessionTimeout = time.Minute // a process that joins again would read what is paused
	i := b.ready(b.startWith(cfg, often))
	b.produce(signal("s", 0, testTime), signal("t", 1, testTime))
	alert("a", testTime)
	b.drain(i, "signals.raw", "alerts.raw")
	b.upToDate()
	b.wait("nothing to be held in live traffic", func() bool { return len(i.State().TimeHeld) == 0 && len(inputLags(i)) == 0 })

	const ahead, slack = 5 * 60 * minute, 10 * minute // time goes on without events, before the pause and after it
	resume := i.PauseRouting("alerts.raw")
	alert("b", testTime+ahead)
	const steps = 60
	for n := range steps {
		b.produce(signal(fmt.Sprint("s-", n), int32(n%2), testTime+int64(n+1)*ahead/steps))
	}
	b.drain(i, "signals.raw")
	var held []app.HeldTime
	b.wait("the state to name the input, and its lag", func() bool {
		lags := inputLags(i)
		held = i.State().TimeHeld
		return len(held) == 1 && !held[0].Since.IsZero() && held[0].BehindMS >= ahead-slack && len(lags) == 1 && lags["alerts.raw/0"] == 1
	})
	h := held[0]
	if h.Namespace != "signals" || strings.Join(h.Routes, ",") != "signals" || h.Source != "alerts.raw/0" || h.Since.Before(began) || h.Since.After(time.Now().Add(time.Minute)) {
		t.Errorf("%+v", h)
	}
	got := gather(t, i)
	for series, want := range map[string]float64{
		`oncebus_input_lag_records{partition="0",topic="alerts.raw"}`:  1,
		`oncebus_input_lag_records{partition="0",topic="signals.raw"}`: 0,
	} {
		if have, ok := got[series]; !ok || have != want {
			t.Errorf("%s is %v (there: %v), want %v", series, have, ok, want)
		}
	}
	if by := got[`oncebus_stream_time_held_seconds{namespace="signals"}`]; by < float64(ahead-slack)/1000 || by > float64(ahead+slack)/1000 {
		t.Errorf("stream time is held back by %v s", by)
	}
	if at := got[`oncebus_stream_time_timestamp_seconds{namespace="signals"}`]; at < testTime/1000 || at > float64(testTime+slack)/1000 {
		t.Errorf("stream time is %v", at)
	}
	resume()
	b.drain(i, "signals.raw", "alerts.raw")
	b.upToDate()
	b.wait("nothing to be held", func() bool {
		return len(i.State().TimeHeld) == 0 && gather(t, i)[`oncebus_stream_time_held_seconds{namespace="signals"}`] < 60 && len(inputLags(i)) == 0
	})
}

// TestInputsWaitInAHold protects that the lag of the inputs shows during a hold, too.
func TestInputsWaitInAHold(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes)
	b.createTopic("signals.raw", 2)
	i := b.ready(b.startWith(b.config("one"), often))
	b.produce(signal("s", 0, testTime))
	b.drain(i, "signals.raw")
	b.hold(b.decider(), 0)
	b.produce(signal("a", 0, testTime), signal("b", 1, testTime), signal("c", 1, testTime))
	b.wait("the lag of the inputs", func() bool {
		lags := inputLags(i)
		return lags["signals.raw/0"] == 1 && lags["signals.raw/1"] == 2
	})
}

// TestDiagnosisNamesWhatKeepsTimeBack protects that a diagnosis from outside names the partition that keeps stream
// time back, how far and since when, why, and the way out. The causes are a process that does not read, no process at
// all, and a hold, whose lag shows.
func TestDiagnosisNamesWhatKeepsTimeBack(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.ReplaceAll(benchRoutes, "[signals.raw]", "[signals.raw, alerts.raw]"))
	b.createTopic("signals.raw", 2)
	b.createTopic("alerts.raw", 1)
	alert := func(id string, at int64) { r := signal(id, 0, at); r.Topic = "alerts.raw"; b.produce(r) }
	cfg := b.config("one")
	cfg.SessionTimeout, cfg.LeaveOnStop = time.Minute, true // a busy machine must not remove the client that reads
	i := b.ready(b.startWith(cfg, often))
	b.produce(signal("s", 0, testTime), signal("t", 1, testTime))
	alert("a", testTime)
	b.drain(i, "signals.raw", "alerts.raw")
	b.upToDate()
	assertFinding(t, b.diagnose(cfg, 0), app.Note, "replicas", "the cluster has one broker") // the worst one

	i.PauseRouting("alerts.raw")
	alert("b", testTime+60*minute)
	alert("c", testTime+60*minute)
	// Stream time has advanced from testTime by as long as the machine took.
	b.produce(signal("u", 0, testTime+90*minute), signal("v", 1, testTime+90*minute))
	b.drain(i, "signals.raw")
	b.wait("the state to name the input", func() bool { h := i.State().TimeHeld; return len(h) == 1 && !h[0].Since.IsZero() })
	assertFinding(t, b.diagnose(cfg, 0), app.AtRisk, "time", "alerts.raw/0 keeps stream time of signals back, by 1h")
	assertFinding(t, b.diagnose(cfg, 0), app.AtRisk, "time", "it has 2 records, and client app-one-route-0 reads it")
	must(t, i.stop())
	b.wait("the group to notice", func() bool { return len(b.cluster.GroupInfo("app-route").Members) == 0 })
	assertFinding(t, b.diagnose(cfg, 0), app.AtRisk, "time", "no process reads it, and it has 2 records")

	d := b.decider()
	must(t, d.Hold(t.Context(), app.NewHold("repair", "ada", 0)))
	findings := b.diagnose(cfg, 0)
	assertFinding(t, findings, app.AtRisk, "time", "the inputs are held")
	assertFinding(t, findings, app.AtRisk, "inputs", "by ada: repair; records that wait in 3 partitions of the inputs: 2 -> oncebus release ends the hold")
}
