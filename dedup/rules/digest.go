package rules

import (
	"crypto/hmac"
	"crypto/sha256"
	"hash"
	"strconv"

	"oncebus/dedup"
)

// appendNetstring appends "<length>:<bytes>,". A sequence of them can be decoded,
// so two different lists of parts have different bytes.
func appendNetstring(dst, part []byte) []byte {
	dst = strconv.AppendInt(dst, int64(len(part)), 10)
	dst = append(dst, ':')
	dst = append(dst, part...)
	return append(dst, ',')
}

// keyKind names the material of a dedup key. It gives an id and a hash of content
// with the same bytes different digests. The names are part of the state digest
// and never change.
type keyKind string

const (
	kindID        keyKind = "id"
	kindComposite keyKind = "composite"
	kindContent   keyKind = "content"
	kindOrder     keyKind = "order"
)

// hasher hashes for one goroutine. It keeps its hashes, because sha256.Sum256 makes one for
// each call, which takes 11 % more time.
type hasher struct {
	plain hash.Hash
	mac   hash.Hash // nil without a secret
	sum   []byte    // scratch for the output of both
	net   []byte    // scratch for the digest's input
}

func newHasher(secret []byte) hasher {
	h := hasher{plain: sha256.New(), sum: make([]byte, 0, sha256.Size)}
	if len(secret) > 0 {
		h.mac = hmac.New(sha256.New, secret)
	}
	return h
}

// key returns the dedup key of the bytes: SHA-256, or HMAC-SHA-256 with the secret.
func (h *hasher) key(secret bool, b []byte) [32]byte {
	used := h.plain
	if secret {
		used = h.mac
	}
	used.Reset()
	used.Write(b) // a hash never fails
	h.sum = used.Sum(h.sum[:0])
	return [32]byte(h.sum)
}

// stateScope returns the bytes before the key in the digest's input: namespace and kind as
// netstrings, and the length of the key.
func stateScope(namespace string, kind keyKind) []byte {
	scope := appendNetstring(nil, []byte(namespace))
	scope = appendNetstring(scope, []byte(kind))
	return append(strconv.AppendInt(scope, sha256.Size, 10), ':')
}

// digest returns the state key of a dedup key of the source. It leaves the hashed bytes in
// h.net.
func (h *hasher) digest(secret bool, s *Source, key *[32]byte) dedup.Digest {
	h.net = append(h.net[:0], s.scope...)
	h.net = append(h.net, key[:]...)
	h.net = append(h.net, ',')
	sum := h.key(secret, h.net)
	return dedup.Digest(sum[:16])
}
