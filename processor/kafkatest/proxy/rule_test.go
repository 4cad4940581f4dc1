package proxy

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestValidate: a rule that lacks a setting of its action, or has one that the action
// does not use, is rejected with the field's name.
func TestValidate(t *testing.T) {
	endTxn := Match{APIs: []int16{kmsg.EndTxn.Int16()}}
	release := make(chan struct{})
	for _, test := range []struct {
		rule Rule
		want string // part of the error; "" for a valid rule
	}{
		{Rule{Action: DropRequest, Reset: true, Skip: 2, Count: 1, Probability: 0.5}, ""},
		{Rule{Action: HoldRequest, Release: release}, ""},
		{Rule{Match: endTxn, Action: PatchResponse, Patch: NoOffsets}, ""},
		{Rule{Action: Throttle, BytesPerSecond: 1, Direction: ToClient}, ""},
		{Rule{}, "Action"},
		{Rule{Action: Throttle + 1}, "Action"},
		{Rule{Action: DropRequest, Count: -1}, "Count -1"},
		{Rule{Action: DropRequest, Skip: -1}, "Skip -1"},
		{Rule{Action: DropRequest, Probability: 1.5}, "Probability 1.5"},
		{Rule{Action: DropRequest, Delay: time.Second}, "Delay"},
		{Rule{Action: DelayRequest}, "Delay"},
		{Rule{Action: DelayRequest, Delay: -1}, "Delay"},
		{Rule{Action: HoldRequest}, "Release"},
		{Rule{Action: HoldRequest, Delay: 1, Jitter: 1}, "Jitter"},
		{Rule{Action: DelayRequest, Delay: 1, Release: release}, "Release"},
		{Rule{Match: endTxn, Action: Refuse}, "Error"},
		{Rule{Action: Refuse, Error: kerr.UnknownServerError}, "APIs"},
		{Rule{Match: endTxn, Action: PatchResponse}, "Patch"},
		{Rule{Match: endTxn, Action: PatchResponse, Error: kerr.UnknownServerError, Patch: NoOffsets}, "Patch"},
		{Rule{Action: DropRequest, Error: kerr.UnknownServerError}, "Error"},
		{Rule{Action: DropRequest, Patch: NoOffsets}, "Patch"},
		{Rule{Action: Throttle}, "BytesPerSecond"},
		{Rule{Action: Blackhole, BytesPerSecond: 5}, "BytesPerSecond"},
		{Rule{Action: DropRequest, Direction: ToBroker}, "Direction"},
		{Rule{Action: Blackhole, Direction: 3}, "Direction"},
		{Rule{Action: Blackhole, Reset: true}, "Reset"},
		{Rule{Name: "mine", Match: Match{Node: -1}, Action: DropRequest}, "rule mine: Node"},
		{Rule{Match: Match{Node: 1}, Action: DropRequest}, "Node 1"}, // the proxy has none
	} {
		p, err := Listen(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Add(test.rule)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: error %v, want %q", test.rule, err, test.want)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestMatchClient: a client id matches whole or up to a dash.
func TestMatchClient(t *testing.T) {
	for _, test := range []struct {
		m    Match
		id   string
		want bool
	}{
		{Match{}, "", true},
		{Match{}, "app-one", true},
		{Match{ClientID: "app-one"}, "app-one", true},
		{Match{ClientID: "app-one"}, "app-one-dedup-0", true},
		{Match{ClientID: "app-one"}, "app-one2", false},
		{Match{ClientID: "app-one"}, "app", false},
		{Match{Node: 2}, "app", false},
		{Match{Node: 1, ClientID: "app"}, "app", true},
	} {
		if got := test.m.matchesClient(1, test.id); got != test.want {
			t.Errorf("%+v matches %q: %v", test.m, test.id, got)
		}
	}
}

// TestTake: Skip, Count and Probability choose among matching frames; a removed rule
// strikes none.
func TestTake(t *testing.T) {
	half := 0.0
	draw := func() float64 { half = 0.75 - half; return half } // 0.75, 0, 0.75, 0 ...
	for _, test := range []struct {
		rule Rule
		want string
	}{
		{Rule{}, "xxxxxx"},
		{Rule{Skip: 2}, "..xxxx"},
		{Rule{Skip: 1, Count: 2}, ".xx..."},
		{Rule{Probability: 0.5}, ".x.x.x"},
		{Rule{Probability: 0.5, Count: 1}, ".x...."},
		{Rule{Probability: 1}, "xxxxxx"},
	} {
		f := &Fault{rule: test.rule, proxy: &Proxy{}, removed: make(chan struct{}), changed: make(chan struct{})}
		half = 0
		got := ""
		for range 6 {
			if f.take(draw) {
				got += "x"
			} else {
				got += "."
			}
		}
		if got != test.want || f.Struck() != strings.Count(got, "x") {
			t.Errorf("%+v strikes %s, want %s; counted %d", test.rule, got, test.want, f.Struck())
		}
		f.Remove()
		f.Remove()
		if f.take(draw) {
			t.Errorf("%+v strikes after Remove", test.rule)
		}
	}
}

// TestOrder: rules apply in the order in which they were added. Later rules do not
// see a frame that an earlier one dropped.
func TestOrder(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		delay := g.add(Rule{Action: DelayRequest, Delay: time.Second})
		drop := g.add(Rule{Match: Match{APIs: []int16{kmsg.EndTxn.Int16()}}, Action: DropRequest})
		behind := g.add(Rule{Action: DelayRequest, Delay: time.Minute, Skip: 1})
		c := g.connect("app-one")
		c.ask(heartbeat("g"))
		c.send(endTxn("t", true))
		c.wantCut()
		if c.elapsed() != 2*time.Second || delay.Struck() != 2 || drop.Struck() != 1 || behind.Struck() != 0 {
			t.Errorf("after %v: struck %d, %d, %d times", c.elapsed(), delay.Struck(), drop.Struck(), behind.Struck())
		}
		g.proxy.Clear()
		g.connect("app-one").ask(endTxn("t", true))
	})
}

// TestWaitInVain: Wait for a missing strike ends with the context, and its error has
// the count.
func TestWaitInVain(t *testing.T) {
	inBubble(t, func(t *testing.T, g *rig) {
		f := g.add(Rule{Action: HoldRequest, Delay: time.Minute, Name: "never"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := f.Wait(ctx, 1); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "rule never struck 0 of 1") {
			t.Errorf("error %v", err)
		}
		if _, err := f.Late(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}
