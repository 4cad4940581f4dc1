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

// redactedMin is the length of the shortest secret that texts are searched for. Shorter
// ones occur in many words and are easy to guess.
const redactedMin = 4

// Redactor takes secrets out of texts that we did not write ourselves: errors
// and log lines of libraries, and what a broker or a token endpoint answered.
// None is known to hold one; this is the net below (exactly-once.md section 6).
type Redactor struct {
	replacer atomic.Pointer[strings.Replacer] // nil as long as there is no secret

	mu      sync.Mutex
	secrets map[string][]string // by what they are: the current one and the one before
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

// learn takes a secret that is in use from now on. Its predecessor may still
// be on its way into some error.
func (r *Redactor) learn(what, secret string) {
	if len(secret) < redactedMin {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.secrets[what]
	if slices.Contains(known, secret) {
		return
	}
	r.secrets[what] = append(known[max(0, len(known)-1):], secret)
	var pairs []string
	for _, what := range slices.Sorted(maps.Keys(r.secrets)) {
		for _, s := range r.secrets[what] {
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

// text returns s without the secrets.
func (r *Redactor) text(s string) string {
	if replacer := r.replacer.Load(); replacer != nil {
		return replacer.Replace(s)
	}
	return s
}

// Err returns err with a text without the secrets; what it wraps stays.
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

type redactedError struct {
	text string
	err  error
}

func (e *redactedError) Error() string { return e.text }

// Is and As reach through, Unwrap would hand the text out.
func (e *redactedError) Is(target error) bool { return errors.Is(e.err, target) }
func (e *redactedError) As(target any) bool   { return errors.As(e.err, target) }

// Handler returns next with everything that passes it redacted.
func (r *Redactor) Handler(next slog.Handler) slog.Handler { return redactingHandler{next, r} }

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
