package app

import (
	"strings"
	"testing"

	"oncebus/dedup/rules"
)

// TestQuotaNeedsLevel2: the checkpoints of an app at level 1 have no accounts of tenants, so a
// quota would begin again with each restart.
func TestQuotaNeedsLevel2(t *testing.T) {
	const route = "routes: [{name: a, topics: [in], key: [raw], window: 1h, output: out, tenant: {header: t}"
	for text, want := range map[string]string{"}]": "", ", quota: {keys: 1}}]": "route a: app is at level 1, and quota needs level 2: leave it out, run oncebus finalize"} {
		routes, err := rules.ParseRoutes("r.yaml", []byte(route+text))
		if err != nil {
			t.Fatal(err)
		}
		err = refuseQuotas(&Manifest{Level: 1}, routes)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s at level 1: %v, want %q", text, err, want)
		}
		if err := refuseQuotas(&Manifest{Level: 2}, routes); err != nil {
			t.Errorf("%s at level 2: %v", text, err)
		}
	}
}
