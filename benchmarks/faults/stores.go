//go:build unix

package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/oracle"
	"oncebus/processor/wire"
	"oncebus/state"
)

// readStores opens every local store of the stopped processes, and looks up every digest that is in the store's
// changelog partition. A store that cannot be opened is not a finding, because a process would quarantine it.
func (e *epoch) readStores(ctx context.Context, changelog []oracle.Record) ([]oracle.Store, error) {
	meta, err := e.h.admin.Metadata(ctx, e.app.changelog())
	if err != nil {
		return nil, err
	}
	id := meta.Topics[e.app.changelog()].ID
	digests, err := digestsIn(changelog)
	if err != nil {
		return nil, err
	}
	var stores []oracle.Store
	for _, s := range e.app.slots {
		host, err := state.NewHost(state.DefaultConfig(), prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		if err != nil {
			return nil, err
		}
		for p := range int32(partitions) {
			dir := filepath.Join(s.storesDir(), e.app.repartition()+"-"+strconv.Itoa(int(p)))
			if _, err := os.Stat(dir); err != nil {
				continue // the process never had this task
			}
			identity := meta.Cluster + "/" + hex.EncodeToString(id[:]) + "/" + strconv.Itoa(int(p))
			store, err := readStore(host, dir, identity, p, digests[p])
			switch {
			case errors.Is(err, state.ErrCorrupt), errors.Is(err, state.ErrForeign), errors.Is(err, state.ErrUnclean):
				e.h.note("store", map[string]any{"dir": dir, "error": err.Error()})
			case err != nil:
				return nil, errors.Join(fmt.Errorf("read the store in %s: %w", dir, err), host.Close())
			default:
				stores = append(stores, store)
			}
		}
		if err := host.Close(); err != nil {
			return nil, err
		}
	}
	return stores, nil
}

// digestsIn returns the digests of all rows in a changelog, by partition.
func digestsIn(changelog []oracle.Record) ([][]dedup.Digest, error) {
	digests := make([][]dedup.Digest, partitions)
	known := map[dedup.Digest]bool{}
	for i := range changelog {
		r := &changelog[i]
		if wire.IsCheckpoint(r.Key) {
			continue
		}
		for row, err := range wire.RowsOf(&kgo.Record{Key: r.Key, Value: r.Value}) {
			if err != nil {
				return nil, fmt.Errorf("%s/%d/%d: %w", r.Topic, r.Partition, r.Offset, err)
			}
			if !known[row.Digest] {
				known[row.Digest] = true
				digests[r.Partition] = append(digests[r.Partition], row.Digest)
			}
		}
	}
	return digests, nil
}

func readStore(host *state.Host, dir, identity string, partition int32, digests []dedup.Digest) (oracle.Store, error) {
	found := oracle.Store{Partition: partition, Rows: map[string][]byte{}}
	store, err := host.Open(dir, []byte(identity))
	if err != nil {
		return found, err
	}
	found.Position, found.Checkpoint = store.Position(), store.Checkpoint()
	for _, d := range digests {
		row, held, err := store.Get(d)
		if err != nil {
			return found, errors.Join(err, store.Abandon())
		}
		if held {
			found.Rows[string(d[:])] = row.AppendValue(nil)
		}
	}
	return found, store.Close()
}
