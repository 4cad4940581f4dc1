package app

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
)

// TestRecordThatIsReplacedHoldsNothingBack: a row that cannot be read stops the process from taking a
// set, until a later record replaces the row.
func TestRecordThatIsReplacedHoldsNothingBack(t *testing.T) {
	f := NewFollower(Conn{}, Config{})
	take := func(key, value string) {
		f.Take(&kgo.Record{Topic: "app-manifest", Key: []byte(key), Value: []byte(value)})
	}
	than := &App{Set: 2}
	take("set/3", `{"number":4}`)
	take("set", `{"number":2}`)
	if _, err := f.App(t.Context(), than); err == nil || !strings.Contains(err.Error(), "set/3") {
		t.Fatalf("a row with another number: %v", err)
	}
	take("set/3", `{"number":3}`)
	if rt, err := f.App(t.Context(), than); rt != nil || err != nil {
		t.Errorf("after the row was replaced: %v, %v", rt, err)
	}
}

// TestRouteOfAnOlderSetIsKept: a route that the newest set has no more is one of the app, as the newest
// set with it has it. Its records may still come.
func TestRouteOfAnOlderSetIsKept(t *testing.T) {
	parse := func(text string) *rules.Routes {
		t.Helper()
		routes, err := rules.ParseRoutes("routes.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return routes
	}
	const one = "routes:\n- {name: a, topics: [a], key: [{field: id}], window: 1h, output: out}\n"
	rt, err := OfflineSets("app", 4, parse(one+"- {name: b, topics: [b], key: [{field: id}], window: 1h, output: old}\n"),
		parse(one+"- {name: b, topics: [b], key: [{field: id}], window: 1h, output: new}\n"), parse(one))
	if err != nil {
		t.Fatal(err)
	}
	if b := rt.ByName["b"]; b == nil || !b.Retired || b.Output != "new" || rt.ByName["a"].Retired {
		t.Errorf("route b: %+v", b)
	}
}
