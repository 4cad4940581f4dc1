package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// schema has a unique key, and a small index by time, which the expiry uses.
	schema = `CREATE TABLE IF NOT EXISTS seen (key bytea PRIMARY KEY, at timestamptz NOT NULL DEFAULT now());
CREATE INDEX IF NOT EXISTS seen_at ON seen USING brin (at)`
	// claimKeys inserts the keys of a poll and returns each new key once.
	claimKeys = `INSERT INTO seen (key) SELECT unnest($1::bytea[]) ON CONFLICT DO NOTHING RETURNING key`
	deleteOld = `DELETE FROM seen WHERE at < now() - $1::interval`
	// schemaLock is an advisory lock: of several processes, the one that holds the lock creates the table.
	schemaLock = 20261123
	// expireEvery is how often keys older than the window are deleted.
	expireEvery = time.Minute
)

// postgresStore inserts the keys of a commit interval in one transaction. It commits the transaction when the broker
// has acknowledged the events.
type postgresStore struct {
	conn *pgx.Conn
	tx   pgx.Tx // nil between two commit intervals
}

func openPostgres(ctx context.Context, server string) (*postgresStore, error) {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return &postgresStore{conn: conn}, nil
}

// createTable creates the table, unless it exists.
func createTable(ctx context.Context, server string) error {
	s, err := openPostgres(ctx, server)
	if err != nil {
		return err
	}
	defer s.close(context.WithoutCancel(ctx))
	return pgx.BeginFunc(ctx, s.conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", schemaLock); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, schema)
		return err
	})
}

// expire deletes keys older than the window until ctx ends.
func expire(ctx context.Context, server string, window time.Duration) error {
	s, err := openPostgres(ctx, server)
	if err != nil {
		return err
	}
	defer s.close(context.WithoutCancel(ctx))
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if _, err := s.conn.Exec(ctx, deleteOld, window); err != nil && ctx.Err() == nil {
			return fmt.Errorf("delete old keys: %w", err)
		}
	}
}

func (s *postgresStore) claim(ctx context.Context, records []*kgo.Record) (fresh []*kgo.Record, err error) {
	if len(records) == 0 {
		return nil, nil
	}
	if s.tx == nil {
		if s.tx, err = s.conn.Begin(ctx); err != nil {
			return nil, err
		}
	}
	keys := make([][]byte, len(records))
	for i, r := range records {
		keys[i] = r.Key
	}
	// The keys are sorted, because transactions that insert their keys in the same order cannot deadlock.
	slices.SortFunc(keys, bytes.Compare)
	rows, err := s.tx.Query(ctx, claimKeys, keys)
	if err != nil {
		return nil, err
	}
	inserted, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, err
	}
	open := make(map[string]bool, len(inserted))
	for _, key := range inserted {
		open[string(key)] = true
	}
	for _, r := range records {
		if open[string(r.Key)] {
			fresh = append(fresh, r)
			delete(open, string(r.Key))
		}
	}
	return fresh, nil
}

func (s *postgresStore) commit(ctx context.Context) error {
	if s.tx == nil {
		return errors.New("no transaction is open")
	}
	err := s.tx.Commit(ctx)
	s.tx = nil
	return err
}

// close ends the connection, which rolls an open transaction back.
func (s *postgresStore) close(ctx context.Context) { _ = s.conn.Close(ctx) }
