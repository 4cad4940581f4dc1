package transfer

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"strconv"
	"strings"
	"unicode/utf8"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// outcomeLine is what another system has stored about an operation. Its JSON names are an interface.
type outcomeLine struct {
	// Status is completed, submitted or in_progress.
	Status *string `json:"status"`
	// Result is the result of the operation. For a JSON string it is the characters of the string; any other
	// JSON value is the result as it is written. If it is absent or null, the result is null.
	Result       json.RawMessage `json:"result"`
	ResultBase64 *string         `json:"result_base64"` // a result of any bytes, in place of Result
	HTTPStatus   *int            `json:"http_status"`
	ContentType  *string         `json:"content_type"`
}

// isSet reports whether the line has a field of an outcome.
func (o *outcomeLine) isSet() bool { return o.Status != nil || o.hasResult() }

func (o *outcomeLine) hasResult() bool {
	return o.Result != nil || o.ResultBase64 != nil || o.HTTPStatus != nil || o.ContentType != nil
}

// lineStatuses has the statuses that a line may have.
var lineStatuses = map[string]dedup.Status{
	dedup.Completed.String(): dedup.Completed, dedup.Submitted.String(): dedup.Submitted, dedup.ClaimInProgress.String(): dedup.ClaimInProgress,
}

// check returns the first mistake in the fields of an outcome.
func (o *outcomeLine) check(route *rules.Route) error {
	if o.Status == nil {
		return errors.New("field status is missing: want completed, submitted or in_progress")
	}
	status, known := lineStatuses[*o.Status]
	switch {
	case *o.Status == "failed" || *o.Status == "rejected":
		return fmt.Errorf("field status: %s leaves the key free, so leave the line out", *o.Status)
	case !known:
		return fmt.Errorf("field status: want completed, submitted or in_progress, not %q", *o.Status)
	case status != dedup.Completed && o.hasResult():
		return fmt.Errorf("field status is %s, so the line has no result: leave out result, http_status and content_type, or write completed", *o.Status)
	case o.Result != nil && o.ResultBase64 != nil:
		return errors.New("fields result and result_base64: give one of them")
	case o.Result != nil && !o.isExact():
		return errors.New("field result: the text is not valid UTF-8: give its bytes by result_base64")
	case o.HTTPStatus != nil && (*o.HTTPStatus < 200 || *o.HTTPStatus > 599):
		return fmt.Errorf("field http_status: want a status from 200 to 599, not %d", *o.HTTPStatus)
	}
	if o.ContentType != nil {
		if media, _, err := mime.ParseMediaType(*o.ContentType); err != nil || !strings.Contains(media, "/") {
			return fmt.Errorf("field content_type: want a media type such as application/json, not %.80q", *o.ContentType)
		}
	}
	claim, err := o.claim()
	if err != nil {
		return fmt.Errorf("field result_base64: %w", err)
	}
	size := len(claim.Result)
	for _, h := range claim.Headers {
		size += len(h.Key) + len(h.Value)
	}
	if limit := route.Claim.ResultBytes; size > limit {
		return fmt.Errorf("field result: it has %d bytes with its headers, and result_limit of route %s is %d: raise result_limit, or store a shorter result", size, route.Name, limit)
	}
	return nil
}

// text returns the result if it is a JSON string; "" otherwise.
func (o *outcomeLine) text() (text string) {
	_ = json.Unmarshal(o.Result, &text) // Result is valid JSON
	return text
}

// isExact reports whether the decoder has kept all characters of a string. It does not keep bytes that are not
// UTF-8, but replaces them.
func (o *outcomeLine) isExact() bool {
	const replaced = "\uFFFD"
	return utf8.Valid(o.Result) && (bytes.Contains(o.Result, []byte(replaced)) || !strings.Contains(o.text(), replaced))
}

// claim returns the claim without its key. An error comes from decoding the base64 of result_base64.
func (o *outcomeLine) claim() (c dedup.Claim, err error) {
	if o.ResultBase64 != nil {
		c.Result, err = base64.StdEncoding.DecodeString(*o.ResultBase64)
	}
	if o.Result != nil && !bytes.Equal(o.Result, []byte("null")) {
		c.Result = o.Result
		if o.Result[0] == '"' {
			c.Result = []byte(o.text())
		}
	}
	if o.HTTPStatus != nil {
		c.Headers = append(c.Headers, dedup.Header{Key: "http-status", Value: strconv.AppendInt(nil, int64(*o.HTTPStatus), 10)})
	}
	if o.ContentType != nil {
		c.Headers = append(c.Headers, dedup.Header{Key: "content-type", Value: []byte(*o.ContentType)})
	}
	return c, err
}

// row returns the encoded row of a seed with the outcome, which check must have accepted.
func (o *outcomeLine) row(d *rules.Derived, appToken bool) []byte {
	claim, _ := o.claim()
	claim.Key, claim.AppToken = d.Key, appToken
	if d.Request != "" {
		claim.Original = []byte(d.Request)
	}
	row := dedup.Row{Digest: d.Digest}
	row.LineClaim(lineStatuses[*o.Status], &claim)
	return row.AppendValue(nil)
}

// readClaim reads a line for a route in claim mode.
func (s *linesSource) readClaim(line []byte, isObject bool) error {
	const form = `{"id":...,"status":"completed","result":...,"first_seen":...}, with event or key in place of id`
	if !isObject {
		return fmt.Errorf("route %s is in claim mode, and the line has no outcome to replay: want %s", s.route.Name, form)
	}
	w, err := readWrapped(line)
	switch {
	case err != nil:
		return fmt.Errorf("%w: want %s", err, form)
	case w.names() != 1:
		return fmt.Errorf("want one of id, event and key: %s", form)
	}
	if err := w.check(s.route.Route); err != nil {
		return err
	}
	s.outcome = &w.outcomeLine
	return s.readWrapped(w)
}

// keyDigits is how many hexadecimal digits a dedup key has.
const keyDigits = 64

// endsAsKey reports whether a text ends with the digits of a dedup key.
func endsAsKey(text []byte) bool {
	if len(text) < keyDigits {
		return false
	}
	_, err := hex.DecodeString(string(text[len(text)-keyDigits:]))
	return err == nil
}

// keyOf parses a dedup key of 64 hexadecimal digits. The key may be preceded by the name of the route's
// namespace and a colon, because a table that several guards share contains keys in that form.
func (s *linesSource) keyOf(text string) (key [32]byte, err error) {
	digits := strings.TrimPrefix(text, s.route.Namespace+":")
	if before, rest, ok := strings.Cut(digits, ":"); ok && endsAsKey([]byte(rest)) {
		return key, fmt.Errorf("the key of %q is not one of route %s: want 64 hexadecimal digits, after %q or nothing", before, s.route.Name, s.route.Namespace+":")
	}
	if n, err := hex.Decode(key[:], []byte(digits[:min(len(digits), keyDigits)])); err != nil || n != len(key) || len(digits) != keyDigits {
		return key, fmt.Errorf("want 64 hexadecimal digits, after %q or nothing, not %q", s.route.Namespace+":", text)
	}
	return key, nil
}

// key adds the seeds of a dedup key: one for each kind of key source that the route has.
func (s *linesSource) key(key [32]byte, first int64) error {
	all := s.route.OfKey(key)
	for i := range all {
		if all[i].Routing == (dedup.Digest{}) {
			return fmt.Errorf("the key of route %s does not say which task has it: each line must be an event", s.route.Name)
		}
		s.add(&all[i], first)
	}
	return nil
}
