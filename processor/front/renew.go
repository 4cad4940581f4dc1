package front

import (
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// A breakage is what a sender could not deliver a record for.
type breakage struct {
	sender *kgo.Client
	err    error
}

// renew replaces a sender that is broken for good: an idempotent one whose
// producer id was refused never writes again, and one that was made for other
// limits makes batches that are refused.
func (f *IngressClient) renew(ctx context.Context, reader *kgo.Client, at *clientState) {
	for {
		var b breakage
		select {
		case <-ctx.Done():
			return
		case b = <-f.broken:
		}
		tooLarge := errors.Is(b.err, kerr.MessageTooLarge) || errors.Is(b.err, kerr.RecordListTooLarge)
		broken := b.sender == f.sender.Load() && (tooLarge && f.limitsChanged(ctx, reader, at) || refusesToSend(ctx, b.sender))
		if broken {
			f.replace(b, at)
		}
		if (broken || tooLarge) && kafka.Pause(ctx, renewPause) != nil {
			return
		}
	}
}

func (f *IngressClient) replace(b breakage, at *clientState) {
	fresh, err := f.newSender(at)
	if err != nil {
		f.log.Error("no new producer", "error", err)
	} else if f.sender.CompareAndSwap(b.sender, fresh) {
		f.log.Warn("the producer was refused and replaced", "error", b.err)
		b.sender.Close()
	}
}

// limitsChanged reads the topics' limits again after a broker refused what we
// thought would fit, and tells whether somebody changed them. What does not fit
// is refused before it is sent from then on.
func (f *IngressClient) limitsChanged(ctx context.Context, client *kgo.Client, at *clientState) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	changed, err := at.rt.RereadLimits(ctx, kadm.NewClient(client), frontTopics(at.rt.Topology, f.routes))
	if err != nil {
		f.log.Error("a topic refused a record, and its settings cannot be read", "error", err)
	}
	return changed
}

// refusesToSend tells whether a client has no producer id and asks for none.
func refusesToSend(ctx context.Context, client *kgo.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, _, err := client.ProducerID(ctx)
	var refused *kerr.Error
	return errors.As(err, &refused) && !refused.Retriable
}
