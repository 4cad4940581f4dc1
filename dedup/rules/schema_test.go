package rules

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// TestSchemaAndDecoderAgree compares the fields that the JSON Schema names with
// those that the decoder reads, object by object, and the choices of both.
func TestSchemaAndDecoderAgree(t *testing.T) {
	type object struct {
		Properties           map[string]json.RawMessage `json:"properties"`
		Required             []string                   `json:"required"`
		AdditionalProperties *bool                      `json:"additionalProperties"`
	}
	var schema struct {
		object
		Defs map[string]json.RawMessage `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(RoutesSchema), &schema); err != nil {
		t.Fatal(err)
	}
	read := func(raw json.RawMessage) (o object) {
		if err := json.Unmarshal(raw, &o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	var source struct{ OneOf []json.RawMessage }
	if err := json.Unmarshal(schema.Defs["source"], &source); err != nil || len(source.OneOf) != 2 {
		t.Fatalf("source: %v", err)
	}
	for _, v := range []struct {
		name     string
		schema   object
		names    []string
		required []string
	}{
		{"the file", schema.object, names(fileFields), []string{"routes"}},
		{"route", read(schema.Defs["route"]), names(routeFields), []string{"name", "output", "topics"}},
		{"match", read(schema.Defs["match"]), names(matchFields), []string{"in"}},
		{"time", read(schema.Defs["time"]), names(timeFields), []string{"field"}},
		{"format of a file", read(schema.Defs["formatOfFile"]), names(formatFields), []string{"type"}},
		{"duplicates", read(schema.Defs["duplicates"]), names(duplicatesFields), []string{"to"}},
		{"limits", read(schema.Defs["limits"]), names(limitsFields), []string{"live_keys"}},
		{"tenant", read(schema.Defs["tenant"]), names(tenantFields), nil},
		{"fingerprint", read(schema.Defs["fingerprint"]), names(fingerprintFields), []string{"fields"}},
		{"quota", read(schema.Defs["quota"]), names(quotaFields), nil},
		{"quota of a tenant", read(schema.Defs["tenantQuota"]), names(tenantQuotaFields), nil},
		{"sender", read(schema.Defs["sender"]), names(senderFields), nil},
		{"shadow", read(schema.Defs["shadow"]), names(shadowFields), []string{"key"}},
		{"request", read(schema.Defs["request"]), names(requestFields), nil},
		{"http", read(schema.Defs["http"]), names(httpFields), []string{"path"}},
		{"signature", read(schema.Defs["signature"]), names(signatureFields), nil},
		{"handshake", read(schema.Defs["handshake"]), names(handshakeFields), nil},
		{"decompress", read(schema.Defs["decompress"]), names(decompressFields), []string{"max_bytes"}},
		{"outcomes by http", read(schema.Defs["httpOutcomes"]), names(outcomesFields), []string{"signature"}},
		{"rate", read(schema.Defs["rate"]), names(rateFields), []string{"burst", "per_second"}},
		{"responses", read(schema.Defs["responses"]), names(responsesFields), nil},
		{"response", read(schema.Defs["response"]), names(responseFields), []string{"status"}},
		{"source", read(source.OneOf[1]), names(sourceFields), nil},
		{"part", read(schema.Defs["part"]), names(partFields), nil},
		{"payload", read(schema.Defs["payload"]), names(payloadFields), nil},
		{"order", read(schema.Defs["order"]), names(orderFields), nil},
		{"normaliserStep", read(schema.Defs["normaliserStep"]), names(stepFields), nil},
	} {
		var got []string
		for name := range v.schema.Properties {
			got = append(got, name)
		}
		slices.Sort(got)
		slices.Sort(v.names)
		slices.Sort(v.schema.Required)
		if !slices.Equal(got, v.names) {
			t.Errorf("%s: the schema has %v, the decoder %v", v.name, got, v.names)
		}
		if !slices.Equal(v.schema.Required, v.required) {
			t.Errorf("%s: the schema requires %v, the decoder %v", v.name, v.schema.Required, v.required)
		}
		if v.schema.AdditionalProperties == nil || *v.schema.AdditionalProperties {
			t.Errorf("%s: the schema takes unknown fields", v.name)
		}
	}

	choices := func(raw json.RawMessage) []string {
		var e struct{ Enum []string }
		if err := json.Unmarshal(raw, &e); err != nil {
			t.Fatal(err)
		}
		return e.Enum
	}
	route, http, signature := read(schema.Defs["route"]), read(schema.Defs["http"]), read(schema.Defs["signature"])
	var methods struct{ Items json.RawMessage }
	if err := json.Unmarshal(http.Properties["methods"], &methods); err != nil {
		t.Fatal(err)
	}
	var sender struct{ OneOf []json.RawMessage }
	if err := json.Unmarshal(route.Properties["sender"], &sender); err != nil || len(sender.OneOf) != 2 {
		t.Fatalf("sender: %v", err)
	}
	var providers []string
	for _, p := range Providers {
		providers = append(providers, p.Name)
	}
	handshake, decompress := read(schema.Defs["handshake"]), read(schema.Defs["decompress"])
	policies := []string{DeadLetter.String(), Forward.String(), Drop.String()}
	for _, v := range []struct {
		name      string
		got, want []string
	}{
		{"on_missing_key", choices(route.Properties["on_missing_key"]), policies},
		{"on_late", choices(route.Properties["on_late"]), policies},
		{"collision", choices(route.Properties["collision"]), []string{DeadLetter.String(), Forward.String(), Reject.String()}},
		{"sender", choices(sender.OneOf[0]), senderNames[:]},
		{"mode", choices(route.Properties["mode"]), modeNames[:]},
		{"on_state_failure", choices(route.Properties["on_state_failure"]), stateFailureNames[:]},
		{"while_in_progress", choices(route.Properties["while_in_progress"]), inProgressNames[:]},
		{"on_future", choices(route.Properties["on_future"]), []string{DeadLetter.String(), Clamp.String()}},
		{"time format", choices(schema.Defs["timeFormat"]), timeFormatNames[:]},
		{"scheme", choices(signature.Properties["scheme"]), schemeNames[:]},
		{"algorithm", choices(signature.Properties["algorithm"]), algorithmNames[:]},
		{"encoding", choices(signature.Properties["encoding"]), encodingNames[:]},
		{"methods", choices(methods.Items), httpMethods[:]},
		{"provider", choices(http.Properties["provider"]), providers},
		{"handshake kind", choices(handshake.Properties["kind"]), handshakeNames[:]},
		{"signed", choices(decompress.Properties["signed"]), signedNames[:]},
		{"answer", choices(http.Properties["answer"]), answerNames[:]},
		{"on_kafka_unavailable", choices(http.Properties["on_kafka_unavailable"]), kafkaUnavailableNames[:]},
	} {
		if !slices.Equal(v.got, v.want) {
			t.Errorf("%s: the schema has %v, the decoder %v", v.name, v.got, v.want)
		}
	}
}

func names[T any](fields []fieldOf[T]) []string {
	var list []string
	for _, f := range fields {
		list = append(list, f.name)
	}
	return list
}

// TestSchemaDefaultsAreTheDecoders writes each default of the schema into a
// file: its meaning must be that of the file without it.
func TestSchemaDefaultsAreTheDecoders(t *testing.T) {
	var schema struct {
		Defs map[string]struct {
			Properties map[string]struct {
				Default json.RawMessage `json:"default"`
			} `json:"properties"`
		} `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(RoutesSchema), &schema); err != nil {
		t.Fatal(err)
	}
	const plain = `name: a, topics: [in], window: 1h, output: out`
	const claim = plain + `, mode: claim, outcomes: outcomes, replies: replies`
	for _, object := range []struct{ def, before, after string }{
		{"route", `key: [raw], `, ``},
		{"order", `key: [{order: {`, `}}]`},
		{"http", `key: [raw], http: {path: /a, signature: {scheme: none}, `, `}`},
		{"signature", `key: [raw], http: {path: /a, signature: {scheme: hmac, secret: S, header: X, timestamp_header: T, `, `}}`},
	} {
		tried := 0
		for name, p := range schema.Defs[object.def].Properties {
			if p.Default == nil {
				continue
			}
			read := func(base, key string) (*Routes, error) {
				return ParseRoutes("f.yaml", fmt.Appendf(nil, "routes: [{%s, %s%s%s}]", base, object.before, key, object.after))
			}
			var with, without *Routes
			var err error
			for _, base := range []string{plain, claim, claim + ", while_in_progress: wait"} {
				if with, err = read(base, name+": "+string(p.Default)); err == nil {
					without, err = read(base, "")
					break
				}
			}
			if tried++; err != nil {
				t.Errorf("%s: %s: %v", object.def, name, err)
			} else if !reflect.DeepEqual(unwritten(with), unwritten(without)) {
				t.Errorf("%s: %s is %s in the schema, and another default in the decoder", object.def, name, p.Default)
			}
		}
		if tried == 0 {
			t.Errorf("%s: no default was tried", object.def)
		}
	}
}

// unwritten removes what a route has of the text of its file.
func unwritten(rs *Routes) *Routes {
	rs.Text, rs.Digest = nil, ""
	for _, r := range rs.Routes {
		r.written = nil
	}
	return rs
}
