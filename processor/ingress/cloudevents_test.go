package ingress

import (
	"strings"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"

	"oncebus/dedup/rules"
	"oncebus/processor/kafkatest"
)

// eventRoutes is a route with CloudEvents keys.
var eventRoutes = strings.Replace(signalRoutes, "[{field: id}]", "[{cloudevent: true}]", 1)

// sdkEvent returns an event of the CloudEvents SDK.
func sdkEvent(t *testing.T, source, id string) cloudevents.Event {
	t.Helper()
	e := cloudevents.NewEvent()
	e.SetSource(source)
	e.SetID(id)
	e.SetType("com.example.order")
	e.SetSubject("order-7")
	e.SetExtension("tenant", "blue")
	if err := e.SetData(cloudevents.ApplicationJSON, map[string]int{"price": 7}); err != nil {
		t.Fatal(err)
	}
	return e
}

// sendEvent sends an event with the SDK's client, and returns the status.
func (i *instance) sendEvent(structured bool, e cloudevents.Event) int {
	i.b.t.Helper()
	client, err := cloudevents.NewClientHTTP(cloudevents.WithTarget(i.url+"/signals"), cehttp.WithClient(*i.b.http))
	if err != nil {
		i.b.t.Fatal(err)
	}
	ctx := cloudevents.WithEncodingBinary(i.b.t.Context())
	if structured {
		ctx = cloudevents.WithEncodingStructured(i.b.t.Context())
	}
	var result *cehttp.Result
	sent := client.Send(ctx, e)
	if !cloudevents.ResultAs(sent, &result) {
		i.b.t.Fatalf("the SDK's result: %v", sent)
	}
	if cloudevents.IsACK(sent) != (result.StatusCode < 300) {
		i.b.t.Errorf("status %d, and the SDK's result is %v", result.StatusCode, sent)
	}
	return result.StatusCode
}

// TestCloudEventsOfTheSDK: an event has one key in binary and structured mode, by
// HTTP and in Kafka.
func TestCloudEventsOfTheSDK(t *testing.T) {
	t.Parallel()
	b := newBench(t, eventRoutes)
	i := b.serve(nil)
	for _, c := range []struct {
		id         string
		structured bool // of the first one
	}{
		{"plain", false}, {"also plain", true}, {"größe/1", false}, {"größe/2", true}, {"no%code", false}, {"5%", true},
	} {
		e := sdkEvent(t, "/shop", c.id)
		for n, want := range []int{202, 409, 409} {
			if got := i.sendEvent(c.structured == (n != 1), e); got != want {
				t.Errorf("%q, request %d: status %d, want %d", c.id, n, got, want)
			}
		}
		if got := i.sendEvent(c.structured, sdkEvent(t, "/stock", c.id)); got != 202 {
			t.Errorf("%q of another source: status %d", c.id, got)
		}
	}
	b.produce("signals.raw", []byte(`{"price":7}`), "ce_specversion", "1.0", "ce_source", "/shop", "ce_id", "größe/1", "content-type", "application/json")
	b.produce("signals.raw", []byte(`{"price":8}`), "ce_specversion", "1.0", "ce_source", "/shop", "ce_id", "last", "content-type", "application/json")
	out := b.read("signals.unique", 13)
	last := 0
	for _, r := range out {
		if id := kafkatest.Header(r, "ce_id"); id == "last" {
			last++
		} else if id == "größe/1" && kafkatest.Header(r, "ce_source") == "/shop" {
			for name, want := range map[string]string{
				"ce_specversion": "1.0", "ce_type": "com.example.order", "ce_subject": "order-7", "ce_tenant": "blue", "content-type": "application/json",
			} {
				if got := kafkatest.Header(r, name); got != want || string(r.Value) != `{"price":7}` {
					t.Errorf("header %s is %q, want %q; value %s", name, got, want, r.Value)
				}
			}
		}
	}
	if len(out) != 13 || last != 1 {
		t.Errorf("%d records in the output, %d of them the last one", len(out), last)
	}
}

// TestBatchOfCloudEvents: a batch is refused, because each event needs a response.
func TestBatchOfCloudEvents(t *testing.T) {
	t.Parallel()
	b := newBench(t, strings.NewReplacer("name: signals", "name: events", "signals.raw", "events.raw", "/signals", "/events").Replace(eventRoutes)+
		strings.TrimPrefix(strings.Replace(signalRoutes, "[{field: id}]", "[raw]", 1), "routes:\n"))
	i := b.serve(nil)
	request, err := cloudevents.NewHTTPRequestFromEvents(t.Context(), i.url+"/signals", []cloudevents.Event{sdkEvent(t, "/a", "1"), sdkEvent(t, "/a", "2")})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/signals", "/events"} {
		batch := request.Clone(t.Context())
		batch.URL.Path = path
		if batch.Body, err = request.GetBody(); err != nil {
			t.Fatal(err)
		}
		got, err := i.try(b.http, batch)
		if err != nil {
			t.Fatal(err)
		}
		if p := got.problem(t, path, "media-type", 415); !strings.Contains(p.Detail, "send each event in a request") {
			t.Errorf("detail %q", p.Detail)
		}
	}
	for _, c := range []struct {
		path, contentType string
		status            int
	}{
		{"/events", "application/cloudevents-batch", 415},
		{"/events", "Application/CloudEvents-Batch+JSON; charset=utf-8", 415},
		{"/events", "application/cloudevents+avro", 415},
		{"/signals", "application/cloudevents+avro", 202}, // its key is of the body's bytes
		{"/events", "application/cloudevents+json; charset=utf-8", 202},
	} {
		got := i.post(c.path, `{"source":"/a","id":"1"}`, "Content-Type", c.contentType).want(t, c.contentType, c.status)
		if c.status == 415 {
			got.problem(t, c.contentType, "media-type", 415)
		}
	}
}

