package ingress

import (
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"oncebus/dedup/rules"
)

// Content types.
const (
	jsonType    = "application/json"
	problemJSON = "application/problem+json"
)

// retrySoon is the Retry-After of states that end within moments.
const retrySoon = time.Second

// response is an HTTP response that is not written yet.
type response struct {
	status       int
	name         string   // names the response in metrics and log
	problem      *problem // nil for a response that is no problem
	contentType  string
	body         []byte
	header       http.Header // further headers
	disconnected bool        // write sends nothing; this is a flag because an executor may choose status 499 too
	streamed     bool        // the body was written already
	route        string
	verdict      string // for the log; "" for none
	reason       string // why the request was rejected, for the log
}

// with sets a header and returns the response.
func (r *response) with(name, value string) *response {
	if r.header == nil {
		r.header = http.Header{}
	}
	r.header.Set(name, value)
	return r
}

// accepted returns the response to an event that was forwarded.
func accepted(name string) *response {
	return &response{status: http.StatusAccepted, name: name, contentType: jsonType, body: []byte(`{"status":"accepted"}`)}
}

// forwardedUnchecked returns the response to an event that was forwarded although its key was not looked up, or
// not stored. If the sender sends the event again, it is forwarded again.
func forwardedUnchecked(name string) *response {
	return &response{status: http.StatusAccepted, name: name, contentType: jsonType, body: []byte(`{"status":"accepted","type":"/responses/forwarded-unchecked"}`)}
}

// keptUnchecked returns the response to an event that waits on the disk of this process until Kafka is
// available again. The event has no verdict yet. If the sender sends it again, it is a duplicate.
func keptUnchecked() *response {
	return &response{status: http.StatusAccepted, name: "kept", contentType: jsonType, body: []byte(`{"status":"accepted","type":"/responses/kept-unchecked"}`)}
}

// configured returns a response that the routes file defines.
func configured(name string, r rules.Response) *response {
	return &response{status: r.Status, name: name, contentType: r.ContentType, body: []byte(r.Body)}
}

// statusDisconnected is the status that log and metrics show if a client disconnected before its response.
const statusDisconnected = 499

// disconnected returns the response that makes ServeHTTP close the connection without sending anything.
func disconnected() *response {
	return &response{status: statusDisconnected, name: "disconnected", disconnected: true}
}

// The responses to requests that never become events:

func wrongMethod(allow string) *response { return problemMethod.respond("").with("Allow", allow) }

func busy(detail string) *response {
	return problemBusy.respond(detail).with("Retry-After", retryAfter(retrySoon))
}

func tooFast(detail string, wait time.Duration) *response {
	return problemRate.respond(detail).with("Retry-After", retryAfter(wait))
}

func (b *bodyRules) encoded() *response {
	if b.decompress.MaxBytes > 0 {
		return problemEncoding.respond("send the body with one of the codings in Accept-Encoding").with("Accept-Encoding", codingGzip+", "+codingDeflate+", identity")
	}
	return problemEncoding.respond("send the body without a Content-Encoding").with("Accept-Encoding", "identity")
}

// overTopicLimit says why the record is too large although its body is within max_body.
const overTopicLimit = "with its headers the record exceeds the topic's max.message.bytes"

func tooLarge(rules *bodyRules) *response {
	detail := fmt.Sprintf("the limit is %d bytes", rules.maxBytes)
	if rules.tooLarge != "" {
		detail += "; " + rules.tooLarge
	}
	return problemTooLarge.respond(detail)
}

func tooSlow() *response {
	return problemRequestTimeout.respond("").with("Connection", "close").with("Retry-After", retryAfter(retrySoon))
}

func incomplete() *response { return problemIncompleteBody.respond("").with("Connection", "close") }

func unauthorized(challenge string) *response {
	return problemUnauthorized.respond("").with("WWW-Authenticate", challenge)
}

// Header values that every response shares; no code may modify these slices.
var noStore, noSniff = []string{"no-store"}, []string{"nosniff"}

// write sends the response.
func (r *response) write(w http.ResponseWriter) {
	h := w.Header()
	h["Cache-Control"], h["X-Content-Type-Options"] = noStore, noSniff
	for name, values := range r.header {
		h[name] = values
	}
	if r.status == http.StatusNoContent || r.status == http.StatusResetContent || r.status == http.StatusNotModified {
		w.WriteHeader(r.status)
		return
	}
	if r.contentType != "" {
		h.Set("Content-Type", r.contentType)
	} else {
		h["Content-Type"] = nil // net/http would guess one
	}
	h.Set("Content-Length", strconv.Itoa(len(r.body)))
	w.WriteHeader(r.status)
	// An error means that the client disconnected.
	_, _ = w.Write(r.body) // nosniff keeps browsers from rendering the body; that of an outcome comes from its executor
}

func (r *response) statusText() string { return strconv.Itoa(r.status) }

// implicit returns the bytes of a response that connection writes in place of a response of net/http. After
// these bytes net/http closes the connection.
func (r *response) implicit() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", r.status, http.StatusText(r.status))
	h := http.Header{
		"Cache-Control": noStore, "X-Content-Type-Options": noSniff, "Content-Type": {r.contentType}, "Connection": {"close"},
		"Content-Length": {strconv.Itoa(len(r.body))}, "Date": {time.Now().UTC().Format(http.TimeFormat)},
	}
	_ = h.Write(&b) // into memory
	b.WriteString("\r\n")
	b.Write(r.body)
	return b.Bytes()
}
