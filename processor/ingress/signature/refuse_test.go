package signature

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// otherSecret is usable with every scheme, and no vector has it.
const otherSecret = "whsec_bm90IHRoZSBzZWNyZXQgb2YgYW55IHZlY3Rvcg=="

// wantError fails unless err is want and reveals no secret.
func wantError(t *testing.T, what string, err, want error, v vector) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
	if err == nil {
		return
	}
	hidden := []string{v.secret, string(v.body)}
	for _, part := range strings.FieldsFunc(v.header.Get(v.signed), func(r rune) bool { return strings.ContainsRune(" ,=", r) }) {
		if len(part) > 8 {
			hidden = append(hidden, part)
		}
	}
	for _, s := range hidden {
		if s != "" && strings.Contains(err.Error(), s) {
			t.Errorf("%s: the error %q contains %q", what, err, s)
		}
	}
}

// everyVector runs the test with every vector.
func everyVector(t *testing.T, test func(t *testing.T, v vector)) {
	t.Helper()
	for _, v := range vectors(t) {
		t.Run(v.name, func(t *testing.T) { test(t, v) })
	}
}

func TestChangedBody(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		if v.cfg.Scheme == Bearer {
			t.Skip("a token does not cover the body")
		}
		for i := range v.body {
			c := v.clone()
			c.body[i] ^= 1
			wantError(t, fmt.Sprintf("byte %d changed", i), c.verify(t), ErrWrong, v)
		}
		for what, body := range map[string]string{
			"line end added": string(v.body) + "\n", "a byte in front": " " + string(v.body), "twice": string(v.body) + string(v.body) + " ",
		} {
			c := v.clone()
			c.body = []byte(body)
			wantError(t, what, c.verify(t), ErrWrong, v)
		}
	})
}

func TestMissingHeader(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		for name := range v.header {
			c := v.clone()
			c.header.Del(name)
			wantError(t, "without "+name, c.verify(t), ErrMissing, v)
			c.header[name] = []string{}
			wantError(t, "with no "+name, c.verify(t), ErrMissing, v)
			c.header[name] = []string{""}
			wantError(t, "with an empty "+name, c.verify(t), ErrMissing, v)
		}
	})
}

// Two lines of a header are refused, even if both are right.
func TestDoubledHeader(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		for name := range v.header {
			right := v.header.Get(name)
			for what, values := range map[string][]string{
				"the same twice": {right, right}, "then another": {right, "x"}, "after another": {"x", right}, "then an empty one": {right, ""},
			} {
				c := v.clone()
				c.header[name] = values
				wantError(t, name+", "+what, c.verify(t), ErrMalformed, v)
			}
		}
	})
}

// A proxy may join two lines of a header with a comma. Two lists of Standard Webhooks
// are then one list, from whose entries the body and the timestamp do not depend.
func TestDoubledSignatureInOneHeader(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		right := v.header.Get(v.signed)
		for _, comma := range []string{",", ", "} {
			c := v.clone()
			c.header.Set(v.signed, right+comma+right)
			if v.cfg.Scheme == StandardWebhooks && (comma == ", " || strings.Contains(right, " ")) {
				if err := c.verify(t); err != nil {
					t.Errorf("joined with %q: %v", comma, err)
				}
				continue
			}
			wantError(t, fmt.Sprintf("joined with %q", comma), c.verify(t), ErrMalformed, v)
		}
	})
}

// Every truncated header is refused, and a truncated signature is not compared.
func TestTruncated(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		for name, values := range v.header {
			for n := range len(values[0]) {
				if v0 := strings.Index(values[0], ",v0="); v0 >= 0 && n >= v0 {
					continue // an entry v0, which Verify ignores
				}
				c := v.clone()
				c.header.Set(name, values[0][:n])
				err := c.verify(t)
				if err == nil {
					t.Errorf("%s cut to %d bytes was accepted", name, n)
				}
				if name == v.signed && v.cfg.Scheme != Bearer && errors.Is(err, ErrWrong) && !strings.Contains(v.name, "rolled") {
					t.Errorf("%s cut to %d bytes was compared: %v", name, n, err)
				}
			}
		}
	})
}

// A signature with one wrong character is refused.
func TestChangedSignature(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		value := v.header.Get(v.signed)
		end := len(value)
		if i := strings.Index(value, ",v0="); i >= 0 {
			end = i // Verify ignores the entry v0
		}
		for i := range end {
			for _, r := range []byte("0aZ+=,. \x00\n\xff") {
				if strings.EqualFold(value[i:i+1], string(rune(r))) {
					continue
				}
				c := v.clone()
				c.header.Set(v.signed, value[:i]+string([]byte{r})+value[i+1:])
				if err := c.verify(t); err == nil && !ignored(v, value, i) {
					t.Errorf("accepted with %q for byte %d", r, i)
				}
			}
		}
	})
}

