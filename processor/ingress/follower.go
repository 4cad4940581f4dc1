package ingress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"oncebus/dedup/rules"
	"oncebus/processor/front"
)

// A follower is a client that receives the outcomes of its path as server-sent events (html.spec.whatwg.org,
// section 9.2). Each follower has its own Kafka reader and one goroutine. The server disconnects a follower
// that reads too slowly; the client can then connect again, and continue after the last id that it has
// received.

const (
	// eventStream is the media type of server-sent events.
	eventStream = "text/event-stream"
	// headerLastEvent has the id after which a client that connects again wants to continue.
	headerLastEvent = "Last-Event-ID"
	// heartbeat is the time between two signs of life on an idle stream. followerLife is the longest time of a
	// connection: the client then has to connect again, with the secret that is valid by then.
	heartbeat, followerLife = 15 * time.Second, 10 * time.Minute
	// followerRetry is the delay after which the client is told to connect again.
	followerRetry = 2 * time.Second
)

// pushed is the JSON data of a server-sent event with an outcome.
type pushed struct {
	Route       string `json:"route"`
	Key         string `json:"key"`
	Verdict     string `json:"verdict"`
	ClaimStatus string `json:"claim_status"`
	Attempt     uint32 `json:"attempt"`
	Source      string `json:"source"`
	Request     string `json:"request,omitempty"`
	// Status, ContentType and the body are the same as in the HTTP response that a waiting sender gets.
	Status      int    `json:"status"`
	ContentType string `json:"content_type,omitempty"`
	Body        string `json:"body,omitempty"`
	BodyBase64  []byte `json:"body_base64,omitempty"` // of a body that is not UTF-8
}

// errStopping ends the stream of a follower because the server stops, or because the connection has reached
// followerLife.
var errStopping = errors.New("the stream ends")

// takeFollower responds to a follower.
func (s *Server) takeFollower(w http.ResponseWriter, r *http.Request, rq *request, e *endpoint) *response {
	if !asks(r) {
		s.leaveBody(w)
		return wrongMethod(allowAsking)
	}
	if rejected := s.receiveLookup(w, r, rq, e, &e.follow, r.URL.EscapedPath()); rejected != nil {
		return rejected
	}
	if r.Method == http.MethodHead {
		return &response{status: http.StatusOK, name: "events", contentType: eventStream}
	}
	return s.admitLookup(w, s.followers, rq, e, &e.follow, func() *response { return s.stream(w, r, rq, e) })
}

// stream responds with the outcomes of the path, until the client disconnects.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, rq *request, e *endpoint) *response {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	defer context.AfterFunc(s.stopping, func() { cancel(errStopping) })()
	replies, err := s.front.FollowReplies(ctx, e.routes, r.Header.Get(headerLastEvent))
	switch {
	case errors.Is(err, front.ErrPosition):
		return problemPosition.respond("connect without it: the stream then begins now")
	case err != nil:
		return s.respondToError(r, rq, err, e.HTTP)
	}
	defer replies.Close()
	s.metrics.followers.Inc()
	defer s.metrics.followers.Dec()
	h := w.Header()
	h["Cache-Control"], h["X-Content-Type-Options"] = noStore, noSniff
	h.Set("Content-Type", eventStream)
	h.Set("X-Accel-Buffering", "no") // a proxy must not keep events back
	w.WriteHeader(http.StatusOK)
	err = s.follow(ctx, w, e, replies)
	response := &response{status: http.StatusOK, name: "events", streamed: true}
	if !errors.Is(err, errStopping) {
		response.reason = err.Error()
		response.disconnected = true // the stream may be cut in the middle of an event
	}
	return response
}

// follow writes outcomes to the stream until an error ends it, and returns that error.
func (s *Server) follow(ctx context.Context, w http.ResponseWriter, e *endpoint, replies *front.Replies) error {
	out := &eventWriter{w: w, control: http.NewResponseController(w), timeout: s.cfg.WriteTimeout}
	greeting := fmt.Sprintf("retry: %d\nid: %s\n\n", followerRetry.Milliseconds(), replies.Position())
	if replies.Gap() {
		greeting += "event: gap\ndata: {\"detail\":\"outcomes after Last-Event-ID are gone: the retention of the replies topic is over\"}\n\n"
	}
	if err := out.write([]byte(greeting)); err != nil {
		return err
	}
	routes := map[string]*rules.Route{}
	for _, route := range e.routes {
		routes[route.Name] = route
	}
	ends := s.now().Add(followerLife)
	for {
		wrote := false
		err := replies.Next(ctx, heartbeat, func(reply *front.Reply) error {
			wrote = true
			return out.write(eventOf(routes[reply.Route], reply, replies.Position()))
		})
		switch {
		case err != nil && !errors.Is(err, context.Canceled):
			return err // a failed write cancels the request too
		case context.Cause(ctx) != nil:
			return context.Cause(ctx)
		case s.now().After(ends):
			return errStopping
		case wrote:
			continue
		}
		// An event with an id and no data still moves the position from which the client continues.
		if err := out.write([]byte(": alive\nid: " + replies.Position() + "\n\n")); err != nil {
			return err
		}
	}
}

// eventOf returns the event of an outcome.
func eventOf(route *rules.Route, reply *front.Reply, position string) []byte {
	response := respondToVerdict(route, &reply.Answer)
	data := pushed{
		Route: reply.Route, Key: reply.Key, Verdict: reply.Verdict.String(), ClaimStatus: reply.Status, Attempt: reply.Attempt, Source: reply.Source, Request: reply.Request,
		Status: response.status, ContentType: response.contentType,
	}
	if utf8.Valid(response.body) {
		data.Body = string(response.body)
	} else {
		data.BodyBase64 = response.body
	}
	text, err := json.Marshal(data) // on one line
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "id: %s\nevent: outcome\ndata: %s\n\n", position, text)
	return b.Bytes()
}

// eventWriter writes server-sent events. The server disconnects a client that does not read an event within
// timeout.
type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	timeout time.Duration
}

func (w *eventWriter) write(event []byte) error {
	if err := w.control.SetWriteDeadline(time.Now().Add(w.timeout)); err != nil {
		return err
	}
	if _, err := w.w.Write(event); err != nil {
		return err
	}
	return w.control.Flush()
}
