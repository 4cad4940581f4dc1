package rules

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"hash"
	"strconv"

	"oncebus/dedup"
)

// appendNetstring appends "<length>:<bytes>,". A sequence of netstrings can be decoded, so two different
// lists of parts never have the same bytes.
func appendNetstring(dst, part []byte) []byte {
	dst = strconv.AppendInt(dst, int64(len(part)), 10)
	dst = append(dst, ':')
	dst = append(dst, part...)
	return append(dst, ',')
}

// keyKind names what a dedup key is made of. It is part of the state digest, so that an id and a hash of
// content with the same bytes have different digests. The names never change.
type keyKind string

const (
	kindID        keyKind = "id"
	kindComposite keyKind = "composite"
	kindContent   keyKind = "content"
	kindOrder     keyKind = "order"
)

// hasher hashes for one goroutine. It reuses its hashes, because sha256.Sum256 makes a new one for each call,
// which takes 11 % more time.
type hasher struct {
	plain hash.Hash
	mac   hash.Hash // nil without a secret
	sum   []byte    // scratch for the output of both
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

// stateMask returns the first 16 bytes of the SHA-256 of namespace and kind, each as a netstring.
func stateMask(namespace string, kind keyKind) dedup.Digest {
	scope := appendNetstring(nil, []byte(namespace))
	sum := sha256.Sum256(appendNetstring(scope, []byte(kind)))
	return dedup.Digest(sum[:])
}

// digest returns the state digest of a dedup key of the source: the start of the key, combined by exclusive or
// with the mask of namespace and kind. A hash over key, namespace and kind would take as long as the
// computation of the key itself. Such a hash would only be needed if senders chose the namespace, because
// whoever chooses both namespace and id can find a collision by a birthday search of 2^64 steps; operators
// choose namespaces.
func (s *Source) digest(key *[32]byte) (d dedup.Digest) {
	subtle.XORBytes(d[:], key[:], s.mask[:])
	return d
}
