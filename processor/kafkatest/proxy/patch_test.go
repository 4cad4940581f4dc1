package proxy

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// refusedRequests are requests whose responses repeat their partitions: two of one topic.
func refusedRequests() []kmsg.Request {
	partitions := []int32{3, 5}
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.SetVersion(3)
	add.Topics = []kmsg.AddPartitionsToTxnRequestTopic{{Topic: "t", Partitions: partitions}}

	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.SetVersion(5)
	commit.Topics = []kmsg.TxnOffsetCommitRequestTopic{{Topic: "t", Partitions: []kmsg.TxnOffsetCommitRequestTopicPartition{{Partition: 3}, {Partition: 5}}}}

	fetch := kmsg.NewPtrOffsetFetchRequest()
	fetch.SetVersion(9)
	fetch.Groups = []kmsg.OffsetFetchRequestGroup{{Group: "g", Topics: []kmsg.OffsetFetchRequestGroupTopic{{Topic: "t", Partitions: partitions}}}}

	old := kmsg.NewPtrOffsetFetchRequest()
	old.SetVersion(7)
	old.Group = "g"
	old.Topics = []kmsg.OffsetFetchRequestTopic{{Topic: "t", Partitions: partitions}}

	write := kmsg.NewPtrProduceRequest()
	write.SetVersion(12)
	write.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: []kmsg.ProduceRequestTopicPartition{{Partition: 3}, {Partition: 5}}}}
	return []kmsg.Request{add, commit, fetch, old, write}
}

// TestRefusalNamesThePartitions: a refusal has each topic and partition of its
// request, with the error, in the requested version.
func TestRefusalNamesThePartitions(t *testing.T) {
	for _, req := range refusedRequests() {
		resp := refusal(req, kerr.ConcurrentTransactions)
		back := kmsg.ResponseForKey(req.Key())
		back.SetVersion(req.GetVersion())
		if err := back.ReadFrom(resp.AppendTo(nil)); err != nil {
			t.Fatalf("%T: %v", resp, err)
		}
		var got []string
		note := func(topic string, partition int32, code int16) {
			got = append(got, fmt.Sprintf("%s/%d: %v", topic, partition, kerr.ErrorForCode(code)))
		}
		switch resp := back.(type) {
		case *kmsg.AddPartitionsToTxnResponse:
			for _, p := range resp.Topics[0].Partitions {
				note(resp.Topics[0].Topic, p.Partition, p.ErrorCode)
			}
		case *kmsg.TxnOffsetCommitResponse:
			for _, p := range resp.Topics[0].Partitions {
				note(resp.Topics[0].Topic, p.Partition, p.ErrorCode)
			}
		case *kmsg.OffsetFetchResponse:
			for _, g := range resp.Groups {
				for _, p := range g.Topics[0].Partitions {
					note(g.Topics[0].Topic, p.Partition, p.ErrorCode)
				}
			}
			for _, topic := range resp.Topics {
				for _, p := range topic.Partitions {
					note(topic.Topic, p.Partition, p.ErrorCode)
				}
			}
		case *kmsg.ProduceResponse:
			for _, p := range resp.Topics[0].Partitions {
				note(resp.Topics[0].Topic, p.Partition, p.ErrorCode)
			}
		}
		want := []string{fmt.Sprintf("t/3: %v", kerr.ConcurrentTransactions), fmt.Sprintf("t/5: %v", kerr.ConcurrentTransactions)}
		if !slices.Equal(got, want) {
			t.Errorf("%T version %d: %q, want %q", back, req.GetVersion(), got, want)
		}
	}
}

// TestRefusalOfCoordinators: coordinators are requested by key; their refusal names
// no node.
func TestRefusalOfCoordinators(t *testing.T) {
	req := kmsg.NewPtrFindCoordinatorRequest()
	req.SetVersion(6)
	req.CoordinatorKeys = []string{"a", "b"}
	resp, ok := refusal(req, kerr.CoordinatorNotAvailable).(*kmsg.FindCoordinatorResponse)
	if !ok || len(resp.Coordinators) != 2 || resp.Coordinators[1].Key != "b" || resp.Coordinators[1].NodeID != -1 ||
		resp.Coordinators[1].ErrorCode != kerr.CoordinatorNotAvailable.Code {
		t.Errorf("%+v", resp)
	}
}

// TestRefusalOfEveryAPI: every API can be refused in every version. The response can
// be encoded and decoded, and has the error if its version has a field for it.
func TestRefusalOfEveryAPI(t *testing.T) {
	refused := 0
	for key := range int16(kmsg.MaxKey + 1) {
		kind := kmsg.RequestForKey(key)
		if kind == nil {
			continue
		}
		for version := range kind.MaxVersion() + 1 {
			req := kmsg.RequestForKey(key)
			req.SetVersion(version)
			resp := refusal(req, kerr.UnknownServerError)
			r := &request{key: key, version: version, correlation: 7, body: 1}
			frame := encodeResponse(r.responseHeader(resp), resp)
			back, _, err := r.decodeResponse(frame)
			if err != nil || correlationOf(frame) != 7 {
				t.Errorf("%s version %d: %v", kmsg.NameForKey(key), version, err)
				continue
			}
			if errors.Is(ErrorOf(back), kerr.UnknownServerError) {
				refused++
			}
		}
	}
	if refused < 200 {
		t.Errorf("only %d versions of all APIs carry an error", refused)
	}
}

// TestNoOffsets: NoOffsets removes the offsets of a response of either version, and
// does not change other responses.
func TestNoOffsets(t *testing.T) {
	five := kmsg.OffsetFetchResponseGroupTopicPartition{Offset: 5, LeaderEpoch: 2}
	resp := kmsg.NewPtrOffsetFetchResponse()
	resp.Groups = []kmsg.OffsetFetchResponseGroup{{Topics: []kmsg.OffsetFetchResponseGroupTopic{{Partitions: []kmsg.OffsetFetchResponseGroupTopicPartition{five}}}}}
	resp.Topics = []kmsg.OffsetFetchResponseTopic{{Partitions: []kmsg.OffsetFetchResponseTopicPartition{{Offset: 5}}}}
	NoOffsets(resp)
	if p := resp.Groups[0].Topics[0].Partitions[0]; p.Offset != -1 || p.LeaderEpoch != -1 || p.ErrorCode != 0 {
		t.Errorf("%+v", p)
	}
	if p := resp.Topics[0].Partitions[0]; p.Offset != -1 {
		t.Errorf("%+v", p)
	}
	NoOffsets(kmsg.NewPtrEndTxnResponse())
}

// TestErrors: a patch with an error sets it in every partition. ErrorOf finds it, and
// finds none in a response without one.
func TestErrors(t *testing.T) {
	resp := refusal(refusedRequests()[1], kerr.UnstableOffsetCommit)
	if err := ErrorOf(resp); !errors.Is(err, kerr.UnstableOffsetCommit) {
		t.Errorf("error %v", err)
	}
	setError(resp, &kerr.Error{})
	if err := ErrorOf(resp); err != nil {
		t.Errorf("error %v", err)
	}
}
