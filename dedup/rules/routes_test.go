package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
)

func TestParseRoutesWithEverything(t *testing.T) {
	rs := parse(t, richRoutes)
	if len(rs.Routes) != 9 {
		t.Fatalf("%d routes", len(rs.Routes))
	}
	r := rs.Route("full")
	got := fmt.Sprintf("%s %s %d %v %v %v %v %d | %v %v %v %s %v | %s %v %v %v %v %s",
		r.Name, r.Namespace, r.Index, r.Topics, r.Match.In, r.Prepartitioned, r.Secret, r.MaxKeyBytes,
		r.Window, r.Grace, r.Skew, r.Time.Field.Path.Text, r.Time.Format,
		r.Output, r.Duplicates, r.OnMissingKey, r.OnLate, r.OnFuture, r.DeadLetter)
	want := "full space 0 [rich.a rich.b] [signal 7 true] false true 1000 | " +
		"24h0m0s 5m0s 1m0s meta.at rfc3339 | full.out {to full.dup} forward drop clamp full.dead"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	r = rs.Route("plain")
	got = fmt.Sprintf("%s %d %v %v %d %v %v %v %v %v %v %v %s", r.Namespace, r.Index, r.Prepartitioned, r.Secret, r.MaxKeyBytes,
		r.Grace, r.Skew, r.Time == nil, r.Duplicates, r.OnMissingKey, r.OnLate, r.OnFuture, r.DeadLetter)
	if want = "plain 1 false false 4096 10m0s 1h0m0s true {drop } dead_letter dead_letter dead_letter oncebus.dead-letter"; got != want {
		t.Errorf("defaults\ngot  %s\nwant %s", got, want)
	}
	if rs.Route("none") != nil || !rs.NeedsSecret() {
		t.Error("Route or NeedsSecret is wrong")
	}
	routed, prepartitioned := rs.Inputs()
	if fmt.Sprint(routed, prepartitioned) != "[f.outcomes rich.a rich.b rich.c rich.e rich.f rich.o] [rich.d]" {
		t.Errorf("inputs %v %v", routed, prepartitioned)
	}
	claims := rs.Route("claims")
	got = fmt.Sprintf("%v %s %s %v %v %d %d %s | %s %v %d %+v", claims.Mode, claims.Claim.Outcomes, claims.Claim.Replies, claims.Claim.Lease, claims.Claim.Wait,
		claims.Claim.MaxWaiting, claims.Claim.ResultBytes, claims.Claim.Request.Field.Path.Text, claims.Fingerprint[1].String(), claims.Collision, claims.AdjacentStep(), claims.ClaimRule())
	if want = "claim f.outcomes f.replies 1m0s true 3 10 r | b forward 60000 {Lease:60000 HasGroup:false Wait:3 ResultBytes:10}"; got != want {
		t.Errorf("claims\ngot  %s\nwant %s", got, want)
	}
	if c := r.Claim; r.Mode != Plain || c.Lease != DefaultLease || c.Wait || c.ResultBytes != DefaultResultBytes || r.AdjacentStep() != 0 {
		t.Errorf("defaults of claims: %v %+v", r.Mode, c)
	}
	if w := rs.Route("plain").Span(); w != (dedup.Window{Size: 3600_000, Grace: 600_000, Skew: 3600_000}) ||
		rs.Route("plain").RetentionMS() != 2*3600_000+600_000 || !rs.Route("full").Span().ClampFuture {
		t.Errorf("span %+v", w)
	}
}

// richRoutes uses every field of the file.
const richRoutes = `
routes:
  - name: full
    namespace: space
    topics: [rich.a, rich.b]
    match: {field: kind, in: [signal, 7, true]}
    prepartitioned: false
    mode: plain
    key:
      - record_key: true
        normalise: trim
      - header: Idempotency-Key
      - {field: traceId, normalise: [trim, lower]}
      - {fields: [account, request.id], normalise: {account: upper}}
      - {hash: [symbol, price, at], normalise: {price: {decimals: 8}, at: {step: 1m, format: unix_s}}}
      - payload: {exclude: [timestamp, items.*.t]}
      - raw
    secret: true
    max_key_bytes: 1000
    window: 24h
    grace: 5m
    skew: 1m
    time: {field: meta.at, format: rfc3339}
    output: full.out
    duplicates: {to: full.dup}
    count_hits: true
    on_missing_key: forward
    on_late: drop
    on_future: clamp
    dead_letter: full.dead
  - {name: plain, topics: [rich.c], window: 1h, output: plain.out, key: [record_key]}
  - {name: keyed, topics: [rich.d], window: 1h, output: plain.out, prepartitioned: true, duplicates: forward, key: [cloudevent, {payload: {include: [a, "items.0.b"]}}]}
  - {name: order, topics: [rich.o], window: 1h, output: plain.out, key: [{order: {account: acct, step: 5m, format: unix_s}}]}
  - {name: first, topics: [rich.e], match: {header: type, in: [x]}, window: 1h, output: plain.out, key: [{field: id}, {payload: {}}]}
  - {name: second, topics: [rich.e], match: {field: type, in: [x, "7", 8]}, on_late: forward, window: 1h, output: plain.out, key: [{hash: [b, a, a.0.c]}]}
  - {name: third, topics: [rich.e], match: {field: type, in: [x, y]}, window: 1h, output: plain.out, key: [raw]}
  - {name: claims, topics: [rich.f], mode: claim, outcomes: f.outcomes, replies: f.replies, while_in_progress: wait, max_waiting: 3, lease: 1m, result_limit: 10, request: {field: r}, fingerprint: [a, b], collision: forward, time: {field: timestamp}, window: 1h, output: plain.out, key: [{order: {adjacent_buckets: true}}, {field: id}]}
  - {name: rest, topics: [rich.e], window: 1h, output: plain.out, key: [{raw: true}], time: {field: t}}
`