// ignored reports whether byte i of value belongs to an entry that Verify ignores:
// another version, or another signature than the right one.
func ignored(v vector, value string, i int) bool {
	if strings.Contains(v.name, "asymmetric") {
		return i < strings.Index(value, " v1,")
	}
	if strings.Contains(v.name, "rolled") {
		first := strings.Index(value, ",v1=")
		return i >= first && i < strings.LastIndex(value, ",v1=")
	}
	return false
}

func TestStaleAndFuture(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		if !v.timed() {
			for _, now := range []time.Time{{}, v.at.AddDate(100, 0, 0)} {
				if err := v.verifyWith(t, now, v.secret); err != nil {
					t.Errorf("without timestamp, at %s: %v", now, err)
				}
			}
			return
		}
		const tolerance = 90 * time.Second
		v.cfg.Tolerance = tolerance
		for _, d := range []time.Duration{0, tolerance, -tolerance, tolerance - 1, 1 - tolerance} {
			if err := v.verifyWith(t, v.at.Add(d), v.secret); err != nil {
				t.Errorf("%s after signing: %v", d, err)
			}
		}
		for _, d := range []time.Duration{tolerance + 1, -tolerance - 1, time.Hour, -time.Hour, 1<<63 - 1, -1 << 63} {
			wantError(t, d.String()+" after signing", v.verifyWith(t, v.at.Add(d), v.secret), ErrStale, v)
		}
		v.cfg.Tolerance = 0
		if err := v.verifyWith(t, v.at.Add(DefaultTolerance), v.secret); err != nil {
			t.Errorf("at the default tolerance: %v", err)
		}
		wantError(t, "past the default tolerance", v.verifyWith(t, v.at.Add(DefaultTolerance+1), v.secret), ErrStale, v)
		wantError(t, "at the zero time", v.verifyWith(t, time.Time{}, v.secret), ErrStale, v)
	})
}

// TestAheadIsLessThanTheTolerance: Ahead limits timestamps of the future, not
// those of the past.
func TestAheadIsLessThanTheTolerance(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		if !v.timed() {
			return
		}
		const tolerance, ahead = 5 * time.Second, time.Second
		v.cfg.Tolerance, v.cfg.Ahead = tolerance, ahead
		for _, d := range []time.Duration{tolerance, -ahead, 1 - ahead, 0} {
			if err := v.verifyWith(t, v.at.Add(d), v.secret); err != nil {
				t.Errorf("%s after signing: %v", d, err)
			}
		}
		for _, d := range []time.Duration{tolerance + 1, -ahead - 1, -tolerance, -1 << 63} {
			wantError(t, d.String()+" after signing", v.verifyWith(t, v.at.Add(d), v.secret), ErrStale, v)
		}
	})
}

// withTimestamp returns the vector with another timestamp under the same
// signature.
func (v vector) withTimestamp(timestamp string) vector {
	c := v.clone()
	old := strconv.FormatInt(v.at.Unix(), 10)
	for name, values := range c.header {
		switch {
		case strings.Contains(name, "Timestamp"):
			c.header[name] = []string{timestamp}
		case name == "Stripe-Signature":
			c.header[name] = []string{strings.Replace(values[0], "t="+old, "t="+timestamp, 1)}
		}
	}
	return c
}

func TestTimestampIsSignedAndPlain(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		if !v.timed() {
			t.Skip("no timestamp")
		}
		s := strconv.FormatInt(v.at.Unix(), 10)
		wantError(t, "a second later", v.withTimestamp(strconv.FormatInt(v.at.Unix()+1, 10)).verify(t), ErrWrong, v)
		wantError(t, "with a zero in front", v.withTimestamp("0"+s).verify(t), ErrWrong, v)
		for _, timestamp := range []string{
			"+" + s, "-" + s, " " + s, s + " ", s + ".0", s + "000", "0x" + s, s[:1] + "_" + s[1:], s + "e0", "000" + s,
			"１", "99999999999999999999", "-9223372036854775808", "now", s + "\n", "\x00", "2026-01-01T00:00:00Z",
		} {
			wantError(t, strconv.Quote(timestamp), v.withTimestamp(timestamp).verify(t), ErrMalformed, v)
		}
	})
}

