//go:build unix

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/avro"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"
	"google.golang.org/protobuf/encoding/protowire"

	"oncebus/benchmarks/internal/bench"
)

// formatRounds is how often each format is measured. The first round does not count, because a new broker is still
// compiling its code.
const formatRounds = 4

// goalFormats is the lowest rate that a format with schemas should reach, relative to JSON.
const goalFormats = 0.5

// order is an event of the part of this benchmark that is called formats. It has the same content in each format. A tenth of the orders are
// duplicates.
type order struct {
	Account string `avro:"account"`
	ID      int64  `avro:"id"`
	At      int64  `avro:"at"`
	Symbol  string `avro:"symbol"`
	Side    string `avro:"side"`
	Price   string `avro:"price"`
	Volume  int32  `avro:"volume"`
	Note    string `avro:"note"`
}

func orderOf(n int) order {
	id := n - n%10*(n%10/9) // the last of ten orders repeats the first
	return order{
		"acct-" + strconv.Itoa(id%997), int64(id), 1_767_225_600_000 + int64(id), "XBTUSD", "BUY", strconv.Itoa(60_000+id%1000) + ".25", int32(id % 100),
		"some details of the order that no route reads, as most orders have",
	}
}

const avroSchema = `{"type": "record", "name": "Order", "fields": [{"name": "account", "type": "string"}, {"name": "id", "type": "long"},
	{"name": "at", "type": "long"}, {"name": "symbol", "type": "string"}, {"name": "side", "type": "string"}, {"name": "price", "type": "string"},
	{"name": "volume", "type": "int"}, {"name": "note", "type": "string"}]}`

const protobufSchema = `syntax = "proto3";
message Order { string account = 1; int64 id = 2; int64 at = 3; string symbol = 4; string side = 5; string price = 6; int32 volume = 7; string note = 8; }`

const jsonSchema = `{"type": "object", "properties": {"account": {"type": "string"}, "id": {"type": "integer"}}}`

func (o *order) json(b []byte) []byte {
	return fmt.Appendf(b, `{"account":%q,"id":%d,"at":%d,"symbol":%q,"side":%q,"price":%q,"volume":%d,"note":%q}`, o.Account, o.ID, o.At, o.Symbol, o.Side, o.Price, o.Volume, o.Note)
}

func (o *order) protobuf(b []byte) []byte {
	text := func(number protowire.Number, s string) {
		b = protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), s)
	}
	number := func(number protowire.Number, n int64) {
		b = protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), uint64(n))
	}
	text(1, o.Account)
	number(2, o.ID)
	number(3, o.At)
	text(4, o.Symbol)
	text(5, o.Side)
	text(6, o.Price)
	number(7, int64(o.Volume))
	text(8, o.Note)
	return b
}

// formatCase is a format, and the way in which a producer with a schema registry encodes an order in it.
type formatCase struct {
	name   string
	schema sr.Schema // with an empty text: no schema
	encode func(o *order, prefix []byte) ([]byte, error)
}

func formatCases() []formatCase {
	parsed := avro.MustParse(avroSchema)
	return []formatCase{
		{"json", sr.Schema{}, func(o *order, _ []byte) ([]byte, error) { return o.json(nil), nil }},
		{"json_schema", sr.Schema{Schema: jsonSchema, Type: sr.TypeJSON}, func(o *order, prefix []byte) ([]byte, error) { return o.json(prefix), nil }},
		{"avro", sr.Schema{Schema: avroSchema}, func(o *order, prefix []byte) ([]byte, error) { return parsed.AppendEncode(prefix, o) }},
		{"protobuf", sr.Schema{Schema: protobufSchema, Type: sr.TypeProtobuf}, func(o *order, prefix []byte) ([]byte, error) {
			return o.protobuf(append(prefix, 0)), nil // 0 stands for the first message type in the schema
		}},
	}
}

// ofFormats measures how a backlog of the same orders is judged in each format. The formats take turns.
func (r *run) ofFormats(ctx context.Context) error {
	registry := srfake.New()
	defer registry.Close()
	r.registry = registry.URL()
	defer func() { r.registry = "" }()
	cases := formatCases()
	rates, cpus := map[string][]float64{}, map[string][]float64{}
	for round := range formatRounds {
		for i, c := range cases {
			if c.schema.Schema != "" && round == 0 {
				registry.SeedSchema("orders-"+c.name, 1, i, c.schema)
			}
			figures, err := r.ofFormat(ctx, fmt.Sprintf("formats%d-%s", round, c.name), &c, uint32(i))
			if err != nil {
				return err
			}
			if round > 0 {
				rates[c.name] = append(rates[c.name], figures[0].Value)
				cpus[c.name] = append(cpus[c.name], figures[1].Value)
			}
		}
	}
	for _, c := range cases {
		bytes, err := c.encode(new(orderOf(123_456)), make([]byte, 5))
		if err != nil {
			return err
		}
		rate := median(rates[c.name])
		r.add("formats", c.name, rate/median(rates["json"]), figure{eventRate, rate}, figure{toJSON, rate / median(rates["json"])}, figure{cpuMicros, median(cpus[c.name])}, figure{"bytes of an event", float64(len(bytes))})
	}
	return nil
}

func median(of []float64) float64 {
	slices.Sort(of)
	return bench.Percentile(of, 50)
}

// ofFormat judges a backlog in one format.
func (r *run) ofFormat(ctx context.Context, name string, c *formatCase, id uint32) (figures []figure, err error) {
	routes := "  - {name: orders, topics: [APP-in], format: " + c.name + ", key: [{fields: [account, id]}], window: 24h, output: APP-out, dead_letter: APP-dead}\n"
	err = r.inCase(ctx, name, routes, usual, func(a *app, _ time.Duration) error {
		if err := a.process.Stop(); err != nil {
			return err
		}
		var failed error
		next := func(n int) *kgo.Record {
			value, err := c.encode(new(orderOf(n)), binary.BigEndian.AppendUint32([]byte{0}, id))
			failed = errors.Join(failed, err)
			return &kgo.Record{Value: value}
		}
		if err := errors.Join(a.produce(ctx, r.events, 0, next), failed, a.start(ctx)); err != nil {
			return err
		}
		if _, err := a.process.AwaitReady(ctx); err != nil {
			return err
		}
		began := time.Now()
		cpu, _, err := a.costs()
		if err != nil {
			return err
		}
		if err := a.await(ctx, r.events); err != nil {
			return err
		}
		took := time.Since(began).Seconds()
		after, _, err := a.costs()
		figures = []figure{{eventRate, float64(r.events) / took}, {cpuMicros, float64((after - cpu).Microseconds()) / float64(r.events)}}
		return err
	})
	return figures, err
}

// formatGoals has the goal of each format with schemas.
func (of results) formatGoals() (goals []bench.Goal) {
	for _, one := range of[1:] {
		rate := one.of(toJSON)
		goals = append(goals, bench.NewGoal(one.Case+": rate relative to JSON", fmt.Sprintf("at least %.1f", goalFormats), fmt.Sprintf("%.2f", rate), rate >= goalFormats))
	}
	return goals
}
