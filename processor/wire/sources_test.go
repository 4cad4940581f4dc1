package wire

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"oncebus/dedup"
)

// TestLeastOfSources: the source that has come least far decides; one that was read to a time has
// come as far as the others had by then, and nothing is known while a topic was not counted lately.
func TestLeastOfSources(t *testing.T) {
	t.Parallel()
	s := NewSources(7, []uint16{2, 5})
	front := func(topic uint16, partition int32, at int64) {
		i, ok := s.Of(topic, partition)
		if !ok {
			t.Fatalf("%d/%d is no source", topic, partition)
		}
		s.Front[i], s.Highest = max(s.Front[i], at), max(s.Highest, at)
	}
	now := int64(1_000_000)
	want := func(when string, least int64) {
		t.Helper()
		if got := s.Least(now); got != least {
			t.Errorf("%s: %d, want %d", when, got, least)
		}
	}
	s.Grow(2, 2, now)
	front(2, 0, 1000)
	front(2, 1, 400)
	want("topic 5 not counted", dedup.NoStreamTime)
	s.Grow(5, 1, dedup.NoStreamTime)
	want("topic 5 was met, and not counted", dedup.NoStreamTime)
	s.Grow(5, 1, now-countHolds)
	want("nothing known of 5/0", dedup.NoStreamTime)
	front(5, 0, 700)
	want("2/1 behind", 400)
	s.TakeSample(50, false)
	front(2, 0, 3000)
	s.TakeSample(60, false)
	slow, _ := s.Of(2, 1)
	s.ReadTo(slow, 49)
	want("2/1 read to before the first sample", 400)
	s.ReadTo(slow, 59)
	want("2/1 read to between the samples", 700)
	other, _ := s.Of(5, 0)
	s.ReadTo(other, 60)
	want("5/0 read to the second sample", 1000)
	s.ReadTo(slow, 1<<40)
	want("all at their ends", 3000)
	now++
	want("the count of 5 is too old", dedup.NoStreamTime)
	now -= 10 * countHolds
	want("broker time was set back", 3000)
	now += 20 * countHolds
	s.Grow(2, 2, now)
	s.Grow(5, 1, now-1)
	s.Grow(5, 1, now-2*countHolds)
	want("both were counted again, and an old count came after it", 3000)
	s.Grow(5, 2, now)
	want("5 has got a partition", dedup.NoStreamTime)
}

// TestTimeGoesOnWithoutEvents: where it does, a source that is read to a broker time has come as far
// behind it as the last event was. One with unread records has not, and an event that is further
// takes the place of the clock.
func TestTimeGoesOnWithoutEvents(t *testing.T) {
	t.Parallel()
	s := NewSources(1, []uint16{2})
	s.Grow(2, 2, 5000)
	s.TakeSample(100, true)
	if s.Highest != dedup.NoStreamTime || s.Least(100) != dedup.NoStreamTime {
		t.Errorf("time of a namespace without an event: %d, least %d", s.Highest, s.Least(100))
	}
	s.Highest, s.Front[0], s.Front[1] = 1000, 1000, 990
	want := func(when string, at, highest, least int64) {
		t.Helper()
		s.TakeSample(at, true)
		if s.Highest != highest || s.Least(at) != least {
			t.Errorf("%s: highest %d and least %d, want %d and %d", when, s.Highest, s.Least(at), highest, least)
		}
	}
	want("after the event", 5000, 1000, 990)
	want("without one", 5600, 1600, 990)
	s.ReadTo(0, 5600)
	want("with a source that is not read", 6000, 2000, 990)
	s.ReadTo(1, 5700)
	want("with a source that is read to before", 6100, 2100, 1600)
	s.ReadTo(0, 6100)
	s.ReadTo(1, 6100)
	want("with both read to the end", 6200, 2200, 2100)
	s.Highest, s.Front[0] = 2300, 2300
	want("after an event that is further", 6300, 2300, 2100)
	want("after it", 6400, 2400, 2100)
	want("with broker time set back", 3000, 2300, 2100)
	want("after that", 3100, 2400, 2100)
}

