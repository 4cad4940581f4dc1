package ingress

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor"
	"oncebus/processor/wire"
)

// request is what is known of a request beside itself.
type request struct {
	start  time.Time
	source netip.Addr
	route  string // for metrics and log
	bytes  int    // of the body
	memory hold

	taken time.Time // when the signature was looked at, which is the event's time
}

// statusGone is what log and metrics say of a client that did not wait.
const statusGone = 499

// gone is the answer to nobody: it is not written, and ServeHTTP cuts the
// connection off in its place.
func gone() *response { return &response{status: statusGone, name: "gone", gone: true} }

// dispatch finds what answers a request.
func (s *Server) dispatch(w http.ResponseWriter, r *http.Request, rq *request) *response {
	path := r.URL.Path
	if d, ok := s.doors.events[path]; ok {
		rq.route = d.routes[0].Name
		return s.admitted(s.events, rq, func() *response { return s.takeEvent(w, r, rq, d) })
	}
	if d, ok := s.doors.outcomes[path]; ok {
		rq.route = d.routes[0].Name
		return s.admitted(s.outcomes, rq, func() *response { return s.takeOutcome(w, r, rq, d) })
	}
	if path == openAPIPath {
		return s.describe(r)
	}
	return problemNotFound.respond("")
}

// admitted answers with take, if there is room for one more request.
func (s *Server) admitted(in *room, rq *request, take func() *response) *response {
	if !in.requests.enter() {
		return s.refuse(rq, reasonRequests, busy())
	}
	defer in.requests.leave()
	s.metrics.inFlight.Inc()
	defer s.metrics.inFlight.Dec()
	rq.memory.of = &in.bodies
	defer rq.memory.release()
	return take()
}

// refuse counts a request that gets no further than to a limit or a gate.
func (s *Server) refuse(rq *request, reason string, r *response) *response {
	s.metrics.refused.WithLabelValues(rq.route, reason).Inc()
	r.reason = reason
	return r
}

// takeEvent takes an event in and returns the answer.
func (s *Server) takeEvent(w http.ResponseWriter, r *http.Request, rq *request, d *door) *response {
	if !slices.Contains(d.Methods, r.Method) {
		return wrongMethod(d.allow)
	}
	if wait := d.sources.take(rq.source, rq.start); wait > 0 {
		return s.refuse(rq, reasonSource, tooFast("from this address", wait))
	}
	body, refused := s.receive(w, r, rq, &d.intake)
	if refused != nil {
		return refused
	}
	// After source and signature: who is refused takes no place of the route's
	// from those who may send.
	if wait := d.rate.take(rq.taken); wait > 0 {
		return s.refuse(rq, reasonRate, tooFast("", wait))
	}
	ctx, cancel := context.WithTimeout(r.Context(), d.Timeout)
	defer cancel()
	headers, err := d.headers(r.Header)
	if err != nil {
		return problemInvalid.respond(err.Error())
	}
	event := &processor.Submission{Topic: d.Topic, Value: body, Headers: headers, Time: rq.taken, Hold: d.WaitForKafka}
	derived, err := s.derive(ctx, event)
	if err != nil {
		return s.unserved(r, err, d.HTTP)
	}
	route, ours := d.of(derived.Route)
	rq.route = route.Name
	switch {
	case derived.Finding == rules.Malformed:
		return s.turnAway(ctx, r, route, event, &derived, dedup.Invalid)
	case !ours:
		return problemNoRoute.respond("")
	case derived.Finding == rules.KeyMissing && route.HTTP.RequireKey:
		return s.turnAway(ctx, r, route, event, &derived, dedup.MissingKey)
	}
	return s.submit(ctx, r, rq, route, event, &derived)
}

// derive asks for route and key, and while nobody knows yet whether the routes
// file fits the app, waits for that where the route says so.
func (s *Server) derive(ctx context.Context, event *processor.Submission) (rules.Derived, error) {
	derived, err := s.front.Derive(event)
	if err == nil || !event.Hold {
		return derived, err
	}
	if err := s.front.Await(ctx); err != nil {
		return derived, err
	}
	return s.front.Derive(event)
}

