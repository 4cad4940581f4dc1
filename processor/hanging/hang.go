package hanging

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Hang is a transaction that is open in a partition although no coordinator is about to end it.
type Hang struct {
	Open

	// ID is the transactional id of the producer, and State what its coordinator says about it. Both
	// are "" if no coordinator knows the producer, or if the user has no right to describe the id.
	ID, State string
}

func (h Hang) String() string {
	owner := "no coordinator names its transactional id"
	if h.ID != "" {
		owner = fmt.Sprintf("the coordinator of its transactional id %s has completed it (%s)", h.ID, h.State)
	}
	return fmt.Sprintf("%s; %s", h.Open, owner)
}

// Abort returns the command of Kafka that ends the transaction. The command drops the transaction's
// records, even if the coordinator has committed them.
func (h Hang) Abort() string {
	return fmt.Sprintf("kafka-transactions.sh abort --topic %s --partition %d --start-offset %d", h.Topic, h.Number, h.From)
}

// Staying returns the transactions that are open now and were already open before.
func Staying(before, now []Open) (staying []Open) {
	for _, o := range now {
		if slices.ContainsFunc(before, func(b Open) bool {
			return b.Partition == o.Partition && b.Producer == o.Producer && b.From == o.From
		}) {
			staying = append(staying, o)
		}
	}
	return staying
}

// Owned asks the coordinators about open transactions, and returns those that hang. It leaves out a transaction
// that is open for its coordinator or that the coordinator is about to end, and a transaction that has been
// closed meanwhile.
func Owned(ctx context.Context, client *kgo.Client, admin *kadm.Client, open []Open) (hangs []Hang, err error) {
	if len(open) == 0 {
		return nil, nil
	}
	var producers []int64
	for _, o := range open {
		if !slices.Contains(producers, o.Producer) {
			producers = append(producers, o.Producer)
		}
	}
	listed, err := admin.ListTransactions(ctx, producers, nil)
	if err != nil {
		return nil, fmt.Errorf("list the transactions of producers %v: %w", producers, err)
	}
	of := map[int64]kadm.ListedTransaction{}
	for _, l := range listed {
		of[l.ProducerID] = l
	}
	for _, o := range open {
		l, known := of[o.Producer]
		if known && phaseOf(&state{Name: l.State}) != over {
			continue
		}
		hangs = append(hangs, Hang{o, l.TxnID, l.State})
	}
	still := Look(ctx, client, partitionsOf(hangs), nil).Open
	return slices.DeleteFunc(hangs, func(h Hang) bool { return len(Staying([]Open{h.Open}, still)) == 0 }), nil
}

// partitionsOf returns the partitions in which transactions hang.
func partitionsOf(hangs []Hang) kadm.TopicsSet {
	all := kadm.TopicsSet{}
	for _, h := range hangs {
		all.Add(h.Topic, h.Number)
	}
	return all
}
