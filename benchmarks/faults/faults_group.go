//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"oncebus/processor/kafkatest"

	"github.com/twmb/franz-go/pkg/kadm"
)

// groupFaults are row g2: the offsets of the dedup group are reset. The offsets of the route group are reset in
// miniFaults, because the routing stage has no checkpoint with which it could compare the offsets.
var groupFaults = []*fault{
	{row: "g2", name: "offsets-backward", all: true, spare: true, broker: true, apply: resetOffsets(func(k *strike, at int64) int64 {
		return max(0, at-1-k.rng.Int64N(1000))
	})},
	{row: "g2", name: "offsets-forward", all: true, spare: true, broker: true, apply: resetOffsets(func(k *strike, at int64) int64 {
		return at + 1 + k.rng.Int64N(1000)
	})},
	{row: "g2", name: "offsets-deleted", all: true, spare: true, broker: true, apply: resetOffsets(nil)},
}

// resetOffsets stops all processes, moves the dedup group's offsets (or deletes them if move is nil), and
// starts the processes again. The tasks must continue from their checkpoints: no event may be lost, and a task
// must skip the records that it reads a second time.
func resetOffsets(move func(k *strike, at int64) int64) func(context.Context, *strike) error {
	return func(ctx context.Context, k *strike) error {
		if err := k.stopAll(); err != nil {
			return err
		}
		group, topic := k.app.group("dedup"), k.app.repartition()
		empty, cancel := context.WithTimeout(ctx, sessionTimeout+20*time.Second)
		defer cancel()
		if err := k.h.awaitEmpty(empty, group); err != nil {
			return errors.Join(err, k.startAll(ctx))
		}
		committed, err := k.h.admin.FetchOffsets(ctx, group)
		if err != nil {
			return errors.Join(err, k.startAll(ctx))
		}
		resets, offsets := map[int32]int64{}, kadm.Offsets{}
		for p := range int32(partitions) {
			at, ok := committed.Lookup(topic, p)
			if !ok || at.At < 0 {
				continue
			}
			resets[p] = -1
			if move != nil {
				resets[p] = move(k, at.At)
			}
			offsets.AddOffset(topic, p, resets[p], -1)
		}
		k.obs.noteReset(resets)
		if move != nil {
			err = k.h.commitOffsets(ctx, group, offsets)
		} else {
			err = k.h.deleteOffsets(ctx, group, offsets.TopicsSet())
		}
		k.note("%d partitions", len(resets))
		if err := errors.Join(err, k.startAll(ctx)); err != nil {
			return err
		}
		return k.recovers(ctx, time.Now(), takeOverMax)
	}
}

// awaitEmpty waits until a group has no member. Static members stay in the group until their session timeout.
func (h *harness) awaitEmpty(ctx context.Context, group string) error {
	return kafkatest.Await(ctx, "group "+group+" is empty", func(ctx context.Context) error {
		described, err := h.admin.DescribeGroups(ctx, group)
		if err != nil {
			return err
		}
		if state := described[group].State; state != "Empty" && state != "Dead" {
			return fmt.Errorf("it is %s", state)
		}
		return nil
	})
}

func (h *harness) commitOffsets(ctx context.Context, group string, offsets kadm.Offsets) error {
	resp, err := h.admin.CommitOffsets(ctx, group, offsets)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("set the offsets of %s: %w", group, err)
	}
	return nil
}

func (h *harness) deleteOffsets(ctx context.Context, group string, topics kadm.TopicsSet) error {
	resp, err := h.admin.DeleteOffsets(ctx, group, topics)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		return fmt.Errorf("delete the offsets of %s: %w", group, err)
	}
	return nil
}