// TestWrongBrokerTimeMovesNoTime: the clock of a leader is ahead for one record, or leaders whose clocks
// differ take turns. Time goes on by none of it, or live events would be late.
func TestWrongBrokerTimeMovesNoTime(t *testing.T) {
	t.Parallel()
	for name, ahead := range map[string]func(n int64) int64{
		"once by an hour": func(n int64) int64 {
			if n == 5 {
				return 3_600_000
			}
			return 0
		},
		"every other time": func(n int64) int64 { return n % 2 * 5000 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := NewSources(1, []uint16{2})
			s.Highest = 1000
			s.Grow(2, 1, 0)
			s.Front[0] = 1000
			for n := range int64(20) { // a record each second
				at := n*1000 + ahead(n)
				s.Grow(2, 1, n*1000)
				s.TakeSample(at, true)
				s.ReadTo(0, n*1000-1000)
				if least := s.Least(at); least > 1000+n*1000 {
					t.Fatalf("after %d s time has gone on to %d", n, least)
				}
			}
			if s.Highest < 1000+18_000 || s.Highest > 1000+24_000 {
				t.Errorf("after 19 s the highest time is %d", s.Highest)
			}
		})
	}
}

// TestSamplesKeepWhatTheyBound: of too many samples those go that say the least, and broker time
// that was set back takes those of after it with it.
func TestSamplesKeepWhatTheyBound(t *testing.T) {
	t.Parallel()
	s := NewSources(1, []uint16{0})
	s.Grow(0, 1, 100)
	for at := range int64(100) {
		s.Highest = at * 10
		s.TakeSample(at, false)
	}
	if n := len(s.Samples); n != samplesMax || s.Samples[0].At != 0 || s.Samples[n-1] != (Sample{99, 990}) {
		t.Errorf("samples %v", s.Samples)
	}
	s.TakeSample(98, false)
	for _, sample := range s.Samples[:len(s.Samples)-1] {
		if sample.At >= 98 {
			t.Errorf("a sample of %d, and broker time is 98", sample.At)
		}
	}
	s.DropSamples(990)
	if len(s.Samples) != 1 {
		t.Errorf("samples %v of a namespace whose stream time is the highest", s.Samples)
	}
}

// TestSourcesEncoding: whole and partial checkpoints have all of it, in any order of changes.
func TestSourcesEncoding(t *testing.T) {
	t.Parallel()
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var fold Fold
		c := Checkpoint{Set: 1, Epoch: -1, Sources: []Sources{NewSources(0, []uint16{1}), NewSources(9, []uint16{1, 4})}}
		c.Sources[0].Grow(1, 3, 100)
		c.Sources[1].Grow(1, 3, 100)
		c.Sources[1].Grow(4, 1, dedup.NoStreamTime)
		before, number := Checkpoint{}, uint32(0)
		for step := range 30 {
			c.Sequence++
			c.Sources = []Sources{c.Sources[0].Clone(), c.Sources[1].Clone()}
			s := &c.Sources[rng.IntN(2)]
			at := rng.Int64N(1 << 40)
			s.Highest = max(s.Highest, at)
			i := rng.IntN(len(s.Front))
			s.Front[i] = max(s.Front[i], at)
			s.ReadTo(i, rng.Int64N(1000))
			s.Ingress = max(s.Ingress, s.Highest-rng.Int64N(100))
			s.TakeSample(rng.Int64N(1000), false)
			if rng.IntN(2) == 0 {
				s.Grow(1, 0, rng.Int64N(1<<40))
			}
			value := c.Append(nil)
			if number++; step == 0 || rng.IntN(8) == 0 {
				number = 0
			} else {
				value = c.AppendPartial(nil, &before, nil, nil)
			}
			if err := fold.Add(number, value); err != nil {
				t.Fatalf("run %d, step %d: %v", seed, step, err)
			}
			want := []Sources{c.Sources[0].Clone(), c.Sources[1].Clone()}
			want[0].readTo, want[1].readTo = nil, nil
			if got := fold.Newest(); !reflect.DeepEqual(got.Sources, want) {
				t.Fatalf("run %d, step %d: read %+v, want %+v", seed, step, got.Sources, want)
			}
			before = c
		}
	}
}
