package rules

import (
	"encoding/hex"
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestOrderKeysGolden compares keys and the digests of the own and both adjacent
// buckets. They were computed with python3 (decimal, hashlib) from the rule alone:
//
//	account|SYMBOL|SIDE|quantity|bucket|TYPE[|limit][|stop]
func TestOrderKeysGolden(t *testing.T) {
	d := oneRoute(t, "[{order: {adjacent_buckets: true}}]", "time: {field: timestamp}").NewDeriver(nil)
	for _, v := range []struct {
		name, payload, hashed, key string
		digests                    [3]string // its own, before, after
	}{
		{"market", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"100","timestamp":1729636859999,"type":"MARKET"}`, "ACC123456|AAPL|BUY|100.00000000|28827280|MARKET",
			"3348b664003d5234b7642812bef3b32403bd3424dd4609430df6cc34779e4b79", [3]string{"e8862e631636e19be0f1d890bdff58ef", "6633391cfe5ad9ab2d5c79b4a830b2d4", "c84d1611380b5d5c7a43ffbe0c536491"}},
		{"limit", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"100","timestamp":1729636859999,"type":"LIMIT","limit":"187.25"}`, "ACC123456|AAPL|BUY|100.00000000|28827280|LIMIT|187.25000000",
			"bbd7e6f7ad9ee7cfcc2c08430b6e3ce7fe870d075e4e617112369f77ea0c7013", [3]string{"60197ef0bb9554609bb9f8c10862d72c", "081de458bf24ef0e9694f96d2b163e41", "d04142c7b76e297b235cda7eef0f6261"}},
		{"stop", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"100","timestamp":1729636859999,"type":"STOP","stop":"180"}`, "ACC123456|AAPL|BUY|100.00000000|28827280|STOP|180.00000000",
			"ae55fd1784c10021e27f1989799cd5ea84f865b5654d89d172ba4baf34bbed31", [3]string{"759b651092cab38eb5eae90b7a903e21", "4f271c503dc0deb26ef82326bb762089", "6a2098ef9e5a3643a7913a050923f3cf"}},
		{"stop-limit", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"100","timestamp":1729636859999,"type":"STOP_LIMIT","limit":"187.25","stop":"186.5"}`, "ACC123456|AAPL|BUY|100.00000000|28827280|STOP_LIMIT|187.25000000|186.50000000",
			"3b7cc3ac21fc9e3f6466e9f06b6750a85d9d7c2368ac485ef8fd6a05c32cbbab", [3]string{"e0b25bab37f72d9033f31972686bbb63", "3854520777b94359a07936b4ab61f927", "b1e71b401d91cf10d5fb43125b1739bc"}},
		{"lower-case input", `{"account":"ACC123456","symbol":"aapl","side":"buy","quantity":"100","timestamp":1729636859999,"type":"market"}`, "ACC123456|AAPL|BUY|100.00000000|28827280|MARKET",
			"3348b664003d5234b7642812bef3b32403bd3424dd4609430df6cc34779e4b79", [3]string{"e8862e631636e19be0f1d890bdff58ef", "6633391cfe5ad9ab2d5c79b4a830b2d4", "c84d1611380b5d5c7a43ffbe0c536491"}},
		{"nine decimals, half to even down", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"1.000000005","timestamp":1729636859999,"type":"MARKET"}`, "ACC123456|AAPL|BUY|1.00000000|28827280|MARKET",
			"19f5318d2e40c46a7bdd50725b15e81cad3912be6d749830fcbc1bae0a133017", [3]string{"c23ba98a384b77c52c48a0f0581903d7", "2876558d73119f14657f8c3cf4b6abcf", "132b9d3cd1ff251cbc7466d473ca6044"}},
		{"nine decimals, half to even up", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"1.000000015","timestamp":1729636859999,"type":"MARKET"}`, "ACC123456|AAPL|BUY|1.00000002|28827280|MARKET",
			"6976e0c3d6fe36dcce6d01e846a0632f4a8b2f7b05eafe3cf2a8c6f3a015fe88", [3]string{"b2b878c4c0f5857399f8f16a45ac88e4", "f9e5e2ad9b990f238a2889f78ba23105", "8cfaabfa9245ed9455d0845652079324"}},
		{"nine decimals, above half", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"1.0000000051","timestamp":1729636859999,"type":"MARKET"}`, "ACC123456|AAPL|BUY|1.00000001|28827280|MARKET",
			"1e553dff08724aab11bbf7136c3e3f72b00d20415939faacc2006ebd2bca4c00", [3]string{"c59ba5f81e79f904462e07916f32d4b9", "c0aafd032dfcbe58050d5d42358e3221", "6b71333e2c7f526946009bdb1a8e92c8"}},
		{"last millisecond of a minute", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"100","timestamp":1729636859999,"type":"MARKET"}`, "ACC123456|AAPL|BUY|100.00000000|28827280|MARKET",
			"3348b664003d5234b7642812bef3b32403bd3424dd4609430df6cc34779e4b79", [3]string{"e8862e631636e19be0f1d890bdff58ef", "6633391cfe5ad9ab2d5c79b4a830b2d4", "c84d1611380b5d5c7a43ffbe0c536491"}},
		{"first of the next", `{"account":"ACC123456","symbol":"AAPL","side":"BUY","quantity":"100","timestamp":1729636860000,"type":"MARKET"}`, "ACC123456|AAPL|BUY|100.00000000|28827281|MARKET",
			"13838e162e00eef32dd60f3c0f5f8f5a965e7981dd4563e763be641f4241adaf", [3]string{"c84d1611380b5d5c7a43ffbe0c536491", "e8862e631636e19be0f1d890bdff58ef", "3c737f719e65d5df2d26feb1093b54af"}},
	} {
		got, how := d.Explain(&Input{Topic: "in", Value: []byte(v.payload)})
		if string(how.Hashed) != v.hashed || hex.EncodeToString(got.Key[:]) != v.key {
			t.Errorf("%s: %s of %q, want %s of %q; %s", v.name, hex.EncodeToString(got.Key[:]), how.Hashed, v.key, v.hashed, got.Reason)
		}
		if digests := [3]string{got.Digest.String(), got.Adjacent[0].String(), got.Adjacent[1].String()}; digests != v.digests || !got.HasAdjacent {
			t.Errorf("%s: digests %v, want %v", v.name, digests, v.digests)
		}
	}
	later := oneRoute(t, "[{order: {adjacent_buckets: true}}]").NewDeriver(nil).Derive(&Input{
		Topic: "in", Timestamp: 1729642259999, Value: []byte(`{"account":"A","symbol":"B","side":"C","quantity":1,"type":"D","timestamp":1729636859999}`),
	})
	if later.Time != 1729642259999 || later.Shift != -5_400_000 {
		t.Errorf("an order of 90 minutes ago: event time %d, shift %d", later.Time, later.Shift)
	}
	without := oneRoute(t, "[order]").NewDeriver(nil).Derive(&Input{Topic: "in", Value: []byte(`{"account":"A","symbol":"B","side":"C","quantity":1,"type":"D","timestamp":1}`)})
	if without.HasAdjacent || without.Finding != Keyed {
		t.Errorf("adjacent digests without adjacent_buckets: %+v", without)
	}
}

