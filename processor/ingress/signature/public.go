package signature

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"hash/crc32"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// signer is the public key of a sender.
type signer struct {
	key    crypto.PublicKey
	before string              // PayPal: the webhook id, which is signed but not sent
	chain  []*x509.Certificate // PayPal: the certificate of key first, its root last
}

// publicKey has the readers of the secrets that are public keys. Their errors are an
// ErrNoSecret and show nothing of the secret.
var publicKey = map[Scheme]func(secret []byte) (*signer, error){
	Discord: readEd25519, SendGrid: readECDSA, PayPal: readCertificate,
}

func readEd25519(secret []byte) (*signer, error) {
	key, err := hex.DecodeString(string(secret))
	if err != nil || len(key) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("%w: want the public key of the application, %d hexadecimal digits", ErrNoSecret, 2*ed25519.PublicKeySize)
	}
	return &signer{key: ed25519.PublicKey(key)}, nil
}

func readECDSA(secret []byte) (*signer, error) {
	der, err := base64.StdEncoding.DecodeString(string(secret))
	if err != nil {
		return nil, fmt.Errorf("%w: want the verification key in base64, as SendGrid shows it", ErrNoSecret)
	}
	parsed, err := x509.ParsePKIXPublicKey(der)
	key, ok := parsed.(*ecdsa.PublicKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, fmt.Errorf("%w: want a verification key of the curve P-256", ErrNoSecret)
	}
	return &signer{key: key}, nil
}

// readCertificate reads the webhook's id and PayPal's certificate: the id in the first
// line, then PEM, the certificate first, its issuers after it.
func readCertificate(secret []byte) (*signer, error) {
	id, rest, _ := bytes.Cut(secret, []byte("\n"))
	s := &signer{before: strings.TrimSpace(string(id))}
	if s.before == "" || !isVisible(s.before) || strings.HasPrefix(s.before, "-----") {
		return nil, fmt.Errorf("%w: want the webhook's id in the first line, then PayPal's certificate in PEM", ErrNoSecret)
	}
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: certificate %d cannot be read", ErrNoSecret, len(s.chain)+1)
		}
		s.chain = append(s.chain, c)
	}
	if len(s.chain) == 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%w: want only certificates in PEM after the webhook's id", ErrNoSecret)
	}
	key, ok := s.chain[0].PublicKey.(*rsa.PublicKey)
	if !ok || key.Size() < rsaBytesMin {
		return nil, fmt.Errorf("%w: the first certificate has no RSA key of at least %d bits", ErrNoSecret, 8*rsaBytesMin)
	}
	s.key = key
	return s, nil
}

// rsaBytesMin is the least size of an RSA key: 2048 bits.
const rsaBytesMin = 256

// valid reports whether the certificates, if there are any, are valid at a time: each
// within its dates, and the first signed by those after it up to the last, which the
// operator trusts.
func (s *signer) valid(now time.Time) bool {
	if len(s.chain) == 0 {
		return true
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	}
	options.Roots.AddCert(s.chain[len(s.chain)-1])
	for _, c := range s.chain {
		options.Intermediates.AddCert(c)
	}
	_, err := s.chain[0].Verify(options)
	return err == nil
}

// verifies reports whether the signature of content is that of the key.
func (s *signer) verifies(content, signature []byte) bool {
	switch key := s.key.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(key, content, signature)
	case *ecdsa.PublicKey:
		sum := sha256.Sum256(content)
		return ecdsa.VerifyASN1(key, sum[:], signature)
	case *rsa.PublicKey:
		sum := sha256.Sum256(content)
		return rsa.VerifyPKCS1v15(key, crypto.SHA256, sum[:], signature) == nil
	}
	return false
}

