package rules

import (
	"bytes"
	"strconv"

	"go.yaml.in/yaml/v4"

	"oncebus/dedup"
)

// Order names the payload fields of the order key
//
//	account|SYMBOL|SIDE|quantity|bucket|TYPE[|limit][|stop]
//
// Symbol, side and type are in upper case, quantity and prices are rounded half to even to 8 decimals, and
// bucket = floor(timestamp / Step). An absent price is left out. The key stays unambiguous, because the type of
// the order tells whether a single price is a limit or a stop.
type Order struct {
	Account, Symbol, Side, Quantity, Type Field
	Limit, Stop                           Field // optional in the payload
	Timestamp                             Field
	Format                                TimeFormat
	Step                                  int64 // milliseconds
	// RecordTime: if an order has no timestamp, the timestamp of its record is used, which is the same at every
	// replay because it is in the log. For an HTTP request it is the time of arrival.
	RecordTime bool
	// AdjacentBuckets finds duplicates across the edge of a bucket, too: an order in an adjacent bucket is a
	// duplicate if its timestamp is less than a step away and its fingerprint is equal.
	AdjacentBuckets bool
}

// The defaults of the order source.
const (
	orderDecimals = 8
	orderStepMS   = 60_000
)

// newOrder returns the order source with the default field names.
func newOrder() *Order {
	o := &Order{Step: orderStepMS}
	for name, f := range o.byName() {
		*f = namedField(name)
	}
	return o
}

// byName returns the fields by their names in the routes file.
func (o *Order) byName() map[string]*Field {
	return map[string]*Field{
		"account": &o.Account, "symbol": &o.Symbol, "side": &o.Side, "quantity": &o.Quantity,
		"type": &o.Type, "limit": &o.Limit, "stop": &o.Stop, "timestamp": &o.Timestamp,
	}
}

// all returns the fields in the order of the key.
func (o *Order) all() []*Field {
	return []*Field{&o.Account, &o.Symbol, &o.Side, &o.Quantity, &o.Timestamp, &o.Type, &o.Limit, &o.Stop}
}

// orderFieldsOf is kind.fields of the order source.
func orderFieldsOf(s *Source) []*Field { return s.order.all() }

func ruleOfOrder(s *Source) []string {
	o := s.order
	var args []string
	for _, f := range o.all() {
		args = append(args, strconv.Quote(f.Path.Text))
	}
	args = append(args, o.Format.String(), strconv.FormatInt(o.Step, 10)+"ms")
	if o.RecordTime {
		args = append(args, "record_time")
	}
	return args
}

// orderFields lists the fields of the order source in the routes file.
var orderFields = makeOrderFields()

func makeOrderFields() []fieldOf[Order] {
	var fields []fieldOf[Order]
	for _, name := range []string{"account", "symbol", "side", "quantity", "type", "limit", "stop", "timestamp"} {
		fields = append(fields, fieldOf[Order]{name, func(d *decoder, o *Order, n *yaml.Node, at string) {
			*o.byName()[name] = d.field(n, at)
		}})
	}
	return append(fields,
		fieldOf[Order]{"format", func(d *decoder, o *Order, n *yaml.Node, at string) { o.Format = d.timeFormat(n, at) }},
		fieldOf[Order]{"record_time", func(d *decoder, o *Order, n *yaml.Node, at string) { o.RecordTime, _ = d.boolean(n, at) }},
		fieldOf[Order]{"adjacent_buckets", func(d *decoder, o *Order, n *yaml.Node, at string) { o.AdjacentBuckets, _ = d.boolean(n, at) }},
		fieldOf[Order]{"step", func(d *decoder, o *Order, n *yaml.Node, at string) { o.Step = d.stepMS(n, at) }},
	)
}

func readOrder(d *decoder, s *sourceDraft, n *yaml.Node, at string) {
	s.order = newOrder()
	decodeObject(d, n, at, s.order, orderFields)
}

// completeOrder sets the default field names of a bare source, and the text.
func completeOrder(s *sourceDraft) {
	if s.order == nil {
		s.order = newOrder()
	}
	if s.order.RecordTime {
		s.text += ": {record_time: true}"
	}
}