// TestOrderTakesTheTimeOfItsRecord: with record_time, and only where it has none of its own.
func TestOrderTakesTheTimeOfItsRecord(t *testing.T) {
	const order, minute = `{"account":"A","symbol":"B","side":"C","quantity":1,"type":"D"%s}`, 60_000
	d := oneRoute(t, "[{order: {record_time: true, adjacent_buckets: true}}]").NewDeriver(nil)
	derive := func(d *Deriver, more string, at int64) (Derived, string) {
		got, how := d.Explain(&Input{Topic: "in", Timestamp: at, Value: fmt.Appendf(nil, order, more)})
		return got, string(how.Hashed)
	}
	for more, want := range map[string]string{
		"": "A|B|C|1.00000000|7|D", `,"timestamp":null`: "A|B|C|1.00000000|7|D", `,"timestamp":""`: "A|B|C|1.00000000|7|D",
		`,"timestamp":1`: "A|B|C|1.00000000|0|D", `,"timestamp":"no time"`: "",
	} {
		got, hashed := derive(d, more, 7*minute+1)
		if hashed != want || (got.Finding == Keyed) != (want != "") {
			t.Errorf("%q: key of %q, want %q; %v %s", more, hashed, want, got.Finding, got.Reason)
		}
	}
	before, _ := derive(d, "", 7*minute-1)
	after, _ := derive(d, "", 7*minute)
	if before.Routing != after.Routing || before.Digest != after.Adjacent[0] || before.Shift != 0 || after.Shift != 0 {
		t.Errorf("a copy just past the minute is in another task, or is not found:\n%+v\n%+v", before, after)
	}
	if got, _ := derive(d, "", -1); got.Finding != Malformed || got.Reason != "record: has no timestamp" {
		t.Errorf("a record without a timestamp: %v %q", got.Finding, got.Reason)
	}
	without := oneRoute(t, "[order]").NewDeriver(nil)
	if got, _ := derive(without, "", 7*minute); got.Finding != KeyMissing || got.Reason != "no key: field timestamp: absent" {
		t.Errorf("without record_time: %v %q", got.Finding, got.Reason)
	}
}

// BenchmarkOrderKeys derives 10,000 different order keys at a time and reports
// the slowest and the 99th percentile of them.
func BenchmarkOrderKeys(b *testing.B) {
	d := oneRoute(b, "[{order: {adjacent_buckets: true}}]", "time: {field: timestamp}").NewDeriver(nil)
	var orders []*Input
	for n := range 10_000 {
		orders = append(orders, &Input{Topic: "in", Value: fmt.Appendf(nil,
			`{"account":"ACC%d","symbol":"aapl","side":"buy","quantity":"%d.%09d","type":"stop_limit","limit":187.25,"stop":"%d","timestamp":%d}`,
			n%500, n, n, n%300, 1729636800000+n*731)})
	}
	took := make([]time.Duration, len(orders))
	var slowest, p99 time.Duration
	for b.Loop() {
		for i, in := range orders {
			began := b.Elapsed()
			if got := d.Derive(in); got.Finding != Keyed {
				b.Fatal(got.Reason)
			}
			took[i] = b.Elapsed() - began
		}
		slices.Sort(took)
		slowest, p99 = max(slowest, took[len(took)-1]), max(p99, took[len(took)*99/100])
	}
	b.ReportMetric(float64(slowest.Nanoseconds()), "ns/slowest")
	b.ReportMetric(float64(p99.Nanoseconds()), "ns/p99")
}
