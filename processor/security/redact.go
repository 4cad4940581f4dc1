package security

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// redactedMin is the length in bytes of the shortest secret that a Redactor replaces. A shorter secret would
// occur in many words, and is easy to guess anyway.
const redactedMin = 4

// Redactor replaces secrets in texts that oncebus did not write: errors and log lines of libraries, and
// responses of brokers and token endpoints. The Redactor is a precaution: we know of no text of this kind that
// contains a secret.
type Redactor struct {
	replacer atomic.Pointer[strings.Replacer] // nil without a secret

	mu      sync.Mutex
	secrets map[string][]string // by kind: the previous secret and the current one
}

// NewRedactor returns a Redactor that knows the secrets of c.
func NewRedactor(c Config) *Redactor {
	r := &Redactor{secrets: map[string][]string{}}
	r.learn("key secret", string(c.KeySecret))
	r.learn(credentialPassword, string(c.SASL.Password))
	r.learn(credentialToken, string(c.SASL.Token))
	r.learn(credentialClientSecret, string(c.SASL.OAuth.ClientSecret))
	return r
}

// learn adds a secret. It keeps the previous secret of the same kind, because an error may still show it.
func (r *Redactor) learn(kind, secret string) {
	if len(secret) < redactedMin {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.secrets[kind]
	if slices.Contains(known, secret) {
		return
	}
	r.secrets[kind] = append(known[max(0, len(known)-1):], secret)
	var pairs []string
	for _, kind := range slices.Sorted(maps.Keys(r.secrets)) {
		for _, s := range r.secrets[kind] {
			quoted := strconv.Quote(s)
			for _, form := range []string{
				s, quoted[1 : len(quoted)-1], url.QueryEscape(s), url.PathEscape(s),
				base64.StdEncoding.EncodeToString([]byte(s)), fmt.Sprintf("%x", s),
			} {
				pairs = append(pairs, form, "***")
			}
		}
	}
	r.replacer.Store(strings.NewReplacer(pairs...))
}

// text returns s with *** in place of each secret.
func (r *Redactor) text(s string) string {
	if replacer := r.replacer.Load(); replacer != nil {
		return replacer.Replace(s)
	}
	return s
}

// Err returns err with *** in place of each secret in its text. errors.Is and errors.As still find what err
// wraps.
func (r *Redactor) Err(err error) error {
	if err == nil {
		return nil
	}
	text := r.text(err.Error())
	if text == err.Error() {
		return err
	}
	return &redactedError{text, err}
}

// redactedError has the text of an error without secrets, and the error itself.
type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }

// Is and As search the original error. There is no Unwrap, because it would give access to the original text.
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }
func (e *redactedError) As(target any) bool   { return errors.As(e.err, target) }

// Handler returns a handler that removes the secrets from every record before next writes it.
func (r *Redactor) Handler(next slog.Handler) slog.Handler { return redactingHandler{next, r} }

// redactingHandler removes secrets from the records that its Handler writes.
type redactingHandler struct {
	slog.Handler
	redact *Redactor
}

func (h redactingHandler) Handle(ctx context.Context, rec slog.Record) error {
	clean := slog.NewRecord(rec.Time, rec.Level, h.redact.text(rec.Message), rec.PC)
	rec.Attrs(func(a slog.Attr) bool {
		clean.AddAttrs(h.redact.attr(a))
		return true
	})
	return h.Handler.Handle(ctx, clean)
}

func (h redactingHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	clean := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		clean[i] = h.redact.attr(a)
	}
	return redactingHandler{h.Handler.WithAttrs(clean), h.redact}
}

func (h redactingHandler) WithGroup(name string) slog.Handler {
	return redactingHandler{h.Handler.WithGroup(name), h.redact}
}

func (r *Redactor) attr(a slog.Attr) slog.Attr {
	a.Value = a.Value.Resolve()
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(r.text(a.Value.String()))
	case slog.KindGroup:
		var clean []slog.Attr
		for _, member := range a.Value.Group() {
			clean = append(clean, r.attr(member))
		}
		a.Value = slog.GroupValue(clean...)
	case slog.KindAny:
		if text := fmt.Sprintf("%+v", a.Value.Any()); r.text(text) != text {
			a.Value = slog.StringValue(r.text(text))
		}
	}
	return a
}
