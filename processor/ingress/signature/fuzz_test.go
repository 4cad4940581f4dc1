package signature

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

// FuzzVerify changes the requests of the vectors. Verify must accept only the
// originals, because their secrets have signed nothing else. With a random secret it
// must accept none.
func FuzzVerify(f *testing.F) {
	list := vectors(f)
	names := make([][]string, len(list))
	for i, v := range list {
		for name := range v.header {
			names[i] = append(names[i], name)
		}
		slices.Sort(names[i])
		values := make([]string, 3)
		for j, name := range names[i] {
			values[j] = v.header.Get(name)
		}
		f.Add(uint8(i), v.body, values[0], values[1], values[2], false, int64(0))
		f.Add(uint8(i), append(slices.Clone(v.body), ' '), values[0], values[1], values[2], true, int64(DefaultTolerance)+1)
	}
	drawn := make([]byte, 32)
	if _, err := rand.Read(drawn); err != nil {
		f.Fatal(err)
	}
	// Every scheme accepts this form.
	secret := base64.StdEncoding.EncodeToString(drawn)

	f.Fuzz(func(t *testing.T, n uint8, body []byte, first, second, third string, doubled bool, offset int64) {
		i := int(n) % len(list)
		v := list[i]
		header := http.Header{}
		for j, name := range names[i] {
			header[name] = []string{[]string{first, second, third}[j]}
		}
		if doubled {
			header[v.signed] = append(header[v.signed], first)
		}
		verifier, err := New(v.cfg)
		if err != nil {
			t.Fatal(err)
		}
		now := v.at.Add(time.Duration(offset))
		err = verifier.Verify(bytesOf(v.secret), Request{Header: header, Body: body}, now)
		source := slices.IndexFunc(list, func(w vector) bool { return w.isSource(v, header, body) })
		switch {
		case err != nil:
			if !slices.ContainsFunc([]error{ErrMissing, ErrMalformed, ErrStale, ErrWrong}, func(e error) bool { return errors.Is(err, e) }) {
				t.Errorf("%s: the error %v is not one of the package's", v.name, err)
			}
		case doubled:
			t.Errorf("%s: accepted a header that comes twice", v.name)
		case v.cfg.Scheme == Bearer:
		case source < 0:
			t.Errorf("%s: accepted a request that the secret never signed: %q with %q", v.name, body, header)
		case v.timed() && now.Sub(list[source].at).Abs() > DefaultTolerance:
			t.Errorf("%s: accepted %s after it was signed", v.name, now.Sub(list[source].at))
		}
		if err := verifier.Verify(bytesOf(secret), Request{Header: header, Body: body}, now); err == nil {
			t.Errorf("%s: accepted a request signed with another secret: %q", v.name, header)
		}
	})
}

// isSource reports whether the request is that of v, a vector with the key of tried.
// Only the signature's header has several spellings.
func (v vector) isSource(tried vector, header http.Header, body []byte) bool {
	for name, values := range header {
		if name != tried.signed && !slices.Equal(values, v.header[name]) {
			return false
		}
	}
	sameKey := strings.TrimPrefix(v.secret, "whsec_") == strings.TrimPrefix(tried.secret, "whsec_")
	return v.cfg == tried.cfg && sameKey && bytes.Equal(body, v.body)
}
