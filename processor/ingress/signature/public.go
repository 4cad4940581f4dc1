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

// signer has the public key with which a sender's signatures are verified.
type signer struct {
	key    crypto.PublicKey
	before string              // PayPal: the webhook's id, which PayPal signs but does not send
	chain  []*x509.Certificate // PayPal: begins with the certificate of key, ends with its root
}

// publicKey has the function that parses the secret of a scheme that signs with a private key: the secret is
// then the public key. The errors are an ErrNoSecret and show nothing of the secret.
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

// readCertificate parses the secret for PayPal: the first line is the webhook's id; the rest is PEM with
// PayPal's certificate first and its issuers after it.
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

// rsaBytesMin is the smallest RSA key that is accepted: 2048 bits.
const rsaBytesMin = 256

// valid reports whether all certificates, if there are any, are valid at this time. Each must be within its
// dates, and the first must be signed through the certificates after it up to the last, which the operator
// trusts.
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

// verifies reports whether signature is a signature of content by the signer's private key.
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

// matchPublic verifies the signature of u with each key. Public keys are not secret, so the verification need
// not take constant time.
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

// readPublic parses the headers of Discord and SendGrid, which sign the timestamp and the body without a
// separator. The timestamp consists of digits, and a body could begin with digits too. Both senders send JSON
// objects or lists, so the body must begin with a bracket: the border between timestamp and body is then
// certain.
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

// Request headers of PayPal:
const (
	paypalSignature   = "Paypal-Transmission-Sig"
	paypalID          = "Paypal-Transmission-Id"
	paypalTime        = "Paypal-Transmission-Time"
	paypalAlgorithm   = "Paypal-Auth-Algo"
	paypalCertificate = "Paypal-Cert-Url"
)

// paypalPlace marks where the webhook's id stands in the signed text. No header can contain a NUL.
const paypalPlace = "\x00"

// paypalHosts are the hosts from which PayPal serves its certificates.
var paypalHosts = []string{"api.paypal.com", "api-m.paypal.com", "api.sandbox.paypal.com", "api-m.sandbox.paypal.com"}

// readPayPal parses the headers of PayPal. The signature covers only the CRC-32 of the body. The verifier uses
// the configured certificate: it checks the address in the header, but never fetches a certificate from there.
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