// matchPublic verifies the signature of u with each key. Nothing here is secret, so its
// duration need not be constant.
func (v *Verifier) matchPublic(keys [][]byte, u unverified, now time.Time) error {
	expired := false
	for _, key := range keys {
		s, err := publicKey[v.scheme](key)
		switch {
		case err != nil:
			continue
		case !s.valid(now):
			expired = true
			continue
		}
		content := slices.Concat([]byte(u.before), u.content)
		if s.before != "" {
			content = []byte(strings.Replace(u.before, paypalPlace, s.before, 1))
		}
		if s.verifies(content, u.signatures[0]) {
			return nil
		}
	}
	if expired {
		return fmt.Errorf("%w: a configured certificate is outside its dates, or not signed by those after it", ErrNoSecret)
	}
	return ErrWrong
}

// readPublic parses the headers of Discord and SendGrid: timestamp and body are signed,
// without a separator. A timestamp has digits only, but a body may begin with some: both
// senders send JSON objects and lists, so the body must begin with a bracket.
func (v *Verifier) readPublic(r Request) (unverified, error) {
	text, err := one(r.Header, v.header)
	if err != nil {
		return unverified{}, err
	}
	var signature []byte
	if v.encoding == base64Encoding {
		signature, err = base64.StdEncoding.Strict().DecodeString(text)
	} else {
		signature, err = hex.DecodeString(text)
	}
	if err != nil || v.scheme == Discord && len(signature) != v.size || strings.ContainsAny(text, "\r\n") {
		return unverified{}, fmt.Errorf("header %s: %w: want a signature in %s", v.header, ErrMalformed, v.encoding)
	}
	timestamp, err := one(r.Header, v.timestampHeader)
	if err != nil {
		return unverified{}, err
	}
	return unverified{timestamp: timestamp, before: timestamp, signatures: [][]byte{signature}}, nil
}

// Headers of PayPal.
const (
	paypalSignature   = "Paypal-Transmission-Sig"
	paypalID          = "Paypal-Transmission-Id"
	paypalTime        = "Paypal-Transmission-Time"
	paypalAlgorithm   = "Paypal-Auth-Algo"
	paypalCertificate = "Paypal-Cert-Url"
)

// paypalPlace is where the webhook's id stands in what is signed. No header has a NUL.
const paypalPlace = "\x00"

// paypalHosts are the hosts of PayPal's certificates.
var paypalHosts = []string{"api.paypal.com", "api-m.paypal.com", "api.sandbox.paypal.com", "api-m.sandbox.paypal.com"}

// readPayPal parses the headers of PayPal. The signature covers the body's CRC-32 only.
// The certificate is the configured one: the address in the header is checked, and never
// fetched.
func (v *Verifier) readPayPal(r Request) (unverified, error) {
	values := map[string]string{}
	for _, name := range v.Headers() {
		value, err := one(r.Header, name)
		if err != nil {
			return unverified{}, err
		}
		values[name] = value
	}
	if values[paypalAlgorithm] != "SHA256withRSA" {
		return unverified{}, fmt.Errorf("header %s: %w: want SHA256withRSA", paypalAlgorithm, ErrMalformed)
	}
	if u, err := url.Parse(values[paypalCertificate]); err != nil || u.Scheme != "https" || u.User != nil || !slices.Contains(paypalHosts, u.Host) {
		return unverified{}, fmt.Errorf("header %s: %w: want an https address of PayPal", paypalCertificate, ErrMalformed)
	}
	if strings.Contains(values[paypalID], "|") {
		return unverified{}, fmt.Errorf("header %s: %w: an id has no bar", paypalID, ErrMalformed)
	}
	signature, err := base64.StdEncoding.Strict().DecodeString(values[paypalSignature])
	if err != nil {
		return unverified{}, fmt.Errorf("header %s: %w: want a signature in base64", paypalSignature, ErrMalformed)
	}
	sum := strconv.FormatUint(uint64(crc32.ChecksumIEEE(r.Body)), 10)
	return unverified{
		timestamp: values[paypalTime], before: strings.Join([]string{values[paypalID], values[paypalTime], paypalPlace, sum}, "|"),
		signatures: [][]byte{signature},
	}, nil
}
