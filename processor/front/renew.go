package front

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// produceFailure is the error because of which a producer did not deliver a record.
type produceFailure struct {
	sender *kgo.Client
	err    error
}

// renew replaces a producer that cannot recover. An idempotent producer writes nothing more once a broker has
// rejected its producer id. A producer with outdated limits makes batches that the broker refuses. If a topic
// was deleted and recreated, a producer that knew the former topic never writes to it again. In this case renew
// calls stop, and the client opens the app again, which compares the topics with the manifest.
func (f *IngressClient) renew(ctx context.Context, reader *kgo.Client, at *clientState, stop context.CancelCauseFunc) {
	for {
		var b produceFailure
		select {
		case <-ctx.Done():
			return
		case b = <-f.broken:
		}
		if errors.Is(b.err, kerr.UnknownTopicID) {
			stop(fmt.Errorf("%w: %w", kafka.ErrStaleTopic, b.err))
			return
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

func (f *IngressClient) replace(b produceFailure, at *clientState) {
	fresh, err := f.newSender(at)
	if err != nil {
		f.log.Error("create producer failed", "error", err)
	} else if f.sender.CompareAndSwap(b.sender, fresh) {
		f.log.Warn("producer replaced", "error", b.err)
		b.sender.Close()
	}
}

// limitsChanged reads the topics' limits again after a broker refused a batch within the known limits, and
// reports whether they have changed. The client then refuses later events that exceed the new limits before it
// sends them.
func (f *IngressClient) limitsChanged(ctx context.Context, client *kgo.Client, at *clientState) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	changed, err := f.readLimits(ctx, client, at)
	if err != nil {
		f.log.Error("read topic limits failed after a refused record", "error", err)
	}
	return changed
}

// refusesToSend reports whether the broker has rejected a client's producer id permanently.
func refusesToSend(ctx context.Context, client *kgo.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	_, _, err := client.ProducerID(ctx)
	var refused *kerr.Error
	return errors.As(err, &refused) && !refused.Retriable
}
