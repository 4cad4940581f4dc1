package app

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestTwinsAreNamed: processes of one instance id are named only if one says that another fences it,
// and as long as that is recent. A restart alone names no one.
func TestTwinsAreNamed(t *testing.T) {
	now := time.Now().UTC()
	row := func(process string, fenced time.Duration) *Seen {
		s := &Seen{Process: process}
		if fenced > 0 {
			s.Fenced = now.Add(-fenced)
		}
		return s
	}
	for name, of := range map[string]struct {
		rows []*Seen
		want []string
	}{
		"one process":               {[]*Seen{row("a", 0)}, nil},
		"restarts":                  {[]*Seen{row("a", 0), row("b", 0), row("c", 0)}, nil},
		"both say so":               {[]*Seen{row("a", 0), row("b", 0), row("a", time.Minute), row("b", time.Second)}, []string{"a", "b"}},
		"one says so":               {[]*Seen{row("z", 0), row("a", 0), row("b", 0), row("a", time.Minute)}, []string{"a", "b"}},
		"one says so, no other row": {[]*Seen{row("a", time.Minute)}, []string{"a"}},
		"long ago":                  {[]*Seen{row("a", 0), row("b", time.Hour)}, nil},
		"an earlier build":          {[]*Seen{row("", 0), row("a", 0)}, nil},
	} {
		f := &Facts{Diagnosis: Diagnosis{Clock: func() time.Time { return now }}, twins: map[string]*twinFacts{}}
		for _, s := range of.rows {
			value, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			f.noteSeen(&kgo.Record{Key: []byte(seenPrefix + "one"), Value: value})
		}
		if got, _ := f.twins["one"].named(now); !slices.Equal(got, of.want) {
			t.Errorf("%s: %q, want %q", name, got, of.want)
		}
		if findings := f.judgeTwins(); (findings[0].Level == AtRisk) != (of.want != nil) {
			t.Errorf("%s: %+v", name, findings)
		}
	}
}
