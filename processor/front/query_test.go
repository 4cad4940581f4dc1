package front

import (
	"slices"
	"strings"
	"testing"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// TestQueriesNeedTheirLevel: builds that may still run cannot read a query, so the ingress does
// not start.
func TestQueriesNeedTheirLevel(t *testing.T) {
	const route = "routes:\n- {name: a, window: 1h, output: out, topics: [in], outcomes: o, replies: r, mode: claim, key: [{field: id}], http: {path: /a, ANSWERsignature: {scheme: bearer, secret: S}}}\n"
	for _, c := range []struct {
		answer  string
		level   int
		refused bool
	}{{"answer: outcome, ", 1, true}, {"answer: outcome, ", 2, false}, {"", 1, false}} {
		routes, err := rules.ParseRoutes("r.yaml", []byte(strings.Replace(route, "ANSWER", c.answer, 1)))
		if err != nil {
			t.Fatal(err)
		}
		f := &IngressClient{routes: routes}
		err = f.checkQueryLevel(&app.App{Level: c.level})
		if (err != nil) != c.refused || err != nil && (kafka.Classify(err) != kafka.Stop || !strings.Contains(err.Error(), "oncebus finalize")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestPositionOfReplies: a position comes back, also with more partitions, and one of a topic
// that was recreated is a gap.
func TestPositionOfReplies(t *testing.T) {
	of := func(id byte, next ...int64) *Replies {
		return &Replies{topics: []repliesTopic{{name: "a", id: [16]byte{id}, next: next}, {name: "b", id: [16]byte{9}, next: []int64{0}}}}
	}
	position := of(1, 7, 1<<40).Position()
	for _, c := range []struct {
		name string
		r    *Replies
		want []int64
		gap  bool
	}{
		{"same", of(1, 0, 0), []int64{7, 1 << 40}, false},
		{"more partitions", of(1, 5, 5, 5), []int64{7, 1 << 40, 0}, false},
		{"recreated", of(2, 5, 5), []int64{0, 0}, true},
		{"recreated with fewer partitions", of(2, 5), []int64{0}, true},
	} {
		if err := c.r.decode(position); err != nil || c.r.gap != c.gap || !slices.Equal(c.r.topics[0].next, c.want) {
			t.Errorf("%s: %v, gap %t, %v", c.name, err, c.r.gap, c.r.topics[0].next)
		}
	}
	for _, damaged := range []string{"", "A", "AQ", position[:len(position)-2], position + "AA", "%", "B" + position[1:]} {
		if err := of(1, 0, 0).decode(damaged); err == nil {
			t.Errorf("%q is read", damaged)
		}
	}
}
