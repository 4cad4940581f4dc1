//go:build synctests

package processor_test

import (
	"log/slog"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor"
	"oncebus/processor/app"
	"oncebus/processor/restore"
)

// diagnosed lets 'oncebus doctor' judge what a seed has left after random routes and faults, and expects that it
// calls nothing broken. Seeds with fail_open are left out so far.
func (s *sim) diagnosed() {
	if s.violations > 0 || s.set.failOpen || s.t.Failed() {
		return
	}
	cfg := s.lives[0].Config()
	cfg.InstanceID, cfg.Disk = "doctor", restore.Disk{}
	findings, err := processor.Diagnose(s.t.Context(), cfg, s.routes, slog.New(slog.DiscardHandler), time.Now, append(slices.Clone(s.clientOpts), kgo.DisableClientMetrics())...)
	must(s.t, err)
	for _, f := range findings {
		if f.Level == app.Fails {
			s.t.Errorf("a diagnosis of an app that works: %+v", f)
		}
	}
}
