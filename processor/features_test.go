package processor_test

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"oncebus/processor"
	"oncebus/processor/app"
)

// TestOldTransactionsAreLogged starts on clusters of two ages. The start on the older cluster logs what its
// transaction protocol costs.
func TestOldTransactionsAreLogged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		versions *kversion.Versions
		logs     bool
	}{"3.6": {kversion.V3_6_0(), true}, "4.0": {kversion.V4_0_0(), false}} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, benchRoutes, kfake.MaxVersions(c.versions))
			records, sent := traffic(20)
			i := b.ready(b.start(b.config("one")))
			b.produce(records...)
			b.drain(i, "signals.raw")
			assertOnce(t, b.read("signals.unique"), sent)
			if logged := strings.Contains(b.logs.String(), "feature=transaction.version"); logged != c.logs {
				t.Errorf("logged: %v, want %v", logged, c.logs)
			}
		})
	}
}

// TestEndIsSentOnceUnderOldTransactions loses the response to a request that ends a transaction. Under
// transaction.version 0 the broker could take a second, late request for the end of the next transaction (hazard C2).
// So the producer registers again before the next EndTxn. From version 2 on the client retries.
func TestEndIsSentOnceUnderOldTransactions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		versions *kversion.Versions
		once     bool
	}{"3.6": {kversion.V3_6_0(), true}, "4.0": {kversion.V4_0_0(), false}} {
		for _, key := range []kmsg.Key{kmsg.EndTxn, kmsg.TxnOffsetCommit} {
			for _, stage := range []string{processor.StageRoute, processor.StageDedup} {
				t.Run(fmt.Sprint(name, "/", key.Name(), "/", stage), func(t *testing.T) {
					t.Parallel()
					b := newBench(t, benchRoutes, kfake.MaxVersions(c.versions))
					lost := &spoilingDialer{api: key, match: "app-one-" + stage + "-0", spoil: func([]byte) ([]byte, error) { return nil, io.EOF }}
					i := b.ready(b.start(b.config("one"), kgo.Dialer(lost.dial)))
					requests := b.watchEnds(key, app.TransactionalID("app", stage, 0, "one"))
					lost.arm(1)
					records, sent := traffic(20)
					b.produce(records...)
					b.drain(i, "signals.raw")
					if lost.left() != 0 {
						t.Fatal("no response was lost")
					}
					if got := requests(); len(got) < 2 || (got[1] == kmsg.InitProducerID) != c.once {
						t.Errorf("the producer sent %v; it registers after the first: want %v", got, c.once)
					}
					assertOnce(t, b.read("signals.unique"), sent)
					b.assertWhole(i)
				})
			}
		}
	}
}

// TestMissingRightNamesItsTopicUnderOldTransactions denies the right on one topic of a transaction. Under
// transaction.version 0 the client fails the records of all topics; the error that stops the process still names the
// denied topic.
func TestMissingRightNamesItsTopicUnderOldTransactions(t *testing.T) {
	t.Parallel()
	b := newBench(t, benchRoutes, kfake.MaxVersions(kversion.V3_6_0()))
	i := b.ready(b.start(b.config("one")))
	b.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		add := req.(*kmsg.AddPartitionsToTxnRequest)
		if !slices.ContainsFunc(add.Topics, func(t kmsg.AddPartitionsToTxnRequestTopic) bool { return t.Topic == "signals.unique" }) {
			return nil, nil, false
		}
		resp := add.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
		for _, topic := range add.Topics {
			refused := kmsg.NewAddPartitionsToTxnResponseTopic()
			refused.Topic = topic.Topic
			for _, p := range topic.Partitions {
				code := kerr.OperationNotAttempted.Code
				if topic.Topic == "signals.unique" {
					code = kerr.TopicAuthorizationFailed.Code
				}
				refused.Partitions = append(refused.Partitions, kmsg.AddPartitionsToTxnResponseTopicPartition{Partition: p, ErrorCode: code})
			}
			resp.Topics = append(resp.Topics, refused)
		}
		return resp, nil, true
	}, kmsg.AddPartitionsToTxn)
	b.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		meta := req.(*kmsg.MetadataRequest)
		if !meta.IncludeTopicAuthorizedOperations {
			return nil, nil, false
		}
		resp := meta.ResponseKind().(*kmsg.MetadataResponse)
		for _, asked := range meta.Topics {
			topic := kmsg.NewMetadataResponseTopic()
			topic.Topic = asked.Topic
			if *asked.Topic == "signals.unique" {
				topic.ErrorCode = kerr.TopicAuthorizationFailed.Code
			}
			resp.Topics = append(resp.Topics, topic)
		}
		return resp, nil, true
	}, kmsg.Metadata)
	b.produce(signal("a", 0, testTime))
	<-i.done
	if err := i.err; err == nil || !strings.Contains(err.Error(), "no right to Write on topic signals.unique") || strings.Contains(err.Error(), "changelog") {
		t.Errorf("the process ended with: %v", err)
	}
}

// watchEnds returns a function that returns the requests with this key by a transactional id so far, and the
// registrations of the id.
func (b *bench) watchEnds(key kmsg.Key, id string) func() []kmsg.Key {
	var mu sync.Mutex
	var got []kmsg.Key
	b.cluster.Intercept(func(req kmsg.Request) (kmsg.Response, error, bool) {
		var sender string
		switch r := req.(type) {
		case *kmsg.EndTxnRequest:
			sender = r.TransactionalID
		case *kmsg.TxnOffsetCommitRequest:
			sender = r.TransactionalID
		case *kmsg.InitProducerIDRequest:
			if r.TransactionalID != nil {
				sender = *r.TransactionalID
			}
		}
		if sender == id {
			mu.Lock()
			got = append(got, kmsg.Key(req.Key()))
			mu.Unlock()
		}
		return nil, nil, false
	}, key, kmsg.InitProducerID)
	return func() []kmsg.Key {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(got)
	}
}