// The borders between signed parts cannot move under the same signature.
func TestBordersOfSignedParts(t *testing.T) {
	for _, v := range vectors(t) {
		switch v.cfg.Scheme {
		case StandardWebhooks:
			id := v.header.Get("Webhook-Id")
			c := v.clone()
			c.header.Set("Webhook-Id", id+"."+v.header.Get("Webhook-Timestamp"))
			wantError(t, "id with a full stop", c.verify(t), ErrMalformed, v)
			c.header.Set("Webhook-Id", id+"0")
			wantError(t, "another id", c.verify(t), ErrWrong, v)
		case Slack:
			c := v.clone()
			c.header.Set("X-Slack-Request-Timestamp", v.header.Get("X-Slack-Request-Timestamp")+":"+string(v.body[:1]))
			c.body = c.body[1:]
			wantError(t, "body in the timestamp", c.verify(t), ErrMalformed, v)
		case GitHub, Stripe, HMAC, Bearer, None:
		}
	}
}

// Hexadecimal digits may have either case; prefixes and names may not.
func TestCase(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		value := v.header.Get(v.signed)
		switch {
		case v.cfg.Scheme == Bearer:
			for _, scheme := range []string{"bearer ", "BEARER ", "Bearer   "} {
				v.wantWith(t, scheme+v.secret, nil)
			}
			v.wantWith(t, "Bearer "+strings.ToUpper(v.secret), ErrWrong)
		case v.cfg.Scheme == Stripe:
			at := strings.LastIndex(value, "v1=") + len("v1=")
			v.wantWith(t, value[:at]+strings.ToUpper(value[at:at+64])+value[at+64:], nil)
			v.wantWith(t, strings.ReplaceAll(value, "v1=", "V1="), ErrMissing)
		case v.cfg.Scheme == StandardWebhooks:
			v.wantWith(t, strings.ReplaceAll(value, "v1,", "V1,"), ErrMissing)
			v.wantRefused(t, strings.ToLower(value))
		case v.cfg.Encoding == "base64":
			v.wantRefused(t, v.cfg.Prefix+strings.ToLower(strings.TrimPrefix(value, v.cfg.Prefix)))
		default:
			at := strings.IndexByte(value, '=') + 1
			v.wantWith(t, value[:at]+strings.ToUpper(value[at:]), nil)
			if at > 0 {
				v.wantWith(t, strings.ToUpper(value), ErrMalformed)
			}
		}
	})
}

// wantWith verifies the vector with another value of the signature's header.
func (v vector) wantWith(t *testing.T, value string, want error) {
	t.Helper()
	c := v.clone()
	c.header.Set(v.signed, value)
	wantError(t, strconv.Quote(value), c.verify(t), want, v)
}

// wantRefused is wantWith for any error.
func (v vector) wantRefused(t *testing.T, value string) {
	t.Helper()
	c := v.clone()
	c.header.Set(v.signed, value)
	if err := c.verify(t); err == nil {
		t.Errorf("accepted %q", value)
	}
}

// net/http removes the blanks around a value, so that remaining ones are part of
// it.
func TestWhitespace(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		value := v.header.Get(v.signed)
		for _, spaced := range []string{" " + value, value + " ", "\t" + value, value + "\t", value + "\r\n", "\n" + value, value[:len(value)-4] + " " + value[len(value)-4:]} {
			if strings.Contains(v.name, "v0 of test") && strings.HasPrefix(spaced, value[:20]) {
				continue // Verify ignores the spaced entry
			}
			if isList := v.cfg.Scheme == StandardWebhooks || v.cfg.Scheme == Stripe; isList && strings.Trim(spaced, " ") == value {
				continue // of a list, a space before or after it is no part of an entry
			}
			if strings.Contains(v.name, "asymmetric") && strings.HasSuffix(spaced, value) {
				continue // Verify ignores the first entry
			}
			c := v.clone()
			c.header.Set(v.signed, spaced)
			if err := c.verify(t); err == nil {
				t.Errorf("accepted %q", spaced)
			}
		}
	})
}

// Base64 decoders ignore line ends, so that a short signature can have the length
// of a complete one.
func TestLineEndsInBase64(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		if v.cfg.Encoding != "base64" && v.cfg.Scheme != StandardWebhooks {
			t.Skip("no base64")
		}
		value := v.header.Get(v.signed)
		c := v.clone()
		c.header.Set(v.signed, value[:len(value)-8]+"\r\n\r\n"+value[len(value)-4:])
		wantError(t, "four characters replaced", c.verify(t), ErrMalformed, v)
		c.header.Set(v.signed, value+"\r\n")
		wantError(t, "two characters added", c.verify(t), ErrMalformed, v)
	})
}

// A header over headerBytesMax is refused, even if it is right.
func TestLongHeader(t *testing.T) {
	for _, v := range vectors(t) {
		filling, ok := map[Scheme]string{StandardWebhooks: "v2, ", Stripe: "v2=,"}[v.cfg.Scheme]
		if !ok {
			continue
		}
		value := v.header.Get(v.signed)
		long := func(bytes int) vector {
			c := v.clone()
			c.header.Set(v.signed, filling[:3]+strings.Repeat("A", bytes-len(value)-len(filling))+filling[3:]+value)
			return c
		}
		if err := long(headerBytesMax).verify(t); err != nil {
			t.Errorf("%s: %d bytes: %v", v.name, headerBytesMax, err)
		}
		wantError(t, v.name, long(headerBytesMax+1).verify(t), ErrMalformed, v)
	}
}

