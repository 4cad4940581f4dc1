package ingress

import (
	"net/http"
	"testing"
)

func TestSource(t *testing.T) {
	trusted, err := Config{TrustedProxies: []string{"10.0.0.0/8", "fd00::1"}}.trustedProxies()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		peer      string
		forwarded []string
		want      string
	}{
		{"192.0.2.1:80", nil, "192.0.2.1"},
		{"192.0.2.1:80", []string{"1.1.1.1"}, "192.0.2.1"}, // not trusted
		{"10.1.1.1:80", []string{"1.1.1.1"}, "1.1.1.1"},
		{"10.1.1.1:80", []string{"9.9.9.9, 1.1.1.1"}, "1.1.1.1"}, // an address that the client wrote itself
		{"10.1.1.1:80", []string{"9.9.9.9", "1.1.1.1, 10.2.2.2"}, "1.1.1.1"},
		{"10.1.1.1:80", []string{"9.9.9.9, nonsense, 10.2.2.2"}, "10.2.2.2"},
		{"10.1.1.1:80", []string{"1.1.1.1:4711"}, "1.1.1.1"},
		{"10.1.1.1:80", nil, "10.1.1.1"},
		{"[::ffff:10.1.1.1]:80", []string{"2001:db8::1"}, "2001:db8::1"},
		{"[fd00::1]:80", []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		{"[fd00::1]:80", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"10.1.1.1:80", []string{"1.1.1.1, "}, "1.1.1.1"},
		{"10.1.1.1:80", []string{"9.9.9.9,, 1.1.1.1,", "", " ,10.2.2.2"}, "1.1.1.1"},
		{"10.1.1.1:80", []string{"9.9.9.9, [nonsense], 10.2.2.2"}, "10.2.2.2"},
		{"[fe80::1%eth0]:80", nil, "fe80::1"},
		{"@", []string{"1.1.1.1"}, "invalid IP"},
	} {
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.forwarded}}
		if got := sourceOf(r, trusted).String(); got != c.want {
			t.Errorf("%s %q: %s, want %s", c.peer, c.forwarded, got, c.want)
		}
	}
}
