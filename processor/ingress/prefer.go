package ingress

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Headers of RFC 7240.
const (
	headerPrefer  = "Prefer"
	headerApplied = "Preference-Applied"
)

// preference is what a sender prefers about a response that may take long (RFC 7240).
type preference struct {
	async   bool // respond-async
	hasWait bool
	wait    time.Duration
}

// readPreference parses the preferences of RFC 7240 that have a meaning here. If a preference is repeated, the
// first counts; a preference that cannot be parsed counts as absent. Both are rules of the RFC.
func readPreference(in http.Header) preference {
	p := preference{}
	sawWait := false
	for _, one := range splitOutside(strings.Join(in.Values(headerPrefer), ","), ',') {
		name, value, _ := strings.Cut(splitOutside(one, ';')[0], "=")
		value = strings.Trim(strings.TrimSpace(value), `"`)
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "respond-async":
			p.async = true
		case "wait":
			seconds, err := strconv.ParseUint(value, 10, 31)
			if !sawWait && err == nil {
				p.hasWait, p.wait = true, time.Duration(seconds)*time.Second
			}
			sawWait = true
		}
	}
	return p
}

// splitOutside splits text at every separator that is not inside a quoted string.
func splitOutside(text string, separator byte) []string {
	var parts []string
	begin, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == separator && !quoted:
			parts, begin = append(parts, text[begin:i]), i+1
		}
	}
	return append(parts, text[begin:])
}

// within returns how long a request waits for its outcome, at most most, and the value of the header
// Preference-Applied; "" if the server applies no preference.
func (p preference) within(most time.Duration) (wait time.Duration, applied string) {
	switch {
	case p.hasWait:
		wait = min(p.wait, most)
		applied = "wait=" + strconv.FormatInt(int64(wait/time.Second), 10)
		if p.async {
			applied = "respond-async, " + applied
		}
		return wait, applied
	case p.async:
		return 0, "respond-async"
	}
	return most, ""
}
