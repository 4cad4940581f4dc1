package app

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/kafka"
)

const erasurePrefix = "erase/"

// ErasureRowsMax is the most rows of one request. The record of such a request has some 64 KiB.
const ErasureRowsMax = 500

// ErasureRequest asks the task of a partition to erase rows. It is a record of the manifest topic. The task
// erases the rows in a transaction. After the commit, the process that has the task removes the request. If the
// process dies before it has removed the request, the request is applied a second time. That changes nothing,
// because a request names the events of its rows, and not only their keys.
type ErasureRequest struct {
	Name        string   `json:"-"` // the name of the request: the record key without its prefix
	Task        TaskID   `json:"-"` // part of the name
	NamespaceID uint8    `json:"namespace_id"`
	Rows        []RowRef `json:"rows"`
	By          string   `json:"by,omitempty"` // who asks, for people to read
}

// RowRef names the row of one event. It does not name the row of a later event with the same key, which has
// another position, nor the row of a later attempt of the same event, which has another attempt number.
type RowRef struct {
	Digest    string `json:"digest"` // 32 hexadecimal digits
	Topic     uint16 `json:"topic"`  // number of the first event's topic in the manifest
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Attempt   uint32 `json:"attempt,omitempty"`
}

// RefOf returns the reference to a row.
func RefOf(row *dedup.Row) RowRef {
	return RowRef{Digest: row.Digest.String(), Topic: row.At.Topic, Partition: row.At.Partition, Offset: row.At.Offset, Attempt: row.Attempt}
}

// Names reports whether the reference is to this row, and the row is not freed.
func (r *RowRef) Names(row *dedup.Row) bool { return row.Status != dedup.Freed && *r == RefOf(row) }

// ParseDigest returns the digest of the row; false if the text is no digest.
func (r *RowRef) ParseDigest() (digest dedup.Digest, ok bool) {
	b, err := hex.DecodeString(r.Digest)
	return digest, err == nil && copy(digest[:], b) == len(digest) && len(b) == len(digest)
}

// NewErasureRequest returns a request with a new random name.
func NewErasureRequest(task TaskID, namespaceID uint8, rows []RowRef, by string) *ErasureRequest {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return &ErasureRequest{Name: task.String() + "/" + hex.EncodeToString(id[:]), Task: task, NamespaceID: namespaceID, Rows: rows, By: by}
}

// WriteErasure writes a request to the manifest topic.
func WriteErasure(ctx context.Context, client *kgo.Client, t *Topology, r *ErasureRequest) error {
	return writeRow(ctx, client, t, erasurePrefix+r.Name, r)
}

// RemoveErasure removes the request with a name from the manifest topic, by a tombstone.
func RemoveErasure(ctx context.Context, client *kgo.Client, t *Topology, name string) error {
	return writeRow(ctx, client, t, erasurePrefix+name, nil)
}

// ReadErasure decodes a record of the manifest topic. is reports whether the record is about a request, and
// removed whether it removes the request. The error is about a request that no build of oncebus could have
// written.
func ReadErasure(rec *kgo.Record) (r *ErasureRequest, is, removed bool, err error) {
	name, is := strings.CutPrefix(string(rec.Key), erasurePrefix)
	if !is {
		return nil, false, false, nil
	}
	r = &ErasureRequest{Name: name}
	parts := strings.Split(name, "/")
	if len(parts) != 3 {
		return r, true, false, kafka.OperatorErrorf("record %s/%d/%d: the key %q names no task", rec.Topic, rec.Partition, rec.Offset, rec.Key)
	}
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil {
		return r, true, false, kafka.OperatorErrorf("record %s/%d/%d: the key %q names no partition", rec.Topic, rec.Partition, rec.Offset, rec.Key)
	}
	r.Task = TaskID{Topic: parts[0], Partition: int32(partition)}
	if rec.Value == nil {
		return r, true, true, nil
	}
	if err := json.Unmarshal(rec.Value, r); err != nil {
		return r, true, false, kafka.OperatorErrorf("decode %s/%d/%d: %v", rec.Topic, rec.Partition, rec.Offset, err)
	}
	for i := range r.Rows {
		if _, ok := r.Rows[i].ParseDigest(); !ok {
			return r, true, false, kafka.OperatorErrorf("decode %s/%d/%d: %s", rec.Topic, rec.Partition, rec.Offset, fmt.Sprintf("%q is no digest", r.Rows[i].Digest))
		}
	}
	return r, true, false, nil
}