func TestGarbage(t *testing.T) {
	everyVector(t, func(t *testing.T, v vector) {
		for _, garbage := range []string{
			"x", "=", ",", " ", "v1", "v1=", "v1,", "t=", "t=,v1=", "v1,=", "sha256=", "v0=", "Bearer", "Bearer ", "Basic dTpw", "\x00", "\xff\xfe",
			strings.Repeat(",", 5000), strings.Repeat("v1,", 5000), strings.Repeat("a", headerBytesMax+1), strings.Repeat("v1= ", 1000),
			"sha256=" + strings.Repeat("0", 64) + "0", "sha256=" + strings.Repeat("g", 64), "v1," + strings.Repeat("=", 44), strings.Repeat("\n", 44),
		} {
			c := v.clone()
			c.header.Set(v.signed, garbage)
			if err := c.verify(t); err == nil {
				t.Errorf("accepted %.80q", garbage)
			}
		}
	})
}

// TestOddEntryNextToAGoodOne: a list is valid by one good entry, whatever the others are.
func TestOddEntryNextToAGoodOne(t *testing.T) {
	const short = "AAAA"
	odd := map[Scheme][]string{
		StandardWebhooks: {"v1", "v1,", ",", "v1," + short, "v1,%%%", "v2,x", "garbage", "v1a,-", "=", "v1,x,y", "\x00,\xff", ""},
		Stripe:           {"v1", "v1=", "=", "v1=" + short, "v1=xyz", "v2=x", "garbage", "v0=", "=v1", "\x00=\xff", "", " v1=00"},
	}
	between := map[Scheme]string{StandardWebhooks: " ", Stripe: ","}
	everyVector(t, func(t *testing.T, v vector) {
		value := v.header.Get(v.signed)
		for _, entry := range odd[v.cfg.Scheme] {
			for _, list := range []string{entry + between[v.cfg.Scheme] + value, value + between[v.cfg.Scheme] + entry} {
				v.wantWith(t, list, nil)
				c := v.clone()
				c.header.Set(v.signed, list)
				c.body = append(c.body, ' ')
				wantError(t, "another body with "+strconv.Quote(list), c.verify(t), ErrWrong, v)
			}
			if entry != "" {
				v.wantRefused(t, entry)
			}
		}
	})
	for _, v := range vectors(t) {
		if v.cfg.Scheme == Stripe {
			v.wantWith(t, v.header.Get(v.signed)+",t=1", ErrMalformed)
			v.wantWith(t, "t=1,"+v.header.Get(v.signed), ErrMalformed)
			v.wantWith(t, v.header.Get(v.signed)+", t=1", ErrMalformed)
		}
	}
}

// The lists are limited: the last allowed entry may be the right one.
func TestTooManySignatures(t *testing.T) {
	wrong := map[Scheme]string{
		StandardWebhooks: "v1,Ceo5qEr07ixe2NLpvHk3FH9bwy/WavXrAFQ/9tdO6mc= ",
		Stripe:           "v1=" + hex.EncodeToString(make([]byte, 32)) + ",",
	}
	everyVector(t, func(t *testing.T, v vector) {
		entry, ok := wrong[v.cfg.Scheme]
		if !ok {
			t.Skip("one signature only")
		}
		value := v.header.Get(v.signed)
		wrongEntries := signaturesMax - strings.Count(value, entry[len(entry)-1:]) - 1
		c := v.clone()
		c.header.Set(v.signed, strings.Repeat(entry, wrongEntries)+value)
		if err := c.verify(t); err != nil {
			t.Errorf("the last of %d entries: %v", signaturesMax, err)
		}
		c.header.Set(v.signed, strings.Repeat(entry, wrongEntries+1)+value)
		wantError(t, "one entry more", c.verify(t), ErrMalformed, v)
	})
}

func TestBearerWithoutBearer(t *testing.T) {
	verifier, err := New(Config{Scheme: Bearer})
	if err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]error{
		"secret": ErrMissing, "Basic secret": ErrMissing, "Bearer": ErrMalformed, "Bearersecret": ErrMissing, "Bearer\tsecret": ErrMissing,
		"Bearer secret Bearer secret": ErrMalformed, "Bearer secre": ErrWrong, "Bearer secrets": ErrWrong, "Bearer secret": nil,
	} {
		err := verifier.Verify(bytesOf("other", "secret"), Request{Header: http.Header{"Authorization": {value}}}, time.Time{})
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", value, err, want)
		}
	}
}
