package rules

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"oncebus/dedup"
)

// httpRoutes uses every field of the http part.
const httpRoutes = `
routes:
  - name: full
    topics: [a, b]
    match: {header: x-kind, in: [signal]}
    mode: claim
    outcomes: o
    replies: r
    key: [{header: idempotency-key}, {header: x-id}, record_key]
    window: 1h
    output: out
    http:
      path: /hooks/trading-view:1
      methods: [PUT, POST]
      topic: b
      headers: [X-Kind, X-ID]
      signature:
        scheme: hmac
        secret: TRADING_VIEW2
        tolerance: 59m
        header: X-Signature
        algorithm: sha512
        encoding: base64
        prefix: "v1="
        timestamp_header: X-Time
        separator: ":"
      answer: verdict
      timeout: 3s
      on_timeout: 202
      on_kafka_unavailable: wait
      max_body: 65536
      max_requests: 100
      rate: {per_second: 1000, burst: 2000}
      rate_per_source: {per_second: 0.5, burst: 1}
      require_key: false
      outcomes: {signature: {scheme: github, secret: EXECUTOR}}
      responses:
        unique: {status: 200, body: ok, content_type: text/plain; charset=utf-8}
        in_progress: {status: 409, body: '{"error":"DUPLICATE_REQUEST"}'}
        limited: {status: 429}
  - {name: plain, topics: [c], window: 1h, output: out, key: [{field: id}], http: {path: /c, signature: {scheme: stripe, secret: C}}}
  - {name: open, topics: [d], on_missing_key: drop, prepartitioned: true, window: 1h, output: out, key: [{field: id}], http: {path: /d, answer: async, signature: {scheme: none}}}
  - {name: hmac, topics: [e], window: 1h, output: out, key: [{field: id}], http: {path: /e, signature: {scheme: hmac, secret: E, header: X-Sig}}}
  - {name: stamped, topics: [f], on_missing_key: forward, window: 1h, output: out, key: [{field: id}],
     http: {path: /f, require_key: true, responses: {}, signature: {scheme: hmac, secret: E, header: X-Sig, timestamp_header: X-Time}}}
  - {name: bearer, topics: [g], window: 1s, output: out, key: [{field: id}], http: {path: /g, signature: {scheme: bearer, secret: G}}}
`

func TestHTTPParts(t *testing.T) {
	rs := parse(t, httpRoutes)
	h := rs.Route("full").HTTP
	got := fmt.Sprintf("%s %v %s %v | %v %+v | %+v | %v %v %v %v %d %d %v %v %v | %+v", h.Path, h.Methods, h.Topic, h.Headers, h.Signature.Scheme, h.Signature,
		*h.Outcomes, h.Verdict, h.Timeout, h.AcceptOnTimeout, h.WaitForKafka, h.MaxBody, h.MaxRequests, h.Rate, h.SourceRate, h.RequireKey, h.Responses)
	want := "/hooks/trading-view:1 [POST PUT] b [x-id x-kind] | " +
		"hmac {Scheme:hmac Secret:TRADING_VIEW2 Tolerance:59m0s URL: Query: Header:X-Signature Algorithm:sha512 Encoding:base64 Prefix:v1= TimestampHeader:X-Time Separator::} | " +
		"{Scheme:github Secret:EXECUTOR Tolerance:0s URL: Query: Header: Algorithm: Encoding: Prefix: TimestampHeader: Separator:} | " +
		"true 3s true true 65536 100 {1000 2000} {0.5 1} false | " +
		"map[unique:{Status:200 Body:ok ContentType:text/plain; charset=utf-8} limited:{Status:429 Body: ContentType:} " +
		`in_progress:{Status:409 Body:{"error":"DUPLICATE_REQUEST"} ContentType:application/json}]`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}

	h = rs.Route("plain").HTTP
	if h.Signature != (Signature{Scheme: Stripe, Secret: "C", Tolerance: 5 * time.Minute}) {
		t.Errorf("stripe: %+v", h.Signature)
	}
	if fmt.Sprint(h.Methods) != "[POST]" || h.Topic != "c" || h.Headers != nil || h.Outcomes != nil || !h.Verdict || h.Timeout != 10*time.Second ||
		h.AcceptOnTimeout || h.WaitForKafka || h.MaxBody != 1<<20 || h.Rate != (Rate{}) || h.SourceRate != (Rate{}) || !h.RequireKey || len(h.Responses) != 0 {
		t.Errorf("defaults: %+v", h)
	}
	if h = rs.Route("open").HTTP; h.Signature != (Signature{Scheme: NoSignature}) || h.Verdict || h.RequireKey {
		t.Errorf("open: %+v", h)
	}
	if s := rs.Route("hmac").HTTP.Signature; s != (Signature{Scheme: HMAC, Secret: "E", Header: "X-Sig", Algorithm: "sha256", Encoding: "hex"}) {
		t.Errorf("hmac: %+v", s)
	}
	h = rs.Route("stamped").HTTP
	if s := h.Signature; s.TimestampHeader != "X-Time" || s.Separator != "." || s.Tolerance != DefaultTolerance || !h.RequireKey {
		t.Errorf("hmac with a timestamp: %+v", h)
	}
	if s := rs.Route("bearer").HTTP.Signature; s != (Signature{Scheme: Bearer, Secret: "G"}) {
		t.Errorf("bearer: %+v", s)
	}
	if parse(t, richRoutes).Route("full").HTTP != nil {
		t.Error("a route without an http part has one")
	}
}

