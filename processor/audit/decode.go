package audit

import (
	"context"
	"hash/maphash"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
	"oncebus/processor/kafka"
	"oncebus/processor/registry"
	"oncebus/processor/wire"
)

// batch has what the rules read from the records of one fetch. keys[r] has the keys by rule r.
type batch struct {
	events []Event
	keys   [][]Key
	bytes  int64 // of the values
	next   int   // index of the first event that is not merged yet
}

// decoder derives the keys of the records of one partition. Only one goroutine uses it.
type decoder struct {
	rules     []*Rule
	derivers  []*rules.Deriver
	content   *rules.Deriver // nil: payloads are compared byte by byte
	partition int32
	seed      maphash.Seed
	senders   *senders
	sender    *rules.Sender // nil for none
	reader    rules.SenderReader
	known     map[string]int32 // numbers of the senders of this partition
	latest    int64            // timestamps after this one count as wrong
	place     int64            // timestamp with which the last record was merged; -1 at the start
	schemas   *registry.Registry
}

// newDecoder returns a decoder for a partition. All decoders of an audit share the seed and the senders.
func newDecoder(list []*Rule, o Options, partition int32, seed maphash.Seed, names *senders) *decoder {
	d := &decoder{schemas: o.Schemas, rules: list, partition: partition, seed: seed, senders: names, known: map[string]int32{}, latest: o.Now.UnixMilli() + futureMax, place: -1}
	for _, r := range list {
		d.derivers = append(d.derivers, o.newDeriver(r))
		if d.sender == nil {
			d.sender = r.Route.Sender
		}
	}
	if o.Content != nil {
		d.content = o.newDeriver(o.Content)
	}
	return d
}

func (o *Options) newDeriver(r *Rule) *rules.Deriver {
	d := r.Routes.NewDeriver(o.Secret)
	if o.Schemas != nil {
		d.Using(o.Schemas.Schemas)
	}
	return d
}

// payload returns the hash by which payloads are compared.
func (d *decoder) payload(in *rules.Input) uint64 {
	if d.content != nil {
		if out := d.content.Derive(in); out.Finding == rules.Keyed {
			return hash(&out.Digest)
		}
	}
	return maphash.Bytes(d.seed, in.Value)
}

// decode derives the keys of records. A record without a timestamp is an operator error, unless every rule
// reads the time from the payload.
func (d *decoder) decode(ctx context.Context, records []*kgo.Record) (*batch, error) {
	b := &batch{events: make([]Event, len(records)), keys: make([][]Key, len(d.rules))}
	for r := range d.rules {
		b.keys[r] = make([]Key, len(records))
	}
	for i, rec := range records {
		in := wire.InputOf(rec)
		timestamp := in.Timestamp
		for r := range d.rules {
			if timestamp < 0 && d.rules[r].Route.Time == nil {
				return nil, kafka.OperatorErrorf("%s/%d/%d has no timestamp, so no window can be known: name the payload field with the event time by --time",
					rec.Topic, rec.Partition, rec.Offset)
			}
			var err error
			if b.keys[r][i], err = d.key(ctx, r, &in); err != nil {
				return nil, err
			}
		}
		if timestamp < 0 {
			timestamp = b.keys[0][i].Time
		}
		if timestamp <= d.latest {
			d.place = timestamp
		} // otherwise the record keeps the timestamp of the previous record, because with its own time it would hold back the partition
		b.events[i] = Event{Partition: d.partition, Offset: rec.Offset, Timestamp: d.place, Payload: d.payload(&in), Sender: d.senderOf(rec, in.Headers)}
		b.bytes += int64(len(rec.Value))
	}
	return b, nil
}

// key derives the key of a record by rule r.
func (d *decoder) key(ctx context.Context, r int, in *rules.Input) (Key, error) {
	var out rules.Derived
	d.derivers[r].DeriveTo(&out, in)
	if out.Finding == rules.SchemaPending {
		if d.schemas == nil {
			return Key{}, kafka.OperatorErrorf("the records of %s have schemas: set ONCEBUS_SCHEMA_REGISTRY_URL", in.Topic)
		}
		if err := d.schemas.Read(ctx, out.Format, out.Schema); err != nil {
			return Key{}, err
		}
		return d.key(ctx, r, in)
	}
	switch {
	case out.Route != d.rules[r].Route:
		return Key{Finding: Elsewhere, Time: out.Time}, nil
	case out.Finding == rules.Keyed:
		return Key{Digest: out.Digest, Time: out.Time}, nil
	case out.Finding == rules.KeyMissing:
		return Key{Finding: MissingKey, Time: out.Time, Reason: out.Reason}, nil
	}
	return Key{Finding: Invalid, Time: out.Time, Reason: out.Reason}, nil
}

// senderOf returns the index of the name of a record's sender.
func (d *decoder) senderOf(rec *kgo.Record, headers rules.HeaderSource) int32 {
	if d.sender == nil {
		return 0
	}
	var id [20]byte
	var carried []byte
	if d.sender.Kind == rules.SenderProducerID && rec.ProducerID >= 0 {
		carried = strconv.AppendInt(id[:0], rec.ProducerID, 10)
	}
	name := d.reader.Of(d.sender, rec.Value, headers, carried)
	if len(name) == 0 {
		return 0
	}
	if i, ok := d.known[string(name)]; ok {
		return i
	}
	i := d.senders.number(string(name))
	if len(d.known) < sendersMax {
		d.known[string(name)] = i
	}
	return i
}

// sendersMax is how many senders are counted individually.
const sendersMax = 1 << 16

// senders gives numbers to the names of senders. 0 stands for a record without a sender, 1 for all senders over
// the bound.
type senders struct {
	mu      sync.Mutex
	numbers map[string]int32
	names   []string
}

func newSenders() *senders { return &senders{numbers: map[string]int32{}, names: []string{"", ""}} }

func (s *senders) number(name string) int32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.numbers[name]; ok {
		return i
	}
	if len(s.names) == sendersMax {
		return 1
	}
	s.names = append(s.names, name)
	i := int32(len(s.names) - 1)
	s.numbers[name] = i
	return i
}
