package app

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/hanging"
	"oncebus/processor/kafka"
)

// Rows has the newest value of each row in the manifest topic, by record key. Deleted rows are absent.
type Rows map[string][]byte

// ReadRows reads all rows of the manifest topic.
func ReadRows(ctx context.Context, client *kgo.Client, t *Topology) (Rows, error) {
	reader := kafka.NewReader(client, t.Manifest, t.Topics[t.Manifest].ID, 0)
	start, end, err := reader.Bounds(ctx)
	if err != nil {
		return nil, err
	}
	rows := Rows{}
	return rows, reader.Read(ctx, start, end, func(records []*kgo.Record, _ int64) error {
		for _, rec := range records {
			if rec.Value == nil {
				delete(rows, string(rec.Key))
			} else {
				rows[string(rec.Key)] = slices.Clone(rec.Value)
			}
		}
		return nil
	})
}

// decodeRow decodes the row with a key, and reports whether the row exists.
func decodeRow[T any](rows Rows, key string) (v T, ok bool, err error) {
	value, ok := rows[key]
	if !ok {
		return v, false, nil
	}
	if err := json.Unmarshal(value, &v); err != nil {
		return v, false, kafka.OperatorErrorf("row %s of the manifest topic: %v", key, err)
	}
	return v, true, nil
}

// encodeRow returns the record of a row; a nil value makes it a tombstone.
func encodeRow(key string, value any) (*kgo.Record, error) {
	rec := &kgo.Record{Key: []byte(key)}
	if value == nil {
		return rec, nil
	}
	var err error
	rec.Value, err = json.Marshal(value)
	return rec, err
}

// ChangeRows changes rows in one transaction under the manifest's transactional id. It first fences every
// earlier writer, then calls decide with the rows, and writes the records that decide returns. So if two changes
// exclude each other, the decide of the later one gets the rows of the earlier one. If another writer fences
// this one, ChangeRows calls decide again.
func ChangeRows(ctx context.Context, c Conn, cfg Config, t *Topology, decide func(Rows) ([]*kgo.Record, error)) error {
	s := &setup{Conn: c, cfg: cfg}
	for {
		err := s.changeRows(ctx, t, decide)
		if err == nil || !isFenced(err) {
			return err
		}
		if err := kafka.Pause(ctx, fencedPause); err != nil {
			return err
		}
	}
}

// fencedPause is the time after which a fenced writer of the manifest tries again.
const fencedPause = 50 * time.Millisecond

// isFenced reports whether err says that another writer of the manifest has fenced this one, or is just doing
// so.
func isFenced(err error) bool {
	return hanging.IsFenced(err) || errors.Is(err, kerr.ConcurrentTransactions)
}

func (s *setup) changeRows(ctx context.Context, t *Topology, decide func(Rows) ([]*kgo.Record, error)) error {
	return s.writeFenced(ctx, t, func() ([]*kgo.Record, error) {
		rows, err := ReadRows(ctx, s.Client, t)
		if err != nil {
			return nil, err
		}
		return decide(rows)
	})
}

// writeFenced writes records to the manifest topic in one transaction under the manifest's transactional id. It
// calls decide only when every earlier writer is fenced, so nobody can change the rows between decide and the
// write. If decide returns no records, writeFenced writes nothing.
func (s *setup) writeFenced(ctx context.Context, t *Topology, decide func() ([]*kgo.Record, error)) error {
	w, err := s.manifestWriter(ctx, t)
	if err != nil {
		return err
	}
	defer w.Close()
	records, err := decide()
	if err != nil || len(records) == 0 {
		return err
	}
	err = w.Write(ctx, func() error {
		for _, rec := range records {
			w.Produce(rec)
		}
		return nil
	})
	// The transaction is committed, so decide must not run again: it would find the rows of the first run.
	if errors.Is(err, hanging.ErrHangs) {
		return s.closeManifest(ctx, t)
	}
	return err
}

// closeManifest closes what the last transaction of the manifest left open.
func (s *setup) closeManifest(ctx context.Context, t *Topology) error {
	w, err := s.manifestWriter(ctx, t)
	if isFenced(err) {
		return nil // another writer has registered the id since, and closed it
	}
	if err == nil {
		w.Close()
	}
	return err
}

// manifestWriter returns a writer of the manifest topic, and fences the earlier one.
func (s *setup) manifestWriter(ctx context.Context, t *Topology) (*hanging.Writer, error) {
	return s.OpenWriter(ctx, ManifestName(s.cfg.AppID), s.cfg.TransactionTimeout, []string{t.Manifest}, kgo.DefaultProduceTopic(t.Manifest))
}