// TestMistakesInHTTP has an http part for each mistake, on line 3. It compares
// messages without the file's name, the line and the path of the part.
func TestMistakesInHTTP(t *testing.T) {
	const signature = "signature: {scheme: bearer, secret: S}"
	route := func(fields, http string) string {
		return "routes:\n- {name: a, window: 1h, output: out, " + fields + ",\n    http: {" + http + "}}\n"
	}
	const plain, claim = "topics: [in], key: [raw]", "topics: [in], key: [raw], mode: claim, outcomes: o, replies: r"
	part := func(http string) string { return route(plain, "path: /a, "+signature+", "+http) }
	path := func(p string) string { return route(plain, "path: '"+p+"', "+signature) }
	signed := func(s string) string { return route(plain, "path: /a, signature: {"+s+"}") }
	response := func(r string) string { return part("responses: {unique: {" + r + "}}") }
	for _, v := range []struct{ name, file, want string }{
		{"no mapping", "routes:\n- {name: a, window: 1h, output: out, " + plain + ",\n    http: /a}\n", ": want fields (" + fieldNames(httpFields) + `), found "/a"`},
		{"nothing", route(plain, ""), ".path: is required\n.signature: is required"},
		{"unknown field", part("pth: /a"), `: unknown field "pth"; did you mean path?`},

		{"relative path", path("a"), `.path: "a" does not begin with a slash`},
		{"root", path("/"), `.path: "/" ends with a slash`},
		{"trailing slash", path("/a/"), `.path: "/a/" ends with a slash`},
		{"path that is not clean", path("/a/../b"), `.path: "/a/../b" is not clean: write /b`},
		{"pattern", path("/a/{id}"), `.path: "/a/{id}" has a character other than letters, digits and /-._~!$&'()+,;=:@`},
		{"star", path("/*"), `.path: "/*" has a character other than letters, digits and /-._~!$&'()+,;=:@`},
		{"query", path("/a?b"), `.path: "/a?b" has a character other than letters, digits and /-._~!$&'()+,;=:@`},
		{"path of outcomes", path("/a/outcomes"), `.path: "/a/outcomes" ends with /outcomes, which is for outcomes`},
		{"path of the ingress", path("/readyz"), `.path: "/readyz" is a path that the ingress itself serves`},
		{"empty path", path(""), ".path: must not be empty"},

		{"method", part("methods: [GET]"), `.methods[0]: want POST or PUT or PATCH, found "GET"`},
		{"method twice", part("methods: [PUT, PUT]"), ".methods[1]: PUT is listed twice"},
		{"no method", part("methods: []"), ".methods: must not be empty"},
		{"topic of several", route("topics: [x, y], key: [raw]", "path: /a, "+signature), ".topic: is required: the route takes x and y, and an event goes to one of them"},
		{"topic of another", part("topic: x"), ".topic: x is no topic of the route: want in"},
		{"header carried anyway", part("headers: [Content-Type]"), ".headers[0]: Content-Type is always carried: leave it out"},
		{"header twice", part("headers: [X-A, x-a]"), ".headers[1]: x-a is listed twice"},
		{"credentials", part("headers: [Authorization]"), ".headers[0]: Authorization holds credentials, which must not get into Kafka"},
		{"headers of the connection", part("headers: [Host, transfer-encoding, Trailer]"),
			".headers[0]: Host belongs to the connection and is removed from the headers: name another header\n" +
				".headers[1]: transfer-encoding belongs to the connection and is removed from the headers: name another header\n" +
				".headers[2]: Trailer belongs to the connection and is removed from the headers: name another header"},
		{"signature in a header of the connection", signed("scheme: hmac, secret: S, header: HOST"),
			".signature.header: HOST belongs to the connection and is removed from the headers: name another header"},
		{"our header", part("headers: [Oncebus-Key]"), ".headers[0]: oncebus removes oncebus-* headers from incoming records: name another header"},
		{"no header", part("headers: ['a b']"), `.headers[0]: "a b" is no name of an HTTP header: want letters, digits, dash and underscore`},

		{"no scheme", signed("secret: S"), ".signature.scheme: is required"},
		{"unknown scheme", signed("scheme: md5, header: X"), `.signature.scheme: want standard-webhooks or svix or github or stripe or paddle or slack or zoom or square or twilio or adyen or discord or sendgrid or paypal or hook0 or hmac or token or bearer or none, found "md5"`},
		{"no secret", signed("scheme: slack"), ".signature.secret: is required"},
		{"secret of none", signed("scheme: none, secret: S"), ".signature.secret: scheme: none checks nothing: leave secret out"},
		{"hmac without header", signed("scheme: hmac, secret: S"), ".signature.header: is required"},
		{"fields of hmac", signed("scheme: github, secret: S, header: X, encoding: hex"), ".signature.header: belongs to scheme: hmac or token\n.signature.encoding: belongs to scheme: hmac"},
		{"algorithm", signed("scheme: hmac, secret: S, header: X, algorithm: md5"), `.signature.algorithm: want sha256 or sha1 or sha512, found "md5"`},
		{"tolerance of github", signed("scheme: github, secret: S, tolerance: 1m"), ".signature.tolerance: scheme: github signs no timestamp: leave tolerance out"},
		{"tolerance of none", signed("scheme: none, tolerance: 1m"), ".signature.tolerance: scheme: none signs no timestamp: leave tolerance out"},
		{"tolerance of hmac", signed("scheme: hmac, secret: S, header: X, tolerance: 1m"),
			".signature.tolerance: no timestamp is signed: name its header in timestamp_header, or leave tolerance out"},
		{"separator of hmac", signed("scheme: hmac, secret: S, header: X, separator: '.'"),
			".signature.separator: separates timestamp and body, but no timestamp is signed: name its header in timestamp_header, or leave separator out"},
		{"no separator", signed("scheme: hmac, secret: S, header: X, timestamp_header: T, separator: ''"),
			`.signature.separator: "" does not mark the end of the timestamp: want text that begins with a character other than a digit`},
		{"digits between", signed("scheme: hmac, secret: S, header: X, timestamp_header: T, separator: '0.'"),
			`.signature.separator: "0." does not mark the end of the timestamp: want text that begins with a character other than a digit`},
		{"prefix", signed(`scheme: hmac, secret: S, header: X, prefix: "a\n"`), `.signature.prefix: "a\n": want printable ASCII`},
		{"prefix after a space", signed(`scheme: hmac, secret: S, header: X, prefix: " v1="`),
			`.signature.prefix: " v1=" begins with a space, which a header's value never does: leave the space out`},
		{"long prefix and separator", signed("scheme: hmac, secret: S, header: X, timestamp_header: T, prefix: " + strings.Repeat("p", 65) + ", separator: " + strings.Repeat("s", 66)),
			".signature.prefix: 65 bytes are too many: at most 64\n.signature.separator: 66 bytes are too many: at most 64"},
		{"one header for both", signed("scheme: hmac, secret: S, header: X, timestamp_header: x"), ".signature.timestamp_header: X is the header of the signature: name another one"},
		{"tolerance beyond the window", signed("scheme: slack, secret: S, tolerance: 1h"),
			".signature.tolerance: 1h0m0s is not shorter than the window of 1h0m0s: a signed request could be repeated after the window"},
		{"short tolerance", signed("scheme: slack, secret: S, tolerance: 1ms"), ".signature.tolerance: 1ms is too short: at least 1s"},

		{"answer", part("answer: sync"), `.answer: want verdict or async or outcome, found "sync"`},
		{"wait", part("timeout: 0s"), ".timeout: 0s is too short: at least 1ms"},
		{"timeout", part("on_timeout: 408"), ".on_timeout: want 504 or 202, found 408"},
		{"timeout of async", part("on_timeout: 202, answer: async"), ".on_timeout: answer: async waits for no verdict: leave on_timeout out"},
		{"Kafka unavailable", part("on_kafka_unavailable: drop"), `.on_kafka_unavailable: want reject or wait or keep, found "drop"`},
		{"body", part("max_body: 67108865"), ".max_body: want a whole number from 1 to 67108864, found 67108865"},
		{"rate of nothing", part("rate: {}"), ".rate.per_second: is required\n.rate.burst: is required"},
		{"rate of zero", part("rate: {per_second: 0, burst: 1}"), ".rate.per_second: want a number above 0, at most 1000000, found 0"},
		{"rate without end", part("rate: {per_second: .inf, burst: 1}"), ".rate.per_second: want a number above 0, at most 1000000, found .inf"},
		{"rate that is no number", part("rate: {per_second: .nan, burst: 1}"), ".rate.per_second: want a number above 0, at most 1000000, found .nan"},
		{"rate in quotes", part("rate: {per_second: '1', burst: 1}"), `.rate.per_second: want a number above 0, at most 1000000, found "1"`},
		{"no requests", part("max_requests: 0"), ".max_requests: want a whole number from 1 to 1048576, found 0"},
		{"burst of zero", part("rate_per_source: {per_second: 1, burst: 0}"), ".rate_per_source.burst: want a whole number from 1 to 1000000, found 0"},

		{"outcomes in plain mode", part("outcomes: {signature: {scheme: none}}"), ".outcomes: belongs to mode: claim"},
		{"outcomes of anybody", route(claim, "path: /a, "+signature+", outcomes: {}"), ".outcomes.signature: is required"},
		{"tolerance of outcomes", route(claim, "path: /a, "+signature+", outcomes: {signature: {scheme: slack, secret: S, tolerance: 2h}}"),
			".outcomes.signature.tolerance: 2h0m0s is not shorter than the window of 1h0m0s: a signed request could be repeated after the window"},

		{"in_progress in plain mode", part("responses: {in_progress: {status: 409}}"), ".responses.in_progress: belongs to mode: claim"},
		{"recorded outcome", part("responses: {replayed: {status: 200}}"), `.responses: unknown field "replayed"; known are ` + fieldNames(responsesFields)},
		{"no status", response("body: '{}'"), ".responses.unique.status: is required"},
		{"status of 1xx", response("status: 199"), ".responses.unique.status: want a whole number from 200 to 599, found 199"},
		{"status of the server", response("status: 500"), ".responses.unique.status: 500 means that the server failed, which is not a verdict: want another status from 200 to 599"},
		{"type of nothing", response("status: 200, content_type: text/plain"), ".responses.unique.content_type: there is no body: leave content_type out"},
		{"body of 204", response("status: 204, body: '{}'"), ".responses.unique.body: a response with status 204 has no body: leave body out"},
		{"body that is no JSON", response("status: 200, body: ok"), ".responses.unique.body: is not JSON: write content_type: text/plain if it is meant to be text"},
		{"media type", response("status: 200, body: ok, content_type: text"),
			`.responses.unique.content_type: "text" is no media type: want one such as application/json or text/plain; charset=utf-8`},

		{"kept of a prepartitioned route", route("topics: [in], prepartitioned: true, key: [raw]", "path: /a, on_kafka_unavailable: keep, "+signature),
			".on_kafka_unavailable: keep is for routes that are not prepartitioned: an event that waited is in its partition behind later ones, and is late there"},
		{"kept without a grace", route("topics: [in], grace: 0s, key: [raw]", "path: /a, on_kafka_unavailable: keep, "+signature),
			".on_kafka_unavailable: keep needs a grace: without one an event that waited is late as soon as another one is judged"},
		{"prepartitioned by the record key", route("topics: [in], prepartitioned: true, key: [raw, record_key]", "path: /a, "+signature),
			": an HTTP request has no record key, which selects the partition of a prepartitioned route: take record_key out of key, or leave prepartitioned out"},
		{"only the record key", route("topics: [in], key: [record_key]", "path: /a, "+signature), ": an HTTP request has no record key: add a source that yields a key"},
	} {
		t.Run(v.name, func(t *testing.T) {
			_, err := ParseRoutes("r.yaml", []byte(v.file))
			got := strings.ReplaceAll(withoutColumns(err), "r.yaml:3: routes[0].http", "")
			if got != v.want {
				t.Errorf("got  %s\nwant %s\nin\n%s", got, v.want, v.file)
			}
		})
	}
}