// orderKey writes the order string to d.buf. It writes the same string without the bucket to d.routing, because
// one task must get all orders that could be duplicates of each other across adjacent buckets.
func (d *Deriver) orderKey(s *Source, limit int) status {
	o := s.order
	d.bucket = bucket{}
	if !d.readPayload() {
		return bad
	}
	all := found
	for _, part := range [...]func() status{
		func() status { return d.orderText(&o.Account, false) },
		func() status { return d.orderText(&o.Symbol, true) },
		func() status { return d.orderText(&o.Side, true) },
		func() status { return d.orderDecimal(&o.Quantity) },
		func() status { return d.orderBucket(o) },
		func() status { return d.orderText(&o.Type, true) },
		func() status { return d.orderPrice(&o.Limit) },
		func() status { return d.orderPrice(&o.Stop) },
	} {
		st := part()
		if st == none {
			return none
		}
		all = max(all, st)
	}
	if all != found {
		return all
	}
	size := len(d.buf) - 1
	if size > limit {
		return d.fail("order key", reasonKeyLimit(size, limit))
	}
	d.buf, d.routing = d.buf[:size], d.routing[:len(d.routing)-1] // the last separator
	d.hashed = d.buf
	return found
}

// orderText appends a text field and a separator to both d.buf and d.routing.
func (d *Deriver) orderText(f *Field, toUpper bool) status {
	s, st := d.scalar(f)
	if st != found {
		return st
	}
	if s, st = d.finish(f, s); st != found { // a number becomes text
		return st
	}
	if bytes.IndexByte(s.text, '|') >= 0 {
		return d.fail(f.label, "contains the separator |")
	}
	mark := len(d.buf)
	if toUpper {
		d.buf = appendCase(d.buf, s.text, true)
	} else {
		d.buf = append(d.buf, s.text...)
	}
	d.buf = append(d.buf, '|')
	d.routing = append(d.routing, d.buf[mark:]...)
	return found
}

// orderDecimal appends a number with 8 decimals and a separator to both d.buf and d.routing.
func (d *Deriver) orderDecimal(f *Field) status {
	s, st := d.scalar(f)
	if st != found {
		return st
	}
	v, reason := parseDecimal(d.digits, s.text)
	d.digits = v.digits[:0]
	if reason != "" {
		return d.fail(f.label, reason)
	}
	mark := len(d.buf)
	d.buf = append(v.appendFixed(d.buf, orderDecimals), '|')
	d.routing = append(d.routing, d.buf[mark:]...)
	return found
}

// orderPrice does what orderDecimal does, for a price, which may be absent.
func (d *Deriver) orderPrice(f *Field) status {
	mark := len(d.skipped)
	st := d.orderDecimal(f)
	if st == none {
		d.skipped = d.skipped[:mark]
		return found
	}
	return st
}

// orderBucket appends the time bucket and a separator to d.buf only.
func (d *Deriver) orderBucket(o *Order) status {
	ms, st := d.orderTime(o)
	if st != found {
		return st
	}
	d.bucket.at, d.bucket.number, d.bucket.from = ms, ms/o.Step, len(d.buf) // ms is not negative
	d.buf = strconv.AppendInt(d.buf, d.bucket.number, 10)
	d.bucket.to = len(d.buf)
	d.buf = append(d.buf, '|')
	return found
}

// orderTime returns the time of an order, in Unix milliseconds.
func (d *Deriver) orderTime(o *Order) (int64, status) {
	mark := len(d.skipped)
	s, st := d.scalar(&o.Timestamp)
	if st == none && o.RecordTime {
		d.skipped = d.skipped[:mark]
		switch at := d.in.Timestamp; {
		case at < 0:
			return 0, d.fail("record", "has no timestamp")
		case at > lastTime:
			return 0, d.fail("record timestamp", reasonTimeRange)
		default:
			return at, found
		}
	}
	if st != found {
		return 0, st
	}
	ms, reason := d.time(s, o.Format, false)
	if reason != "" {
		return 0, d.fail(o.Timestamp.label, reason)
	}
	return ms, found
}

// bucket is the time bucket of an order key.
type bucket struct {
	at       int64 // the order's timestamp, Unix milliseconds
	number   int64
	from, to int // its bytes in Deriver.buf
}

// adjacentDigests returns the digests that the order would have in the bucket before and in the bucket after
// its bucket.
func (d *Deriver) adjacentDigests(r *Route, s *Source) (digests [2]dedup.Digest) {
	for i, number := range [...]int64{d.bucket.number - 1, d.bucket.number + 1} {
		d.adjacent = append(d.adjacent[:0], d.buf[:d.bucket.from]...)
		d.adjacent = strconv.AppendInt(d.adjacent, number, 10)
		d.adjacent = append(d.adjacent, d.buf[d.bucket.to:]...)
		key := d.key(r.Secret, d.scoped(r, d.adjacent))
		digests[i] = s.digest(&key)
	}
	return digests
}
