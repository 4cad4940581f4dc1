package conformance

import (
	"os"
	"strings"
	"testing"
	"time"
)

const scenarioHead = "lease: 5s\nevents:\n  plain: {value: 'x', outcome: completed, headers: {b: 2, a: 1}}\n"

// TestParseScenario: the scenario of the executors, and one with every default.
func TestParseScenario(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../deployments/executors/scenario.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseScenario("scenario.yaml", text)
	if err != nil || !s.Start || !s.Transaction || s.Lease != 5*time.Second || s.Wait != time.Minute || s.Gateway != GatewayKeys || len(s.Steps) != 14 {
		t.Errorf("%+v, error %v", s, err)
	}
	for _, kind := range stepKinds {
		if !s.has(kind) {
			t.Errorf("no step is %s", kind)
		}
	}
	s, err = ParseScenario("x", []byte(scenarioHead+"transaction: false\ngateway: ask\nsteps: [{do: dispatch, event: plain}]\n"))
	if err != nil || s.Transaction || s.Start || s.Gateway != GatewayAsk || s.Steps[0].Count != 1 || s.Steps[0].Event.Result != nil || s.Steps[0].Event.Headers[0].Key != "a" {
		t.Errorf("%+v, error %v", s, err)
	}
}

// TestWrongScenarios: each mistake is named with its field.
func TestWrongScenarios(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"lease: 5s\nlaese: 6s\n":                                                                         "laese",
		"lease: 5s\nlease: 6s\n":                                                                         "lease",
		"steps: [{do: dispatch, event: plain}]\n":                                                        "lease: want the lease",
		"lease: 5s\nwait: 5s\n":                                                                          "wait: 5s, want more",
		"lease: soon\n":                                                                                  "soon",
		"lease: 5s\ngateway: none\n":                                                                     `gateway: "none", want one of [keys ask]`,
		scenarioHead:                                                                                     "steps: want at least one",
		scenarioHead + "steps: [{do: dance, event: plain}]\n":                                            `steps[0]: do: "dance"`,
		scenarioHead + "steps: [{do: dispatch, event: other}]\n":                                         `event: "other" is not one of events`,
		scenarioHead + "steps: [{do: dispatch, event: plain, count: -1}]\n":                              "count: -1",
		scenarioHead + "steps: [{do: renew, event: plain, count: 2}]\n":                                  "count: step renew",
		scenarioHead + "steps: [{do: crash-in-work, event: plain, count: 2}]\n":                          "count: step crash-in-work has no count",
		scenarioHead + "steps: [{do: idle, event: plain}]\n":                                             "for: want a duration",
		scenarioHead + "steps: [{do: dispatch, event: plain, for: 1s}]\n":                                "for: want a duration in step idle",
		scenarioHead + "steps: [{do: dispatch, event: plain, next: plain}]\n":                            "next: only step supersede",
		scenarioHead + "steps: [{do: supersede, event: plain, next: other}]\n":                           `next: "other"`,
		scenarioHead + "steps: [{do: refuse, event: plain}]\n":                                           "refuse needs `start: true`",
		"lease: 5s\nevents:\n  plain: {value: x, outcome: start}\nsteps: [{do: dispatch, event: plain}]": "events.plain.outcome",
		strings.Repeat("#", ScenarioBytesMax+1):                                                          "want at most",
	} {
		if _, err := ParseScenario("file", []byte(text)); err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "file: ") {
			t.Errorf("%.200q: error %v, want %s", text, err, want)
		}
	}
}

// FuzzParseScenario: no scenario panics.
func FuzzParseScenario(f *testing.F) {
	f.Add([]byte(scenarioHead + "steps: [{do: idle, event: plain, for: 1s}]\n"))
	f.Add([]byte("lease: 1ns\nwait: 9000h\nevents: {a: {}}\nsteps: [{do: supersede, event: a, next: a}]"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = ParseScenario("file", text)
	})
}