// TestMistakesOutsideHTTP has http parts that contradict the rest of their route or
// another route.
func TestMistakesOutsideHTTP(t *testing.T) {
	const http = "http: {path: /a, signature: {scheme: bearer, secret: S}}"
	two := func(first, second string) string {
		return "routes:\n- {name: a, window: 1h, output: out, key: [raw], " + first + "}\n- {name: b, window: 1h, output: out, key: [raw], " + second + "}\n"
	}
	const matched = "topics: [in], match: {field: k, in: [x]}, mode: claim, outcomes: o, replies: r"
	outcomes := func(secret string) string {
		return "mode: claim, outcomes: o, replies: r, http: {path: /a, signature: {scheme: bearer, secret: S}, outcomes: {signature: {scheme: bearer, secret: " + secret + "}}}"
	}
	for _, v := range []struct{ name, file, want string }{
		{"header that is not carried", "routes:\n- name: a\n  topics: [in]\n  window: 1h\n  output: out\n  key:\n  - raw\n  - header: x-id\n  " + http,
			"r.yaml:8: routes[0].key: an HTTP request's header x-id is not carried: add it to http.headers"},
		{"header in upper case", "routes:\n- {name: a, topics: [in], window: 1h, output: out, " + http + ", key: [{header: Idempotency-Key}]}",
			"r.yaml:2: routes[0].key: an HTTP request's headers are carried under names in lower case: write idempotency-key"},
		{"match that is not carried", two("topics: [in], match: {header: x-kind, in: [x]}, "+http, "topics: [x]"),
			"r.yaml:2: routes[0].match: an HTTP request's header x-kind is not carried: add it to http.headers"},
		{"request id that is not carried", two("topics: [in], mode: claim, outcomes: o, replies: r, request: {header: x-id}, "+http, "topics: [x]"),
			"r.yaml:2: routes[0].request: an HTTP request's header x-id is not carried: add it to http.headers"},
		{"path of another topic", two("topics: [x], "+http, "topics: [y], "+http),
			"r.yaml:3: routes[1].http.path: /a is the path of the route in line 2, whose events go to another topic: give the route a path of its own"},
		{"another endpoint of one path", two(matched+", "+http, "topics: [in], http: {path: /a, timeout: 1s, max_body: 7, signature: {scheme: none}}"),
			"r.yaml:3: routes[1].http.path: /a is shared with the route in line 2, which has another signature, timeout, max_body: write the same in both"},
		{"outcomes of one path", two("topics: [in], match: {field: k, in: [x]}, "+outcomes("X"), "topics: [in], "+outcomes("Y")),
			"r.yaml:3: routes[1].http.outcomes: /a/outcomes is shared with the route in line 2, whose outcomes are signed in another way: write the same in both"},
		{"default tolerance beyond the window", "routes:\n- {name: a, topics: [in], window: 5m, output: out, key: [raw],\n" +
			"   http: {path: /a,\n    signature: {scheme: stripe, secret: S}}}",
			"r.yaml:4: routes[0].http.signature.tolerance: 5m0s is not shorter than the window of 5m0s: a signed request could be repeated after the window"},
	} {
		t.Run(v.name, func(t *testing.T) {
			if _, err := ParseRoutes("r.yaml", []byte(v.file)); withoutColumns(err) != v.want {
				t.Errorf("got  %v\nwant %s\nin\n%s", err, v.want, v.file)
			}
		})
	}
}

