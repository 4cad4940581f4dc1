package deadletter

import (
	"encoding/hex"
	"slices"
	"strings"

	"oncebus/dedup/rules"
)

// Filter selects dead letters. The zero value selects all.
type Filter struct {
	Route string // "" for every route
	// Reason is either a class or a part of the reason.
	Reason string
	Topic  string // topic of the original
	// Since and Until bound the timestamp of the original, in Unix ms: from Since on, and before Until. 0 means
	// no bound.
	Since, Until int64
	Key          KeyFilter
}

// KeyFilter selects dead letters by their key. The zero value selects all.
type KeyFilter struct {
	raw    string
	digits map[string]bool
}

// NewKeyFilter returns a filter by a key. 64 hexadecimal digits are a dedup key; any text is also tried as a
// record key, and as an id from which a route derives dedup keys.
func NewKeyFilter(key string, routes *rules.Routes, secret []byte) KeyFilter {
	f := KeyFilter{raw: key, digits: map[string]bool{}}
	if b, err := hex.DecodeString(key); err == nil && len(b) == len(rules.Derived{}.Key) {
		f.digits[strings.ToLower(key)] = true
	}
	if routes.NeedsSecret() && len(secret) == 0 {
		return f
	}
	deriver := routes.NewDeriver(secret)
	for _, route := range routes.Routes {
		derived, err := deriver.OfID(route, key)
		if err != nil {
			continue // the route derives its keys from several ids, so no key of it comes from this one
		}
		for i := range derived {
			f.digits[hex.EncodeToString(derived[i].Key[:])] = true
		}
	}
	return f
}

func (f *KeyFilter) selects(l *Letter) bool {
	return f.digits == nil || f.digits[l.Key] || l.Record.Key != nil && string(l.Record.Key) == f.raw
}

// Selects reports whether the filter selects a dead letter.
func (f *Filter) Selects(l *Letter) bool {
	switch {
	case f.Route != "" && f.Route != l.Route, f.Topic != "" && f.Topic != l.Origin.Topic:
		return false
	case f.Since != 0 && l.Time < f.Since, f.Until != 0 && l.Time >= f.Until:
		return false
	case f.Reason != "" && slices.Contains(Classes, Class(f.Reason)):
		if Class(f.Reason) != l.Class {
			return false
		}
	case !strings.Contains(l.Reason, f.Reason):
		return false
	}
	return f.Key.selects(l)
}