// submit puts the event on the bus and returns the answer. An event without a
// key that may do without one has no verdict to wait for.
func (s *Server) submit(ctx context.Context, r *http.Request, rq *request, route *rules.Route, event *processor.Submission, derived *rules.Derived) *response {
	if route.HTTP.Verdict && derived.Finding == rules.Keyed {
		asked := time.Now()
		answer, err := s.front.Ask(ctx, event, derived)
		s.metrics.verdict.WithLabelValues(rq.route).Observe(time.Since(asked).Seconds())
		if err != nil {
			return s.unserved(r, err, route.HTTP).with(headerKey, hex.EncodeToString(derived.Key[:]))
		}
		return tell(route, &answer)
	}
	if err := s.front.Publish(ctx, event, derived); err != nil {
		return s.unserved(r, err, route.HTTP)
	}
	if derived.Finding == rules.KeyMissing {
		return tell(route, &wire.Answer{Verdict: dedup.MissingKey, Forwarded: true})
	}
	return accepted("async").with(headerKey, hex.EncodeToString(derived.Key[:]))
}

// turnAway answers an event that cannot be judged. Where the routes file calls
// that a success the event goes to its raw topic first, where it is
// dead-lettered, or treated as on_missing_key says: after a 2xx no sender has it
// any more.
func (s *Server) turnAway(ctx context.Context, r *http.Request, route *rules.Route, event *processor.Submission, derived *rules.Derived, verdict dedup.Verdict) *response {
	a := tell(route, &wire.Answer{Verdict: verdict, Reason: derived.Reason})
	if a.status >= http.StatusMultipleChoices {
		return a
	}
	if err := s.front.Publish(ctx, event, derived); err != nil {
		return s.unserved(r, err, route.HTTP)
	}
	return a
}

// unserved is the answer where err stands in the way of one. Without one to
// give it takes the client's own end into account: that is why then, and not
// the bus. A client that closes only its sending side counts as gone too, since
// net/http cannot tell.
func (s *Server) unserved(r *http.Request, err error, h *rules.HTTP) *response {
	a := failure(err, h)
	if a.status < http.StatusInternalServerError || r.Context().Err() == nil || errors.Is(context.Cause(r.Context()), errDrained) {
		return a
	}
	return gone()
}

// failure is the answer to an event without a verdict.
func failure(err error, h *rules.HTTP) *response {
	again := "it is safe to send the request again"
	if errors.Is(err, processor.ErrKeyless) {
		again = "the event has no key: if it reached the bus all the same, sending it again puts it there twice"
	}
	switch {
	case errors.Is(err, processor.ErrTooLarge):
		return problemTooLarge.respond(overTopic)
	case errors.Is(err, processor.ErrNoVerdict) && h.AcceptOnTimeout:
		return accepted("timeout")
	case errors.Is(err, processor.ErrNoVerdict):
		return problemVerdictTimeout.respond("the event is on the bus; "+again).with("Retry-After", seconds(retrySoon))
	}
	// The error's text is about brokers, which are none of the sender's business.
	r := problemKafkaUnavailable.respond(again).with("Retry-After", seconds(retrySoon))
	r.reason = err.Error()
	return r
}

// receive reads the body and checks the signature. It returns the answer where
// one of them ends the request.
func (s *Server) receive(w http.ResponseWriter, r *http.Request, rq *request, in *intake) ([]byte, *response) {
	for _, coding := range r.Header.Values("Content-Encoding") {
		coding = strings.TrimSpace(coding)
		if coding != "" && !strings.EqualFold(coding, "identity") {
			return nil, encoded()
		}
	}
	body, err := readBody(w, r, in.most, &rq.memory)
	if err != nil {
		return nil, s.unreadable(r, rq, in, err)
	}
	rq.bytes = len(body)
	// From here on a wait is a verdict's and has its own limit. The server
	// takes a read that times out for a client that went away.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // every connection of a server has one
	rq.taken = s.now()
	if err := in.gate.verify(r.Header, body, rq.taken); err != nil {
		return nil, s.refuse(rq, refusal(err), unauthorized(in.gate.challenge))
	}
	return body, nil
}

// unreadable is the answer to a body that did not come in.
func (s *Server) unreadable(r *http.Request, rq *request, in *intake, err error) *response {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge(in)
	case errors.Is(err, errBodies):
		return s.refuse(rq, reasonBodies, busy())
	case errors.Is(err, os.ErrDeadlineExceeded):
		return tooSlow()
	case r.Context().Err() != nil && !errors.Is(err, io.ErrUnexpectedEOF): // at that end it may still read
		return gone()
	}
	return notWhole()
}
