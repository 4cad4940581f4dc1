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

// hasher hashes for one goroutine.
type hasher struct {
	mac hash.Hash // nil without a secret
	sum []byte    // scratch for the output of mac
	net []byte    // scratch for the digest's input
}

func newHasher(secret []byte) hasher {
	if len(secret) == 0 {
		return hasher{}
	}
	return hasher{mac: hmac.New(sha256.New, secret), sum: make([]byte, 0, sha256.Size)}
}

// key returns the dedup key of the bytes: SHA-256, or HMAC-SHA-256 with the secret.
func (h *hasher) key(secret bool, b []byte) [32]byte {
	if !secret {
		return sha256.Sum256(b)
	}
	h.mac.Reset()
	h.mac.Write(b) // a hash never fails
	h.sum = h.mac.Sum(h.sum[:0])
	return [32]byte(h.sum)
}

// digest returns the state key of a dedup key. It leaves the hashed bytes in h.net.
func (h *hasher) digest(secret bool, namespace string, kind keyKind, key *[32]byte) dedup.Digest {
	h.net = strconv.AppendInt(h.net[:0], int64(len(namespace)), 10)
	h.net = append(h.net, ':')
	h.net = append(h.net, namespace...)
	h.net = append(h.net, ',')
	h.net = strconv.AppendInt(h.net, int64(len(kind)), 10)
	h.net = append(h.net, ':')
	h.net = append(h.net, kind...)
	h.net = append(h.net, ',')
	h.net = appendNetstring(h.net, key[:])
	sum := h.key(secret, h.net)
	return dedup.Digest(sum[:16])
}
