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

// preference is what a sender prefers of a response that may take long.
type preference struct {
	async   bool // respond-async
	hasWait bool
	wait    time.Duration
}

// readPreference reads the preferences of RFC 7240 that have a meaning here. Of a repeated one
// the first counts, and one that cannot be read counts as absent, as the RFC has it.
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

// splitOutside splits text at a separator that is not in a quoted string.
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

// within returns how long a request waits for its outcome, of at most most, and the value of
// Preference-Applied; "" for none.
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
