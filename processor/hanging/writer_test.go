package hanging

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// produce answers for the leader of the partition: the records are open from now on.
func (f *forgetful) produce(req kmsg.Request) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	p := kmsg.NewProduceResponseTopicPartition()
	topic := kmsg.NewProduceResponseTopic()
	sent := req.(*kmsg.ProduceRequest).Topics[0]
	topic.Topic, topic.TopicID, topic.Partitions = sent.Topic, sent.TopicID, append(topic.Partitions, p)
	resp.Topics = append(resp.Topics, topic)
	f.state, f.added, f.marker = stateOngoing, true, ""
	f.produced++
	return resp
}

func (s *Closer) openWriter(ctx context.Context) (*Writer, error) {
	return s.Open(ctx, "id", kadm.TopicsSet{"t": {0: {}}}, 5*time.Second, kgo.DefaultProduceTopic("t"))
}

func (w *Writer) writeOne(ctx context.Context, failed error) error {
	return w.Write(ctx, func() error {
		w.Produce(&kgo.Record{Value: []byte("x")})
		return failed
	})
}

// TestWriterBeginsNoTransactionBeforeTheLastIsClosed: a marker is dropped. The Writer that wrote the
// records says so and sends nothing more, and the next one closes them, as the coordinator recorded,
// before it registers the id.
func TestWriterBeginsNoTransactionBeforeTheLastIsClosed(t *testing.T) {
	t.Parallel()
	for marker, failed := range map[string]error{"commit": nil, "abort": errors.New("the command found a mistake")} {
		t.Run(marker, func(t *testing.T) {
			t.Parallel()
			f := &forgetful{state: stateEmpty, timeout: 5000, epoch: 3, maxTimeout: 900_000, marker: "commit"}
			s := f.answers(t)
			w, err := s.openWriter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			if err := w.writeOne(t.Context(), nil); err != nil || f.marker != "commit" {
				t.Fatalf("marker %q, error %v", f.marker, err)
			}
			f.mu.Lock()
			f.drops = 1
			f.mu.Unlock()
			err = w.writeOne(t.Context(), failed)
			if want := errors.Join(failed, ErrHangs); failed == nil && !errors.Is(err, ErrHangs) || failed != nil && !errors.Is(err, failed) {
				t.Errorf("the dropped marker: %v, want %v", err, want)
			}
			if f.marker != "" || f.produced != 2 {
				t.Fatalf("marker %q after %d produce requests, want none after 2", f.marker, f.produced)
			}
			next, err := s.openWriter(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer next.Close()
			if f.marker != marker {
				t.Errorf("the records got the marker %q, want %q", f.marker, marker)
			}
			if err := next.writeOne(t.Context(), nil); err != nil || f.marker != "commit" {
				t.Errorf("the next transaction: marker %q, error %v", f.marker, err)
			}
			if err := w.writeOne(t.Context(), nil); !IsFenced(err) {
				t.Errorf("a Writer after the next one: %v, want fenced", err)
			}
		})
	}
}