// TestEventAttributes: attributes that cannot be read are refused, with the header.
func TestEventAttributes(t *testing.T) {
	t.Parallel()
	b := newBench(t, eventRoutes)
	i := b.serve(nil)
	for _, c := range []struct {
		name    string
		headers []string
		status  int
		problem string
		detail  string
	}{
		{"no attributes", nil, 400, "missing-key", "ce_source"},
		{"no id", []string{"ce-source", "/a"}, 400, "missing-key", "ce_id"},
		{"an empty id", []string{"ce-source", "/a", "ce-id", ""}, 400, "missing-key", "ce_id"},
		{"two ids", []string{"ce-source", "/a", "ce-id", "1", "ce-id", "2"}, 400, "invalid", "header Ce-Id: it came 2 times"},
		{"an overlong space", []string{"ce-source", "/a", "ce-id", "%C0%A0"}, 400, "invalid", "header Ce-Id: \"%C0%A0\": it is not UTF-8"},
		{"not UTF-8", []string{"ce-source", "/a\xff", "ce-id", "1"}, 400, "invalid", "header Ce-Source"},
		{"two content types", []string{"ce-source", "/a", "ce-id", "1", "Content-Type", "a/b", "Content-Type", "c/d"}, 400, "invalid", "header Content-Type: it came 2 times"},
		{"names of the Kafka binding", []string{"ce_source", "/a", "ce_id", "1"}, 400, "missing-key", "ce_source"},
		{"whole", []string{"CE-SOURCE", "/a", "ce-id", "1", "ce-not-an-attribute", "x"}, 202, "", ""},
	} {
		got := i.post("/signals", `{}`, c.headers...).want(t, c.name, c.status)
		if c.problem == "" {
			continue
		}
		if p := got.problem(t, c.name, c.problem, c.status); !strings.Contains(p.Detail, c.detail) {
			t.Errorf("%s: detail %q, want %q", c.name, p.Detail, c.detail)
		}
	}
	if r := b.read("signals.unique", 1)[0]; kafkatest.Header(r, "ce_not-an-attribute") != "" || kafkatest.Header(r, "ce-not-an-attribute") != "" {
		t.Errorf("headers %v", r.Headers)
	}
}

// TestDecodeEventAttribute has the examples of the HTTP binding, section 3.1.3.2.
func TestDecodeEventAttribute(t *testing.T) {
	for in, want := range map[string]string{
		"":                                     "",
		"plain":                                "plain",
		"Euro%20%E2%82%AC%20%F0%9F%98%80":      "Euro € 😀",
		"Euro%20%e2%82%ac":                     "Euro €",
		"%61%62":                               "ab",
		"%2520":                                "%20", // one round
		"100%":                                 "100%",
		"%zz%4":                                "%zz%4",
		"Euro € raw":                           "Euro € raw",
		`"quoted \"text\" with \\ and%20code"`: `quoted "text" with \ and code`,
		`""`:                                   "",
		`"`:                                    `"`,
		`"two" "texts"`:                        `"two" "texts"`,
		`"the last is escaped\"`:               `"the last is escaped\"`,
	} {
		if got, err := decodeEventAttribute(in); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"%C0%A0", "%80", "\xff", "%ED%A0%80"} {
		if got, err := decodeEventAttribute(in); err == nil {
			t.Errorf("%q: %q, want an error", in, got)
		}
	}
}

// TestDocumentOfCloudEvents: the document names the attributes of the key.
func TestDocumentOfCloudEvents(t *testing.T) {
	post := loadDocument(t, parseRoutes(t, eventRoutes)).Paths.Value("/signals").Post
	named := map[string]bool{}
	for _, p := range post.Parameters {
		named[p.Value.Name] = true
	}
	if !named["ce-id"] || !named["ce-source"] || post.RequestBody.Value.Content["application/cloudevents+json"] == nil {
		t.Errorf("parameters %v", named)
	}
	post = loadDocument(t, parseRoutes(t, strings.Replace(signalRoutes, "{field: id}", "{header: ce_id}", 1))).Paths.Value("/signals").Post
	var required []string
	for _, p := range post.Parameters {
		if p.Value.Required {
			required = append(required, p.Value.Name)
		}
	}
	if len(required) != 1 || required[0] != "ce-id" {
		t.Errorf("required headers %q", required)
	}
}

// TestRoutesMayNotNameEventHeadersOtherwise: a carried attribute has one name.
func TestRoutesMayNotNameEventHeadersOtherwise(t *testing.T) {
	for text, want := range map[string]string{
		withHTTP("headers: [ce-id]"):                                         "ce-id is an attribute of CloudEvents, always carried as ce_id",
		withHTTP("headers: [CE_ID]"):                                         "CE_ID is the record header of the CloudEvents attribute in ce-id",
		strings.Replace(signalRoutes, "{field: id}", "{header: ce-id}", 1):   "is carried as ce_id: write that",
		strings.Replace(signalRoutes, "{field: id}", "{header: ce_id}", 1):   "",
		withHTTP("headers: [ce-not-an-attribute]"):                           "",
		strings.Replace(signalRoutes, "{field: id}", "{header: ce_time}", 1): "",
	} {
		_, err := rules.ParseRoutes("routes.yaml", []byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
