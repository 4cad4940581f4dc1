package demo

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestHTTPLedgerConvicts: the ledger finds responses and outputs that disagree.
func TestHTTPLedgerConvicts(t *testing.T) {
	routes, err := parseRoutes(true, "")
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		status       int
		verdict, key string
	}
	record := func(number, key, verdict, value string) *kgo.Record {
		r := &kgo.Record{Value: []byte(value), Headers: []kgo.RecordHeader{{Key: "oncebus-key", Value: []byte(key)}, {Key: "oncebus-verdict", Value: []byte(verdict)}}}
		if number != "" {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: headerRecord, Value: []byte(number)})
		}
		return r
	}
	first, copied := answer{202, "unique", "k"}, answer{409, "duplicate", "k"}
	for _, tt := range []struct {
		name    string
		answers []answer // to requests with their numbers as bodies
		outputs []*kgo.Record
		want    httpResult
	}{
		{"all agree", []answer{first, copied}, []*kgo.Record{record("0", "k", "unique", "0")}, httpResult{Events: 2, Unique: 1, Duplicates: 1}},
		{"refused", []answer{{400, "missing_key", ""}, {401, "", ""}}, nil, httpResult{Refused: 2}},
		{"no response, but in the output", []answer{{}, {504, "", "k"}, copied}, []*kgo.Record{record("1", "k", "unique", "1")},
			httpResult{Events: 1, Duplicates: 1, Unanswered: 2}},
		{"an accepted one is missing", []answer{first}, nil, httpResult{Events: 1, Missing: 1}},
		{"the first of a duplicate is missing", []answer{copied}, nil, httpResult{Events: 1, Duplicates: 1, Missing: 1}},
		{"a duplicate came out", []answer{first, copied}, []*kgo.Record{record("0", "k", "unique", "0"), record("1", "k", "unique", "1")},
			httpResult{Events: 2, Unique: 1, Duplicates: 1, Extra: 1}},
		{"a duplicate came out under another key", []answer{first, copied}, []*kgo.Record{record("0", "k", "unique", "0"), record("1", "j", "unique", "1")},
			httpResult{Events: 2, Unique: 1, Duplicates: 1, Extra: 1}},
		{"a rejected one was emitted", []answer{{400, "", ""}}, []*kgo.Record{record("0", "k", "unique", "0")}, httpResult{Refused: 1, Extra: 1}},
		{"one twice", []answer{{202, "missing_key", ""}}, []*kgo.Record{record("0", "", "missing_key", "0"), record("0", "", "missing_key", "0")},
			httpResult{Events: 1, Unique: 1, Extra: 1}},
		{"a stranger", nil, []*kgo.Record{record("", "k", "unique", ""), record("0", "j", "unique", "")}, httpResult{Extra: 2}},
		{"other bytes", []answer{first}, []*kgo.Record{record("0", "k", "unique", "x")}, httpResult{Events: 1, Unique: 1, Altered: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newHTTPLedger(io.Discard, routes)
			for number, a := range tt.answers {
				h := l.around(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if b, err := io.ReadAll(r.Body); err != nil || string(b) != r.Header.Get("Demo-Record") {
						t.Errorf("request %q has the number %s, %v", b, r.Header.Get("Demo-Record"), err)
					}
					w.Header().Set("Oncebus-Key", a.key)
					w.Header().Set("Oncebus-Verdict", a.verdict)
					if a.status != 0 {
						w.WriteHeader(a.status)
					}
				}))
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), "POST", "/signals", strings.NewReader(strconv.Itoa(number))))
			}
			for _, r := range tt.outputs {
				l.output("signals", r)
			}
			got := l.close()
			if got != tt.want {
				t.Errorf("%+v, want %+v; %q", got, tt.want, l.faults)
			}
			if fine := tt.want.Missing+tt.want.Extra+tt.want.Altered == 0; got.verified() != fine || (len(l.faults) == 0) != fine {
				t.Errorf("verified: %v, faults %q", got.verified(), l.faults)
			}
		})
	}
}
