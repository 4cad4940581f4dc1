package progress

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup"
	"oncebus/processor/app"
)

// TestPartitionThatIsBackIsQuietForAWhile: an input partition loses its leader and gets one again.
// Its producers have held events back meanwhile, and need a while to send them, so for that long
// nothing is said of it, however seldom the worker looks at it.
func TestPartitionThatIsBackIsQuietForAWhile(t *testing.T) {
	t.Parallel()
	id := app.TaskID{Topic: "raw", Partition: 0}
	client, err := kgo.NewClient() // asked for nothing: no record is before the end
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	const every = 30 * time.Second // between two looks without events
	for name, away := range map[string]func(in *inputs, o *Observer){
		"away at a look":            func(in *inputs, _ *Observer) { in.noteAway("raw", map[int32]int64{0: 5}, nil) },
		"away before all looks":     func(in *inputs, _ *Observer) { clear(in.partitions); in.noteAway("raw", map[int32]int64{0: 5}, nil) },
		"assigned without a leader": func(_ *inputs, o *Observer) { o.Returned(id) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				o, in := &Observer{Client: client}, inputs{partitions: map[app.TaskID]*inputPartition{}}
				look := func(when string, want bool) {
					t.Helper()
					to := dedup.NoStreamTime
					in.noteAway("raw", map[int32]int64{0: 5}, map[int32]int64{0: 5})
					if err := in.read(t.Context(), o, id, [16]byte{}, 5, observedEnd{at: time.Now().UnixMilli(), end: 5}, &to); err != nil {
						t.Fatal(err)
					}
					if said := to != dedup.NoStreamTime; said != want {
						t.Errorf("%s: said %v, want %v", when, said, want)
					}
					time.Sleep(every) //nolint:forbidigo // the fake clock of the synctest bubble
				}
				look("before", true)
				away(&in, o)
				look("once it is back", false)
				look("after a while", true)
			})
		})
	}
}
