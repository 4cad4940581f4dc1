package ingress

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"oncebus/dedup/rules"
	"oncebus/processor/ingress/signature"
)

// A handshake is a request by which a provider asks whether the endpoint is the right one. The responses in
// this file end the request: nothing of it is produced to Kafka.

// textType is the content type of a challenge that the server sends back. Together with the header nosniff it
// prevents a browser from rendering the challenge as anything but text.
const textType = "text/plain; charset=utf-8"

// Parameters of Meta's handshake.
const (
	metaMode      = "hub.mode"
	metaTokenName = "hub.verify_token"
	metaChallenge = "hub.challenge"
)

// metaToken describes the token in Meta's handshake as a signature, so that an authenticator can verify it.
func metaToken(h *rules.HTTP) *rules.Signature {
	return &rules.Signature{Scheme: rules.Token, Secret: h.Handshake.VerifyToken, Query: metaTokenName}
}

// allowsSource reports whether this address is among the allowed sources of the endpoint.
func (e *endpoint) allowsSource(source netip.Addr) bool {
	return e.AllowedSources == nil || contain(e.AllowedSources, source.Unmap())
}

// answerMeta responds to Meta's handshake, which is a GET with a token and a challenge.
func (s *Server) answerMeta(r *http.Request, rq *request, e *endpoint) *response {
	if err := e.token.verify(signature.Request{Header: r.Header, Query: r.URL.RawQuery}, s.now()); err != nil {
		return s.reject(rq, signatureReason(err), problemHandshake.respond(""))
	}
	query, _ := url.ParseQuery(r.URL.RawQuery) // verify has parsed it
	challenge := query.Get(metaChallenge)
	if query.Get(metaMode) != "subscribe" || challenge == "" || !fitsHeader(challenge) {
		return problemHandshake.respond("want hub.mode=subscribe and a hub.challenge of printable ASCII")
	}
	return handshakeText(challenge)
}

// handshakeBody has the fields of the handshakes that come in a body.
type handshakeBody struct {
	Type      any    `json:"type"`
	Challenge string `json:"challenge"`
	Event     any    `json:"event"`
	Payload   struct {
		PlainToken string `json:"plainToken"`
	} `json:"payload"`
}

// answerHandshake returns the response to a signed request that is a handshake, and nil for an event. A body
// that cannot be parsed as a handshake is an event.
func (e *endpoint) answerHandshake(r signature.Request, received time.Time) *response {
	if e.Handshake.Kind == rules.NoHandshake || e.Handshake.Kind == rules.MetaHandshake {
		return nil
	}
	var b handshakeBody
	if err := json.Unmarshal(r.Body, &b); err != nil {
		return nil
	}
	switch e.Handshake.Kind {
	case rules.SlackHandshake:
		if b.Type == "url_verification" && b.Challenge != "" && fitsHeader(b.Challenge) {
			return handshakeText(b.Challenge)
		}
	case rules.ZoomHandshake:
		if b.Event == "endpoint.url_validation" && fitsToken(b.Payload.PlainToken) && e.body.auth.keys != nil {
			return handshakeJSON(map[string]string{"plainToken": b.Payload.PlainToken, "encryptedToken": zoomToken(e.body.auth.signedWith(r, received), b.Payload.PlainToken)})
		}
	case rules.DiscordHandshake:
		switch { // a webhook event has type 1, too, but unlike a handshake it also has the field event
		case b.Type == 0.0:
			return &response{status: http.StatusNoContent, name: handshakeName}
		case b.Type == 1.0 && b.Event == nil:
			return handshakeJSON(map[string]int{"type": 1})
		}
	case rules.NoHandshake, rules.MetaHandshake:
	}
	return nil
}

// fitsToken reports whether the server may sign this token for Zoom. The text that Zoom signs for a request
// contains colons, so the HMAC of a token without a colon is never the signature of a request.
func fitsToken(token string) bool {
	return token != "" && fitsHeader(token) && !strings.Contains(token, ":")
}

// zoomToken returns the HMAC of a token, made with the secret that its request was signed with.
func zoomToken(secret []byte, token string) string {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(token))
	return hex.EncodeToString(mac.Sum(nil))
}

// handshakeName names the response to a handshake in metrics and log.
const handshakeName = "handshake"

func handshakeText(challenge string) *response {
	return &response{status: http.StatusOK, name: handshakeName, contentType: textType, body: []byte(challenge)}
}

func handshakeJSON(content any) *response {
	text, err := json.Marshal(content, json.Deterministic(true))
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return &response{status: http.StatusOK, name: handshakeName, contentType: jsonType, body: text}
}