// TestMistakesInRoutes has a file for each mistake; messages are compared whole.
func TestMistakesInRoutes(t *testing.T) {
	const valid = "routes:\n- {name: a, topics: [in], window: 1h, output: out, key: [raw]}\n"
	with := func(field string) string { // valid with one more field on line 3
		return strings.Replace(valid, "key: [raw]}", "key: [raw],\n    "+field+"}", 1)
	}
	claim := func(field string) string { return with("mode: claim, outcomes: o, replies: r, " + field) }
	key := func(source string) string { return strings.Replace(valid, "[raw]", "\n    ["+source+"]", 1) }
	second := func(route string) string { return valid + "- {" + route + "}\n" } // on line 3
	for _, v := range []struct{ name, file, want string }{
		{"empty", "", "r.yaml:1: the file is empty: want routes: with at least one route"},
		{"no routes", "{}", "r.yaml:1: routes: is required"},
		{"empty list", "routes: []", "r.yaml:1: routes: must not be empty"},
		{"list for the file", "- a", "r.yaml:1: want fields (routes), found a list"},
		{"scalar route", "routes:\n- a", "r.yaml:2: routes[0]: want fields (" + fieldNames(routeFields) + `), found "a"`},
		{"syntax", "routes:\n- {name: a", "r.yaml:3: not valid YAML: did not find expected ',' or '}' (while parsing a flow mapping, begun in line 2)"},
		{"control character", "routes: \x00", "r.yaml:1: not valid YAML: control characters are not allowed (value: 0)"},
		{"two documents", valid + "---\na: 1\n", "r.yaml:3: a second YAML document: want one"},
		{"alias", "routes:\n- &a {name: x}\n- *a", "r.yaml:2: anchor &a: anchors and aliases are not supported, write the value out\n" +
			"r.yaml:3: alias *a: anchors and aliases are not supported, write the value out"},
		{"unknown field", with("windw: 1h"), `r.yaml:3: routes[0]: unknown field "windw"; did you mean window?`},
		{"name of an old build", with("missing_key: drop"), `r.yaml:3: routes[0]: unknown field "missing_key"; did you mean on_missing_key?`},
		{"merge key", with("<<: {}"), `r.yaml:3: routes[0]: unknown field "<<"; known are ` + fieldNames(routeFields)},
		{"field twice", with("window: 2h"), "r.yaml:3: routes[0].window: set twice, first in line 2"},
		{"list as field name", with("? [x]\n    : y"), "r.yaml:3: routes[0]: want a field name, found a list"},
		{"everything missing", "routes:\n- prepartitioned: true\n", "r.yaml:2: routes[0].name: is required\nr.yaml:2: routes[0].topics: is required\n" +
			"r.yaml:2: routes[0].key: is required\nr.yaml:2: routes[0].window: is required\nr.yaml:2: routes[0].output: is required"},
		{"bad name", strings.Replace(valid, "name: a", "name: A b", 1), `r.yaml:2: routes[0].name: "A b": want 1 to 64 of a-z, 0-9, dot, dash and underscore`},
		{"long namespace", with("namespace: " + strings.Repeat("n", 65)), `r.yaml:3: routes[0].namespace: "` + strings.Repeat("n", 65) + `": want 1 to 64 of a-z, 0-9, dot, dash and underscore`},
		{"empty name", strings.Replace(valid, "name: a", "name: ''", 1), "r.yaml:2: routes[0].name: must not be empty"},
		{"mapping for a name", strings.Replace(valid, "name: a", "name: {}", 1), "r.yaml:2: routes[0].name: want a string, found a mapping"},
		{"match is no mapping", with("match: x"), `r.yaml:3: routes[0].match: want fields (field, header, in, normalise), found "x"`},
		{"match of a list", with("match: {field: a, in: [[b]]}"), "r.yaml:3: routes[0].match.in[0]: want a value, found a list"},
		{"match of a number beyond float64", with("match: {field: a, in: [9007199254740993]}"), "r.yaml:3: routes[0].match.in[0]: the number has more digits than float64; send it as a string: put it in quotes to match a string"},
		{"lone surrogate", strings.Replace(valid, "name: a", `name: "\ud800"`, 1), "r.yaml:2: not valid YAML: found invalid Unicode character escape code (while scanning a quoted scalar, begun in line 2)"},
		{"mistake in a second document", valid + "---\n[", "r.yaml:5: not valid YAML: did not find expected node content (while parsing a flow node, begun in line 5)"},
		{"source is a list", key("[raw]"), "r.yaml:3: routes[0].key[0]: want fields (" + fieldNames(sourceFields) + "), found a list"},
		{"list of a number", key("{fields: [1]}"), "r.yaml:3: routes[0].key[0].fields[0]: want a string, found 1: put it in quotes"},
		{"normaliser is a list of lists", key("{field: a, normalise: [[trim]]}"), "r.yaml:3: routes[0].key[0].normalise[0]: want fields (decimals, step, format), found a list"},
		{"number as name", strings.Replace(valid, "name: a", "name: 7", 1), "r.yaml:2: routes[0].name: want a string, found 7: put it in quotes"},
		{"null output", strings.Replace(valid, "output: out", "output: ", 1), "r.yaml:2: routes[0].output: want a string, found nothing"},
		{"bad topic", strings.Replace(valid, "[in]", "[a b]", 1), `r.yaml:2: routes[0].topics: "a b" is no topic name: want 1 to 249 of a-z, A-Z, 0-9, dot, dash and underscore`},
		{"topic of dots", with("dead_letter: .."), `r.yaml:3: routes[0].dead_letter: ".." is no topic name: want 1 to 249 of a-z, A-Z, 0-9, dot, dash and underscore`},
		{"topic twice", strings.Replace(valid, "[in]", "[in, in]", 1), "r.yaml:2: routes[0].topics: in is listed twice"},
		{"key not a list", strings.Replace(valid, "[raw]", "payment_id", 1), `r.yaml:2: routes[0].key: want a list such as [{field: payment_id}], found "payment_id"`},
		{"topics not a list", strings.Replace(valid, "[in]", "in", 1), `r.yaml:2: routes[0].topics: want a list such as [in], found "in"`},
		{"bad duration", with("grace: soon"), `r.yaml:3: routes[0].grace: want a duration such as 24h, 10m or 500ms, found "soon"`},
		{"duration without unit", with("grace: 10"), "r.yaml:3: routes[0].grace: want a duration such as 24h, 10m or 500ms, found 10"},
		{"days", with("grace: 7d"), `r.yaml:3: routes[0].grace: want a duration such as 24h, 10m or 500ms, found "7d"`},
		{"negative duration", with("grace: -1m"), "r.yaml:3: routes[0].grace: -1m is too short: at least 0s"},
		{"fine duration", with("skew: 1500us"), "r.yaml:3: routes[0].skew: 1500us is finer than a millisecond"},
		{"skew beyond window and grace", with("skew: 71m"), "r.yaml:3: routes[0].skew: 1h11m0s is longer than window and grace, 1h10m0s: " +
			"one sender with a fast clock could make every event of the others late; want at most 1h10m0s"},
		{"long duration", with("skew: 100000h"), "r.yaml:3: routes[0].skew: 100000h is too long: at most 87600h0m0s (10 years)"},
		{"window of zero", strings.Replace(valid, "1h", "0s", 1), "r.yaml:2: routes[0].window: 0s is too short: at least 1ms"},
		{"prepartitioned is no boolean", with("prepartitioned: yes"), `r.yaml:3: routes[0].prepartitioned: want true or false, found "yes"`},
		{"claim mode without topics", with("mode: claim"), "r.yaml:2: routes[0].outcomes: is required\nr.yaml:2: routes[0].replies: is required"},
		{"unknown mode", with("mode: fast"), `r.yaml:3: routes[0].mode: want plain or claim, found "fast"`},
		{"claim fields in plain mode", with("outcomes: o, while_in_progress: wait"), "r.yaml:3: routes[0].outcomes: belongs to mode: claim\nr.yaml:3: routes[0].while_in_progress: belongs to mode: claim"},
		{"prepartitioned claims", claim("prepartitioned: true"), "r.yaml:3: routes[0].prepartitioned: a claim's outcome reaches its task through the repartition topic only: leave prepartitioned out"},
		{"duplicates of claims", claim("duplicates: forward"), "r.yaml:3: routes[0].duplicates: duplicates get a reply in claim mode: leave duplicates out"},
		{"waiting for nothing", claim("max_waiting: 3"), "r.yaml:3: routes[0].max_waiting: needs while_in_progress: wait, because otherwise no duplicate waits"},
		{"too many wait", claim("while_in_progress: wait, max_waiting: 257"), "r.yaml:3: routes[0].max_waiting: want a whole number from 1 to 256, found 257"},
		{"lease beyond the window", claim("lease: 2h"), "r.yaml:3: routes[0].lease: 2h0m0s is longer than the window of 1h0m0s, and the claim expires with the window"},
		{"result limit", claim("result_limit: 1000000"), "r.yaml:3: routes[0].result_limit: want a whole number from 0 to 524288, found 1000000"},
		{"request of both", claim("request: {field: a, header: b}"), "r.yaml:3: routes[0].request: want either field or header"},
		{"request in an own header", claim("request: {header: Oncebus-Key}"), "r.yaml:3: routes[0].request.header: oncebus removes oncebus-* headers from incoming records: name another header"},
		{"outcomes on an input", with("mode: claim, outcomes: in, replies: r"), "r.yaml:3: routes[0].outcomes: in is an input topic of the route in line 2: an outcome is not an event"},
		{"replies on an input", with("mode: claim, outcomes: o, replies: in"), "r.yaml:3: routes[0].replies: in is an input topic of the route in line 2: the record would be processed again and again"},
		{"replies on outcomes", with("mode: claim, outcomes: o, replies: o"), "r.yaml:3: routes[0].replies: o is the route's outcomes topic: oncebus would read its replies as outcomes\n" +
			"r.yaml:3: routes[0].replies: o is an input topic of the route in line 2: the record would be processed again and again"},
		{"replies on an output", with("mode: claim, outcomes: o, replies: out"), "r.yaml:3: routes[0].replies: out is the output of the route in line 2, which has every event once; to have duplicates there, write duplicates: forward"},
		{"answers on an input", claim("answers: in"), "r.yaml:3: routes[0].answers: in is an input topic of the route in line 2: the record would be processed again and again"},
		{"answers on outcomes", claim("answers: o"), "r.yaml:3: routes[0].answers: o is the route's outcomes topic: oncebus would read its answers as outcomes\n" +
			"r.yaml:3: routes[0].answers: o is an input topic of the route in line 2: the record would be processed again and again"},
		{"answers on replies", claim("answers: r"), "r.yaml:3: routes[0].answers: r is the route's replies topic: senders would read the answers to executors as replies"},
		{"answers of a plain route", with("answers: x"), "r.yaml:3: routes[0].answers: belongs to mode: claim"},
		{"namespace of other answers", claim("answers: x}\n- {name: b, namespace: a, topics: [x2], window: 1h, output: out, key: [raw], mode: claim, outcomes: o, replies: r"),
			`r.yaml:4: routes[1].namespace: namespace "a" is shared with the route in line 2, which has another mode, or other outcomes, replies, answers, lease, executor_group, while_in_progress, max_waiting or result_limit`},
		{"namespace of other claims", claim("lease: 1m}\n- {name: b, namespace: a, topics: [x], window: 1h, output: out, key: [raw], mode: claim, outcomes: o, replies: r"),
			`r.yaml:4: routes[1].namespace: namespace "a" is shared with the route in line 2, which has another mode, or other outcomes, replies, answers, lease, executor_group, while_in_progress, max_waiting or result_limit`},
		{"collision", with("collision: drop"), `r.yaml:3: routes[0].collision: want dead_letter or forward or reject, found "drop"`},
		{"fingerprint of a detail of nothing", with("fingerprint: [a, []]"), "r.yaml:3: routes[0].fingerprint[1]: must not be empty"},
		{"fingerprint with a path twice", with("fingerprint: [[a, b], a, [a, b]]"), `r.yaml:3: routes[0].fingerprint[2]: path "a, else b" is listed twice`},
		{"match with other steps", with("match: {field: a, normalise: [{decimals: 2}], in: [1]}"), "r.yaml:3: routes[0].match.normalise: want trim, upper or lower"},
		{"match of a value that normalise changes", with("match: {field: a, normalise: [trim, upper], in: [RESET, reset]}"), `r.yaml:3: routes[0].match.in: "reset" never matches, because normalise makes it "RESET"`},
		{"fingerprint without fields", with("fingerprint: {normalise: {a: upper}}"), "r.yaml:3: routes[0].fingerprint.fields: is required"},
		{"fingerprint that normalises another field", with("fingerprint: {fields: [a, [b, c]], normalise: {d: upper}}"), `r.yaml:3: routes[0].fingerprint.normalise: unknown field "d"; known are a, b, c`},
		{"fingerprint with an unknown step", with("fingerprint: {fields: [a], normalise: {a: up}}"), "r.yaml:3: routes[0].fingerprint.normalise.a: want trim, upper, lower, {decimals: N} or {step: DURATION}, found \"up\""},
		{"fingerprint of one path", with("fingerprint: a"), `r.yaml:3: routes[0].fingerprint: want a list such as [a], found "a"`},
		{"fingerprint of nothing", with("fingerprint: []"), "r.yaml:3: routes[0].fingerprint: must not be empty"},
		{"secret in the file", with("secret: hunter2"), "r.yaml:3: routes[0].secret: want true or false: the secret itself comes from ONCEBUS_KEY_SECRET, never from the file"},
		{"unknown policy", with("on_late: ignore"), `r.yaml:3: routes[0].on_late: want dead_letter or forward or drop, found "ignore"`},
		{"policy of another field", with("on_missing_key: clamp"), `r.yaml:3: routes[0].on_missing_key: want dead_letter or forward or drop, found "clamp"`},
		{"future", with("on_future: forward"), `r.yaml:3: routes[0].on_future: want dead_letter or clamp, found "forward"`},
		{"duplicates", with("duplicates: flag"), `r.yaml:3: routes[0].duplicates: want drop, forward or {to: TOPIC}, found "flag"`},
		{"duplicates to nowhere", with("duplicates: {}"), "r.yaml:3: routes[0].duplicates.to: is required"},
		{"key limit", with("max_key_bytes: 0"), "r.yaml:3: routes[0].max_key_bytes: want a whole number from 1 to 1048576, found 0"},
		{"match of both", with("match: {field: a, header: b, in: [c]}"), "r.yaml:3: routes[0].match: want either field or header"},
		{"match of nothing", with("match: {field: a}"), "r.yaml:3: routes[0].match.in: is required"},
		{"match of null", with("match: {field: a, in: [~]}"), "r.yaml:3: routes[0].match.in[0]: want a value: write null for a field that is absent or null"},
		{"match of a hex number", with("match: {field: a, in: [0x10]}"), "r.yaml:3: routes[0].match.in[0]: want a decimal number: put it in quotes to match a string"},
		{"match of our header", with("match: {header: Oncebus-Key, in: [a]}"), "r.yaml:3: routes[0].match: oncebus removes oncebus-* headers from incoming records: name another header"},
		{"time without field", with("time: {format: unix_s}"), "r.yaml:3: routes[0].time.field: is required"},
		{"time format", with("time: {field: t, format: iso}"), `r.yaml:3: routes[0].time.format: want unix_ms or unix_s or rfc3339, found "iso"`},

		{"unknown source", key("fiel"), `r.yaml:3: routes[0].key[0]: want a source such as {field: PATH}, or one of record_key, raw, cloudevent, order, form; found "fiel"`},
		{"source in need of more", key("field"), `r.yaml:3: routes[0].key[0]: want a source such as {field: PATH}, or one of record_key, raw, cloudevent, order, form; found "field"`},
		{"two sources in one", key("{field: a, header: b}"), "r.yaml:3: routes[0].key[0]: want exactly one source, found 2: each source is an entry of its own"},
		{"no source in one", key("{normalise: trim}"), "r.yaml:3: routes[0].key[0]: want exactly one source, found 0: each source is an entry of its own"},
		{"source twice", key("raw, {field: a}, {field: a, normalise: trim}"), "r.yaml:3: routes[0].key[2]: field: a is listed twice"},
		{"no sources", key(""), "r.yaml:3: routes[0].key: must not be empty"},
		{"source switched off", key("{raw: false}"), "r.yaml:3: routes[0].key[0].raw: want true: leave the source out to switch it off"},
		{"our header", key("{header: oncebus-key}"), "r.yaml:3: routes[0].key[0].header: oncebus removes oncebus-* headers from incoming records: name another header"},
		{"empty segment", key("{field: a..b}"), `r.yaml:3: routes[0].key[0].field: path "a..b" has an empty segment (\. is a dot inside a name)`},
		{"star in field", key("{field: a.*}"), `r.yaml:3: routes[0].key[0].field: path "a.*" has a star, which only payload include and exclude take: write a star in a name as \*`},
		{"bad escape", key(`{field: 'a\n'}`), `r.yaml:3: routes[0].key[0].field: path "a\\n" has a backslash before something other than a dot, a star, a dollar or a backslash`},
		{"needless escape", key(`{field: 'a\*'}`), `r.yaml:3: routes[0].key[0].field: path "a\\*" has \* inside a longer name, where the star needs no backslash`},
		{"JSONPath", key("{field: $.traceId}"), `r.yaml:3: routes[0].key[0].field: path "$.traceId" begins with $, as in JSONPath: leave "$." out, or write \$ for a member of that name`},
		{"JSONPath of the whole", key("{payload: {exclude: [$]}}"), `r.yaml:3: routes[0].key[0].payload.exclude[0]: path "$" begins with $, as in JSONPath: leave "$." out, or write \$ for a member of that name`},
		{"needless dollar escape", key(`{field: 'a.\$'}`), `r.yaml:3: routes[0].key[0].field: path "a.\\$" has \$ where the dollar needs no backslash: only a first name that is $ alone needs one`},
		{"internal topic", strings.Replace(valid, "output: out", "output: __consumer_offsets", 1), "r.yaml:2: routes[0].output: __consumer_offsets: names that begin with __ are Kafka's own topics"},
		{"deep path", key("{field: " + strings.Repeat("a.", 32) + "a}"), `r.yaml:3: routes[0].key[0].field: path "` + strings.Repeat("a.", 32) + `a" has 33 segments, at most 32 are allowed`},
		{"path is a number", key("{field: 0}"), "r.yaml:3: routes[0].key[0].field: want a string, found 0: put it in quotes"},
		{"path twice", key("{fields: [a, b, a]}"), `r.yaml:3: routes[0].key[0].fields[2]: path "a" is listed twice`},
		{"optional fields of fields", key("{fields: [a, b], optional: [b]}"), "r.yaml:3: routes[0].key[0].optional: fields takes no optional fields: hash does"},
		{"an optional field that is not hashed", key("{hash: [a], optional: [b]}"), `r.yaml:3: routes[0].key[0].optional: path "b" is not one of hash: add it there`},
		{"nothing but optional fields", key("{hash: [a, b], optional: [b, a]}"), "r.yaml:3: routes[0].key[0].optional: every path is optional, so that events without any would have one key: leave out those that each event has"},
		{"collision rejected in plain mode", with("fingerprint: [a], collision: reject"), "r.yaml:3: routes[0].collision: reject belongs to mode: claim, because a sender in plain mode gets no reply: write dead_letter"},
		{"include and exclude", key("{payload: {include: [a], exclude: [b]}}"), "r.yaml:3: routes[0].key[0].payload: want either include or exclude"},
		{"covered path", key("{payload: {exclude: [a.*, b, a.c.d]}}"), `r.yaml:3: routes[0].key[0].payload.exclude: path "a.c.d" has no effect: "a.*" covers it`},
		{"order field", key("{order: {acount: a}}"), `r.yaml:3: routes[0].key[0].order: unknown field "acount"; did you mean account?`},
		{"order step", key("{order: {step: 0s}}"), "r.yaml:3: routes[0].key[0].order.step: 0s is too short: at least 1ms"},
		{"normaliser", key("{field: a, normalise: title}"), `r.yaml:3: routes[0].key[0].normalise: want trim, upper, lower, {decimals: N} or {step: DURATION}, found "title"`},
		{"normaliser of two", key("{field: a, normalise: [trim, {decimals: 2, step: 1m}]}"), "r.yaml:3: routes[0].key[0].normalise[1]: want {decimals: N}, {step: DURATION} or {step: DURATION, format: FORMAT}"},
		{"decimals with format", key("{field: a, normalise: {decimals: 2, format: unix_s}}"), "r.yaml:3: routes[0].key[0].normalise: want {decimals: N}, {step: DURATION} or {step: DURATION, format: FORMAT}"},
		{"decimals", key("{field: a, normalise: {decimals: 101}}"), "r.yaml:3: routes[0].key[0].normalise.decimals: want a whole number from 0 to 100, found 101"},
		{"normaliser of raw", key("{raw: true, normalise: trim}"), "r.yaml:3: routes[0].key[0].normalise: raw takes no normalisers"},
		{"normaliser of all fields", key("{fields: [a, b], normalise: trim}"), `r.yaml:3: routes[0].key[0].normalise: want fields (a, b), found "trim"`},
		{"normaliser of another field", key("{hash: [a, b], normalise: {c: trim}}"), `r.yaml:3: routes[0].key[0].normalise: unknown field "c"; known are a, b`},

		{"same name", second("name: a, topics: [b], window: 1h, output: out, key: [raw]"), `r.yaml:3: routes[1].name: "a" is the name of the route in line 2`},
		{"two routes for a topic", second("name: b, topics: [in], window: 1h, output: out, key: [raw]"),
			"r.yaml:3: routes[1].topics: the route gets nothing of in: the one in line 2 takes every record before it; give that one a match, or move it down"},
		{"match behind a catch-all", second("name: b, topics: [in], match: {field: a, in: [x]}, window: 1h, output: out, key: [raw]"),
			"r.yaml:3: routes[1].topics: the route gets nothing of in: the one in line 2 takes every record before it; give that one a match, or move it down"},
		{"match within a match", strings.Replace(valid, "key:", "match: {field: k, in: [x, y]}, key:", 1) + "- {name: b, topics: [in], match: {field: k, in: [y]}, window: 1h, output: out, key: [raw]}",
			"r.yaml:3: routes[1].topics: the route gets nothing of in: the one in line 2 takes every record before it; give that one a match, or move it down"},
		{"number in another spelling", strings.Replace(valid, "key:", "match: {field: k, in: [1.10]}, key:", 1),
			"r.yaml:2: routes[0].match.in[0]: the number 1.10 is 1.1 in every spelling: write that, or put 1.10 in quotes to match a string"},
		{"number with an exponent", strings.Replace(valid, "key:", "match: {field: k, in: [1e3]}, key:", 1),
			"r.yaml:2: routes[0].match.in[0]: the number 1e3 is 1000 in every spelling: write that, or put 1e3 in quotes to match a string"},
		{"number that no event has", strings.Replace(valid, "key:", "match: {field: k, in: [1e400]}, key:", 1),
			"r.yaml:2: routes[0].match.in[0]: 1e400 is a number that no event has: put it in quotes to match a string"},
		{"prepartitioned and routed", strings.Replace(valid, "key:", "match: {field: k, in: [x]}, key:", 1) + "- {name: b, topics: [in], prepartitioned: true, window: 1h, output: out, key: [raw]}",
			"r.yaml:3: routes[1].prepartitioned: in is prepartitioned in one route and not in another (line 2)"},
		{"prepartitioned with two topics", "routes:\n- {name: a, topics: [x, y], prepartitioned: true, window: 1h, output: out, key: [raw]}",
			"r.yaml:2: routes[0].topics: a prepartitioned route takes one topic, because the state of each prepartitioned topic is separate: duplicates on two topics would not be found; write a route for each, or leave prepartitioned out"},
		{"output is an input", second("name: b, topics: [x], window: 1h, output: in, key: [raw]"),
			"r.yaml:3: routes[1].output: in is an input topic of the route in line 2: an app reads nothing that it writes; run the second step as an app of its own, with another ONCEBUS_APP_ID"},
		{"output is its own input", "routes:\n- {name: a, topics: [x], window: 1h, output: x, key: [raw]}",
			"r.yaml:2: routes[0].output: x is an input topic of the route in line 2: the record would be processed again and again"},
		{"duplicates to an input", with("duplicates: {to: in}"), "r.yaml:3: routes[0].duplicates: in is an input topic of the route in line 2: the record would be processed again and again"},
		{"dead letters to an input", strings.Replace(valid, "[in]", "[oncebus.dead-letter]", 1),
			"r.yaml:2: routes[0].dead_letter: oncebus.dead-letter is an input topic of the route in line 2: the record would be processed again and again"},
		{"duplicates to an output", with("duplicates: {to: out}"), "r.yaml:3: routes[0].duplicates: out is the output of the route in line 2, which has every event once; to have duplicates there, write duplicates: forward"},
		{"namespace of another window", second("name: b, namespace: a, topics: [x], window: 2h, output: out, key: [raw]"),
			`r.yaml:3: routes[1].namespace: namespace "a" is shared with the route in line 2, which has another window, grace, skew or on_future`},
		{"namespace of another key", second("name: b, namespace: a, topics: [x], window: 1h, output: out, key: [record_key]"),
			`r.yaml:3: routes[1].namespace: namespace "a" is shared with the route in line 2, which derives keys in another way`},
		{"namespace of a prepartitioned topic", second("name: b, namespace: a, topics: [x], prepartitioned: true, window: 1h, output: out, key: [raw]"),
			`r.yaml:3: routes[1].namespace: namespace "a" is shared with the route in line 2, but the state of a prepartitioned topic is separate: duplicates on two topics would not be found`},
	} {
		t.Run(v.name, func(t *testing.T) {
			rs, err := ParseRoutes("r.yaml", []byte(v.file))
			if err == nil {
				t.Fatalf("no mistake found in\n%s", v.file)
			}
			if rs != nil || withoutColumns(err) != v.want {
				t.Errorf("got  %v\nwant %s\nin\n%s", err, v.want, v.file)
			}
		})
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	_, err := ParseRoutes("routes.yaml", []byte(`routes:
  - name: a
    topics: [in]
    window: soon
    key: [{field: a..b}, {hash: []}]
    output: in
  - name: a
    topics: [in]
    secret: 12345
    colour: red
`))
	var lines []string
	for line := range strings.Lines(withoutColumns(err)) {
		lines = append(lines, strings.Join(strings.Fields(line)[:2], " "))
	}
	want := []string{
		"routes.yaml:4: routes[0].window:",
		"routes.yaml:5: routes[0].key[0].field:",
		"routes.yaml:5: routes[0].key[1].hash:",
		"routes.yaml:6: routes[0].output:",
		"routes.yaml:7: routes[1].key:",
		"routes.yaml:7: routes[1].window:",
		"routes.yaml:7: routes[1].output:",
		"routes.yaml:7: routes[1].name:",
		"routes.yaml:8: routes[1].topics:",
		"routes.yaml:9: routes[1].secret:",
		"routes.yaml:10: routes[1]:",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%v\n%s", err, strings.Join(lines, "\n"))
	}
	if strings.Contains(err.Error(), "12345") {
		t.Error("the secret is in the message")
	}
}

func TestSharedNamespace(t *testing.T) {
	rs := parse(t, `routes:
- {name: a, namespace: n, topics: [x], window: 1h, output: out, key: [{hash: [a, b]}]}
- {name: b, namespace: n, topics: [y], window: 60m, output: out2, key: [{hash: [b, a]}]}
`)
	payload := []byte(`{"a":1,"b":2}`)
	d := rs.NewDeriver(nil)
	if d.Derive(&Input{Topic: "x", Value: payload}).Digest != d.Derive(&Input{Topic: "y", Value: payload}).Digest {
		t.Error("equal keys of one namespace have different digests")
	}
}

func TestTooManyNamespaces(t *testing.T) {
	file := func(n int) []byte {
		var b strings.Builder
		b.WriteString("routes:\n")
		for i := range n {
			fmt.Fprintf(&b, "- {name: r%d, topics: [t%d], window: 1h, output: out, key: [raw]}\n", i, i)
		}
		return []byte(b.String())
	}
	if _, err := ParseRoutes("r", file(255)); err != nil {
		t.Error(err)
	}
	if _, err := ParseRoutes("r", file(256)); err == nil || withoutColumns(err) != "r:257: routes[255]: one namespace too many: at most 255" {
		t.Error(err)
	}
}

func TestHostileRoutesFiles(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a: &a [x, x, x, x, x, x, x, x]\n")
	for c := 'b'; c <= 'z'; c++ {
		fmt.Fprintf(&bomb, "%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for name, file := range map[string]string{
		"aliases": bomb.String(),
		"depth":   strings.Repeat("[", 1<<20-1),
		"indent":  strings.Repeat("- ", 1<<18),
		"size":    strings.Repeat("#", 1<<20+1),
		"bytes":   "routes: \xff\xfe",
	} {
		if _, err := ParseRoutes("r", []byte(file)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestKeyRule(t *testing.T) {
	rule := func(key string, more ...string) string { return oneRoute(t, key, more...).Routes[0].KeyRule() }
	same := func(a, b string) {
		t.Helper()
		if rule(a) != rule(b) {
			t.Errorf("different rules\n%s\n%s", rule(a), rule(b))
		}
	}
	same("[raw]", "[{raw: true}]")
	same("[{hash: [b, a]}]", "[{hash: [a, b]}]")
	same("[order]", "[{order: {step: 60s, symbol: symbol, format: unix_ms}}]")
	same("[{payload: {exclude: [b, a]}}]", "[{payload: {exclude: [a, b]}}]")
	same("[{field: a, normalise: trim}]", "[{field: a, normalise: [trim]}]")
	same("[{field: a, normalise: {step: 1m}}]", "[{field: a, normalise: {step: 60s}}]")
	if rule("[raw]") != rule("[raw]", "duplicates: forward", "grace: 1m", "on_late: drop") {
		t.Error("the rule depends on settings that do not change the key")
	}
	seen := map[string]string{}
	for _, v := range [][]string{
		{"[raw]"}, {"[raw]", "secret: true"}, {"[raw]", "namespace: other"}, {"[record_key]"}, {"[{header: a}]"}, {"[{field: a}]"},
		{"[{record_key: true, normalise: upper}]"}, {"[{header: a, normalise: upper}]"}, {"[{field: a, normalise: upper}]"},
		{"[{field: a, normalise: [trim, upper]}]"}, {"[{field: a, normalise: [upper, trim]}]"}, {"[{field: a, normalise: {decimals: 1}}]"},
		{"[{field: a, normalise: {step: 1m}}]"}, {"[{field: a, normalise: {step: 1m, format: unix_ms}}]"},
		{"[{fields: [a, b]}]"}, {"[{fields: [b, a]}]"}, {"[{fields: ['a,b']}]"}, {"[{hash: [a, b]}]"}, {"[{hash: [a, b], normalise: {a: trim}}]"},
		{"[{payload: {}}]"}, {"[{payload: {include: [a]}}]"}, {"[{payload: {exclude: [a]}}]"}, {"[cloudevent]"}, {"[order]"},
		{"[{order: {record_time: true}}]"}, {"[{order: {step: 2m}}]"}, {"[{order: {account: a}}]"}, {"[{order: {format: unix_s}}]"}, {"[raw, record_key]"}, {"[record_key, raw]"},
	} {
		got := rule(v[0], v[1:]...)
		if was, ok := seen[got]; ok {
			t.Errorf("%v and %s have the rule %s", v, was, got)
		}
		seen[got] = fmt.Sprint(v)
	}
	// The text is pinned in manifests: it never changes for the same file.
	const want = `v1 namespace=space secret=true key=record_key(trim);header("Idempotency-Key");field("traceId"|trim|lower);` +
		`fields("account"|upper,"request.id");hash("at"|step(60000ms,unix_s),"price"|decimals(8),"symbol");` +
		`payload(exclude,"items.*.t","timestamp");raw()`
	if got := parse(t, richRoutes).Route("full").KeyRule(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	const wantOrder = `v1 namespace=order secret=false key=order("acct","symbol","side","quantity","timestamp","type","limit","stop",unix_s,300000ms)`
	if got := parse(t, richRoutes).Route("order").KeyRule(); got != wantOrder {
		t.Errorf("got  %s\nwant %s", got, wantOrder)
	}
}

// TestDefaultSkewFollowsTheWindow: one fast clock moves stream time by the skew at
// most, so that events late by no more than the grace are still judged.
func TestDefaultSkewFollowsTheWindow(t *testing.T) {
	for window, want := range map[string]time.Duration{"1m": time.Minute, "1h": time.Hour, "24h": time.Hour} {
		rs := parse(t, "routes:\n- {name: a, topics: [in], window: "+window+", grace: 10s, output: out, key: [raw]}\n")
		if got := rs.Routes[0].Skew; got != want {
			t.Errorf("window %s: the default of skew is %v, want %v", window, got, want)
		}
	}
}
