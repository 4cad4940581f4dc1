//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"oncebus/processor/kafkatest"
	"oncebus/processor/kafkatest/program"
)

// oncebus has the parts that start the measured program.
type oncebus struct {
	binary string
	dir    string // of its routes file, state and log
	seeds  []string
}

// newOncebus builds the program and writes its routes file.
func newOncebus(ctx context.Context, dir string, seeds []string) (o oncebus, err error) {
	o = oncebus{dir: dir, seeds: seeds}
	if o.binary, err = program.Build(ctx, dir); err != nil {
		return o, err
	}
	return o, os.WriteFile(o.routes(), fmt.Appendf(nil, `routes:
  - name: keys
    topics: [%s]
    prepartitioned: true
    key:
      - field: id
    window: 24h
    output: %s-output
    dead_letter: %s-dead
`, inputTopic, appID, appID), 0o600)
}

func (o oncebus) routes() string { return filepath.Join(o.dir, "routes.yaml") }

// start starts a process with the state of the previous one.
func (o oncebus) start(ctx context.Context) (*program.Process, error) {
	cmd := exec.CommandContext(ctx, o.binary, "run")
	cmd.Env = append(program.Inherited(), program.Settings{
		Brokers: o.seeds, AppID: appID, Instance: "one", Routes: o.routes(), StateDir: filepath.Join(o.dir, "state"),
		More: []string{"PARTITIONS=1", "REPLICATION_FACTOR=1", "WORKERS=1"},
	}.Environ()...)
	return program.Start(appID, cmd, filepath.Join(o.dir, "oncebus.log"))
}

// awaitCommitted waits until the process has committed n input records, over all processes.
func awaitCommitted(ctx context.Context, p *program.Process, n int) error {
	return kafkatest.Await(ctx, fmt.Sprintf("%d records are committed", n), func(ctx context.Context) error {
		if err := p.Ended(); err != nil {
			return kafkatest.Fatal(err)
		}
		body, err := p.Page(ctx, "/state")
		if err != nil {
			return err
		}
		var state struct {
			Tasks []struct {
				NextOffset int `json:"next_offset"` // -1 while unknown
			}
		}
		if err := json.Unmarshal([]byte(body), &state); err != nil {
			return kafkatest.Fatal(err)
		}
		committed := 0
		for _, task := range state.Tasks {
			committed += max(0, task.NextOffset)
		}
		if committed < n {
			return errors.New(fmt.Sprint(committed, " are"))
		}
		return nil
	})
}

// The metrics that this package uses.
const (
	metricRecent      = "oncebus_state_recent_rows"
	metricRestored    = "oncebus_restored_rows_total"
	metricQuarantined = "oncebus_quarantined_stores_total"
)
