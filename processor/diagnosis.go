package processor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/security"
	"oncebus/state"
)

// diagnosisTimeout is how long a start waits for the facts of its diagnosis.
const diagnosisTimeout = 30 * time.Second

// Diagnose connects as a service with these settings would, and returns what it finds.
// It writes nothing, neither to the cluster nor to the disk. It reads until ctx is done.
// clock is this machine's.
func Diagnose(ctx context.Context, cfg Config, routes *rules.Routes, log *slog.Logger, clock func() time.Time, extra ...kgo.Opt) ([]app.Finding, error) {
	if err := errors.Join(cfg.Validate(), cfg.CheckSecret(routes.NeedsSecret())); err != nil {
		return nil, err
	}
	redact := security.NewRedactor(cfg.Config.Config)
	log = slog.New(redact.Handler(log.Handler()))
	opts, err := security.ClientOptions(cfg.Config.Config, prometheus.NewRegistry(), log, redact)
	if err != nil {
		return nil, err
	}
	client, err := kgo.NewClient(append(append([]kgo.Opt{kgo.DisableIdempotentWrite()}, opts...), extra...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	defer client.Close()
	d := cfg.diagnosis(app.Conn{Client: client, Admin: kadm.NewClient(client), Options: opts, Log: log, MaxDecompressedBatchBytes: cfg.BatchBytesMax()}, routes)
	d.Clock = clock
	findings := d.Read(ctx).Judge()
	for i := range findings {
		findings[i].Text = redact.Err(errors.New(findings[i].Text)).Error()
	}
	return findings, nil
}

// diagnosis returns the diagnosis of an app with these settings.
func (c Config) diagnosis(conn app.Conn, routes *rules.Routes) app.Diagnosis {
	d := app.Diagnosis{Conn: conn, Config: c.Config, Routes: routes, Stages: []string{app.StageDedup}, Clock: time.Now, Disk: c.disk()}
	if routed, _ := routes.Inputs(); len(routed) > 0 {
		d.Stages = append(d.Stages, app.StageRoute)
	}
	return d
}

// disk returns the facts on the disk of the state directory. A start creates the
// directory, so until then its nearest existing parent shows the disk.
func (c Config) disk() app.Disk {
	dir, err := filepath.Abs(c.StateDir)
	for err == nil {
		if _, err = os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) || dir == filepath.Dir(dir) {
			break
		}
		dir, err = filepath.Dir(dir), nil
	}
	d := app.Disk{Dir: dir, Err: err}
	if d.Err != nil {
		return d
	}
	space, err := state.DiskSpace(dir)
	network, netErr := state.NetworkFS(dir)
	d.Free, d.Total, d.Network, d.Err = space.Free, space.Total, network, errors.Join(err, netErr)
	d.Start, d.Pause = c.Disk.Levels(space)
	return d
}

// logFindings logs what a diagnosis finds at the start, unless it is fine. The start does
// not wait for it.
func (p *Processor) logFindings(ctx context.Context) {
	reading, cancel := context.WithTimeout(ctx, diagnosisTimeout)
	defer cancel()
	d := p.cfg.diagnosis(p.conn(), p.routes)
	d.Running, d.Broker = true, p.rt.Clock
	facts := d.Read(reading)
	if ctx.Err() == nil {
		app.LogFindings(ctx, p.log, facts.Judge())
	}
}
