package dedup

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

// TestAddressText compares the text of an address with a text that was computed by hand from the format.
func TestAddressText(t *testing.T) {
	const text = "00000005" + "0123456789abcdef" + "00000000000000ff"
	a := Address{Partition: 5, Ingress: 0x0123456789abcdef, Request: 255}
	if got := string(a.AppendText(nil)); got != text {
		t.Errorf("got %s, want %s", got, text)
	}
	if back, ok := ParseAddress([]byte(text)); !ok || back != a {
		t.Errorf("read as %+v, %v", back, ok)
	}
	for name, bad := range map[string]string{
		"empty": "", "short": text[1:], "long": text + "0", "upper case": strings.ToUpper(text), "no hex": "g" + text[1:],
		"negative": "8" + text[1:], "no ingress": text[:8] + strings.Repeat("0", 16) + text[24:], "with a space": " " + text[1:],
	} {
		if a, ok := ParseAddress([]byte(bad)); ok {
			t.Errorf("%s: read as %+v", name, a)
		}
	}
}

func FuzzAddress(f *testing.F) {
	f.Add([]byte("000000050123456789abcdef00000000000000ff"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if a, ok := ParseAddress(text); ok && !bytes.Equal(a.AppendText(nil), text) {
			t.Errorf("%q was read as %+v", text, a)
		}
	})
}

// TestClaimEncoding covers claims with and without addresses, a claim whose key was also forwarded unchecked, and a
// claim whose token names the app. The expected bytes were computed by hand.
func TestClaimEncoding(t *testing.T) {
	key := strings.Repeat("00", 32)
	c := Claim{Since: 1, Requests: []Request{{At: Position{3, 5, 7}, ID: []byte("a")}, {At: Position{3, 5, 8}}}}
	for _, v := range []struct {
		address Address
		hex     string
	}{
		{Address{}, "0100" + key + "02" + "00" + "02" + "030507000261" + "0305080000" + "000000"},
		{Address{Partition: 300, Ingress: 1, Request: 2}, "0102" + key + "02" + "00" + "02" + "030507000261" + "01" + "ac02" + "0100000000000000" + "0200000000000000" + "0305080000" + "00" + "000000"},
	} {
		c.Requests[0].ReplyTo = v.address
		b := c.Append(nil)
		if got := hex.EncodeToString(b); got != v.hex {
			t.Errorf("got %s, want %s", got, v.hex)
		}
		back, err := DecodeClaim(b)
		if err != nil || back.Requests[0].ReplyTo != v.address || back.Requests[1].ReplyTo.IsSet() {
			t.Errorf("read as %+v, %v", back, err)
		}
	}
	c.Requests[0].ReplyTo, c.Bypassed = Address{}, true
	want := "0101" + key + "02" + "00" + "02" + "030507000261" + "0305080000" + "000000"
	if got := hex.EncodeToString(c.Append(nil)); got != want {
		t.Errorf("forwarded unchecked: %s, want %s", got, want)
	}
	c.Bypassed, c.AppToken, c.Omitted, c.OmittedDigest = false, true, 9, ResultDigest{0xab, 15: 0xcd}
	want = "0108" + key + "02" + "00" + "02" + "030507000261" + "0305080000" + "09" + "ab" + strings.Repeat("00", 14) + "cd" + "0000"
	if got := hex.EncodeToString(c.Append(nil)); got != want {
		t.Errorf("with the app in its token, and an omitted result: %s, want %s", got, want)
	}
	if back, err := DecodeClaim(c.Append(nil)); err != nil || !back.AppToken || back.OmittedDigest != c.OmittedDigest {
		t.Errorf("read as %+v, %v", back, err)
	}
	addressed := Claim{Requests: []Request{{ReplyTo: Address{Ingress: 1}}}}
	b := addressed.Append(nil)
	for cut := range b {
		if _, err := DecodeClaim(b[:cut]); !errors.Is(err, ErrRow) {
			t.Errorf("%d bytes: %v", cut, err)
		}
	}
	const flagAt, ingressAt = 42, 44
	for name, damage := range map[string]func(){"flag": func() { b[flagAt] = 2 }, "no ingress": func() { b[flagAt], b[ingressAt] = 1, 0 }, "version": func() { b[0] = 2 }, "unknown flag": func() { b[1] |= 16 }} {
		damage()
		if _, err := DecodeClaim(b); !errors.Is(err, ErrRow) {
			t.Errorf("%s: %v", name, err)
		}
		b = addressed.Append(nil)
	}
}