// TestSharedPath lets two routes of one path differ in settings that apply to
// events, such as responses.
func TestSharedPath(t *testing.T) {
	rs := parse(t, `routes:
- {name: a, topics: [in], match: {field: k, in: [x]}, window: 1h, output: out, key: [raw], mode: claim, outcomes: o, replies: r,
   http: {path: /a, methods: [PUT, POST], headers: [X-A, X-B], signature: {scheme: none}, outcomes: {signature: {scheme: none}}, responses: {unique: {status: 201}}}}
- {name: b, topics: [in], window: 1h, output: out, key: [raw],
   http: {path: /a, methods: [POST, PUT], headers: [x-b, x-a], signature: {scheme: none}, require_key: false}}
- {name: c, topics: [other], window: 1h, output: out, key: [raw]}
`)
	if a, b := rs.Routes[0].HTTP, rs.Routes[1].HTTP; a.Path != b.Path || !a.RequireKey || b.RequireKey || rs.Routes[2].HTTP != nil {
		t.Errorf("%+v\n%+v", a, b)
	}
}

// TestSecretsOfHTTPStayOutOfMessages writes secrets into the file by mistake.
func TestSecretsOfHTTPStayOutOfMessages(t *testing.T) {
	for _, secret := range []string{"hunter2", "[hunter2]", "A_NEXT", "B_FILE", "''", "17", "{hunter2: x}"} {
		_, err := ParseRoutes("r.yaml", []byte("routes:\n- {name: a, topics: [in], window: 1h, output: out, key: [raw],\n"+
			"   http: {path: /a, signature: {scheme: bearer, secret: "+secret+"}}}"))
		const want = "r.yaml:3: routes[0].http.signature.secret: want a name of 1 to 64 of A-Z, 0-9 and underscore, not ending in _NEXT or _FILE: " +
			"the secret itself comes from ONCEBUS_INGRESS_SECRET_ and that name, never from the file"
		if withoutColumns(err) != want || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s\ngot  %v\nwant %s", secret, err, want)
		}
	}
}

// TestResponsesForVerdicts configures a response for every verdict; only that of
// replayed is refused.
func TestResponsesForVerdicts(t *testing.T) {
	for _, verdict := range dedup.Verdicts {
		_, err := ParseRoutes("r.yaml", []byte("routes:\n- {name: a, topics: [in], window: 1h, output: out, key: [raw], mode: claim, outcomes: o, replies: r,\n"+
			"   http: {path: /a, signature: {scheme: none}, responses: {"+verdict.String()+": {status: 418}}}}"))
		if (err == nil) != (verdict != dedup.Replayed) {
			t.Errorf("%v: %v", verdict, err)
		}
	}
}
