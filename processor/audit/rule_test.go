package audit

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/wire"
)

// TestAuditedKeyIsThatOfTheRoute compares each notation with the routes file.
func TestAuditedKeyIsThatOfTheRoute(t *testing.T) {
	t.Parallel()
	rec := &kgo.Record{
		Topic: "orders", Key: []byte("k"), Timestamp: time.UnixMilli(testNow),
		Value:   []byte(`{"id":"a","account":{"no":7},"account.no":1,"specversion":"1.0","source":"/s","n":1.50,"sentAt":9}`),
		Headers: []kgo.RecordHeader{{Key: "trace", Value: []byte("t")}, {Key: "ce_specversion", Value: []byte("1.0")}, {Key: "ce_id", Value: []byte("i")}, {Key: "ce_source", Value: []byte("/s")}},
	}
	in := wire.InputOf(rec)
	for text, list := range map[string]string{
		"field:id":                         "[{field: id}]",
		"field:account.no":                 "[{field: account.no}]",
		"fields:id, account.no":            "[{fields: [id, account.no]}]",
		"hash:id,n":                        "[{hash: [id, n]}]",
		"payload":                          "[{payload: {}}]",
		"payload:exclude=sentAt,n":         "[{payload: {exclude: [sentAt, n]}}]",
		"payload:include=id":               "[{payload: {include: [id]}}]",
		"record_key":                       "[record_key]",
		"header:trace":                     "[{header: trace}]",
		"raw":                              "[raw]",
		"cloudevent":                       "[cloudevent]",
		"field:missing;header:trace":       "[{field: missing}, {header: trace}]",
		"{field: id, normalise: [upper]}":  "[{field: id, normalise: [upper]}]",
		"[{field: missing}, {hash: [id]}]": "[{field: missing}, {hash: [id]}]",
		`[{field: "id"}]`:                  "[{field: id}]",
	} {
		rule, err := NewRule(text, Source{Topics: []string{"orders"}})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		routes, err := rules.ParseRoutes("routes.yaml", []byte("routes: [{name: r, topics: [orders], window: 1h, output: o, key: "+list+"}]"))
		if err != nil {
			t.Fatal(err)
		}
		want, got := routes.NewDeriver(nil).Derive(&in), rule.Routes.NewDeriver(nil).Derive(&in)
		if want.Finding != rules.Keyed || got.Key != want.Key || got.Time != want.Time {
			t.Errorf("%s: key %x (%s), the route has %x", text, got.Key, got.Reason, want.Key)
		}
	}
}

// TestRuleOfATopicWithTheNameOfAnOutput: a route may not read what it writes, and an audit
// writes nothing.
func TestRuleOfATopicWithTheNameOfAnOutput(t *testing.T) {
	t.Parallel()
	if _, err := NewRule("raw", Source{Topics: []string{"out", "dead", "out-"}}); err != nil {
		t.Error(err)
	}
	_, err := NewRule("field:a..b", Source{Topics: []string{"orders"}, Time: "b..c"})
	if err == nil || !strings.Contains(err.Error(), `--key "field:a..b"`) || !strings.Contains(err.Error(), `--time "b..c"`) {
		t.Errorf("two mistakes: %v", err)
	}
}
