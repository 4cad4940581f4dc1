package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
	"oncebus/processor/wire"
)

// unreadableRow returns the operator error about a row of the manifest topic that cannot be read.
func unreadableRow(rec *kgo.Record, cause error) error {
	return kafka.OperatorErrorf("%w", wire.Unreadable(rec, fmt.Errorf("row %q cannot be read: %w; to put the row before it in its place: oncebus accept --row '%s'", rec.Key, cause, rec.Key)))
}

// unreadRows has the errors about rows of the manifest topic that cannot be read, by the rows' keys. An error
// counts until a later row of the same key replaces the row.
type unreadRows map[string]error

// note stores the error about a row. With a nil error the row is readable, and note removes the error of its
// key.
func (u unreadRows) note(rec *kgo.Record, err error) {
	delete(u, string(rec.Key))
	if err != nil {
		u[string(rec.Key)] = err
	}
}

// first returns the error with the smallest key, so that every process returns the same one; nil without errors.
func (u unreadRows) first() error {
	if len(u) == 0 {
		return nil
	}
	return u[slices.Min(slices.Collect(maps.Keys(u)))]
}

// clockKey is the key of the row that ObserveClock writes, the only row whose value is plain text and not JSON.
const clockKey = "clock"

// checkRow returns an error if no build of oncebus could have written this row of the manifest topic. It accepts
// a tombstone; whether the app can work without the row is decided elsewhere.
func checkRow(rec *kgo.Record) error {
	key := string(rec.Key)
	if rec.Value == nil {
		return nil
	}
	if key != clockKey && !json.Valid(rec.Value) {
		return errors.New("it is no JSON")
	}
	if key == ManifestKey {
		m := &Manifest{}
		if err := json.Unmarshal(rec.Value, m); err != nil {
			return err
		}
		if m.Version < manifestVersion {
			return errors.New("it is no manifest")
		}
		return nil
	}
	if _, err := new(Holds).Take(rec); err != nil {
		return err
	}
	return new(Sets).take(rec)
}

// badRow is a row of the manifest topic that is the newest of its key and cannot be read.
type badRow struct {
	rec *kgo.Record
	why error
	// before is the newest earlier row of the key that can be read; nil if compaction has removed it.
	before *kgo.Record
}

// readBadRows returns the rows of the manifest topic that cannot be read, by key.
func readBadRows(ctx context.Context, client *kgo.Client, t *Topology) (map[string]badRow, error) {
	reader := kafka.NewReader(client, t.Manifest, t.Topics[t.Manifest].ID, 0)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	bad, readable := map[string]badRow{}, map[string]*kgo.Record{}
	return bad, reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			key := string(rec.Key)
			if err := checkRow(rec); err != nil {
				bad[key] = badRow{rec, unreadableRow(rec, err), readable[key]}
				continue
			}
			delete(bad, key)
			readable[key] = rec
		}
		return nil
	})
}

// BadRows returns the rows of the manifest topic that cannot be read, as refusals that an operator has to
// decide on.
func BadRows(ctx context.Context, client *kgo.Client, t *Topology) (all []Refusal, err error) {
	bad, err := readBadRows(ctx, client, t)
	for _, key := range slices.Sorted(maps.Keys(bad)) {
		all = append(all, Refusal{Topic: t.Manifest, Problem: RecordUnreadable, Row: key, Detail: plain(bad[key].why), At: bad[key].rec.Timestamp})
	}
	return all, err
}

// RepairRow replaces an unreadable row of the manifest topic by the last readable row of the same key. If
// compaction has removed that row, RepairRow deletes the unreadable row, unless the app cannot work without it.
func RepairRow(ctx context.Context, c Conn, cfg Config, t *Topology, key string) error {
	bad, err := readBadRows(ctx, c.Client, t)
	if err != nil {
		return err
	}
	row, ok := bad[key]
	fresh := &kgo.Record{Key: []byte(key)}
	switch {
	case !ok:
		return kafka.OperatorErrorf("row %q of %s can be read, or does not exist", key, t.Manifest)
	case row.before != nil:
		fresh.Value = row.before.Value
	case key == ManifestKey, key == setKey, strings.HasPrefix(key, setPrefix):
		return kafka.OperatorErrorf("%s has no earlier row %q any more, and the app cannot be without it: write that of a backup, or use another ONCEBUS_APP_ID", t.Manifest, key)
	}
	return ChangeRows(ctx, c, cfg, t, func(rows Rows) ([]*kgo.Record, error) {
		if !bytes.Equal(rows[key], row.rec.Value) {
			return nil, kafka.OperatorErrorf("row %q was written meanwhile: run the command again", key)
		}
		return []*kgo.Record{fresh}, nil
	})
}
