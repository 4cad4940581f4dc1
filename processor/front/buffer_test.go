package front

import (
	"errors"
	"fmt"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/app"
)

// TestBufferIsDivided: however many paths and partitions take all that they may, another
// one has room, and everything comes back.
func TestBufferIsDivided(t *testing.T) {
	at := &clientState{rt: &app.App{Topology: &app.Topology{Repartition: "repartition"}}}
	value := make([]byte, 1000)
	for _, paths := range []int{1, 2, 9, 99} {
		for _, divided := range []bool{false, true} {
			b := &buffer{recordsMax: 1000, bytesMax: 1 << 20, paths: paths + 1, parts: map[part]*usage{}}
			topic := "raw"
			if divided {
				topic = "repartition"
			}
			var all []*buffered
			for refused := 0; refused < paths; {
				refused = 0
				for n := range paths {
					e, err := b.add(at, fmt.Sprint("/", n), &kgo.Record{Topic: topic, Value: value, Partition: 3})
					switch {
					case err == nil:
						all = append(all, e)
					case errors.Is(err, ErrBuffered):
						refused++
					default:
						t.Fatalf("%d paths, divided %v: %v after %d records", paths, divided, err, len(all))
					}
				}
			}
			for _, other := range []struct {
				path      string
				partition int32
				fits      bool
			}{{"/other", 3, true}, {"/0", 3, false}, {"/0", 4, divided}} {
				e, err := b.add(at, other.path, &kgo.Record{Topic: topic, Value: value, Partition: other.partition})
				if (err == nil) != other.fits {
					t.Errorf("%d paths, divided %v, %d records: another one of %s for partition %d: %v", paths, divided, len(all), other.path, other.partition, err)
				}
				if err == nil {
					e.remove()
				}
			}
			for _, e := range all {
				e.remove()
			}
			if b.total != (usage{}) || len(b.parts) != 0 {
				t.Errorf("%d paths: %+v and %d parts remain", paths, b.total, len(b.parts))
			}
		}
	}
}

// TestFullBufferIsKafkaUnavailable: when all paths together use everything, or one event
// is larger than that, it is not the path's limit.
func TestFullBufferIsKafkaUnavailable(t *testing.T) {
	at := &clientState{rt: &app.App{Topology: &app.Topology{Repartition: "repartition"}}}
	b := &buffer{recordsMax: 1, bytesMax: 1000, paths: 2, parts: map[part]*usage{}}
	if _, err := b.add(at, "/a", &kgo.Record{Topic: "raw", Value: make([]byte, 1000)}); !errors.Is(err, ErrKafkaUnavailable) || errors.Is(err, ErrBuffered) {
		t.Errorf("a large event: %v", err)
	}
	if _, err := b.add(at, "/a", &kgo.Record{Topic: "raw", Value: make([]byte, 500)}); err != nil {
		t.Error(err)
	}
	if _, err := b.add(at, "/b", &kgo.Record{Topic: "raw"}); !errors.Is(err, ErrKafkaUnavailable) || errors.Is(err, ErrBuffered) {
		t.Errorf("one too many: %v", err)
	}
}
