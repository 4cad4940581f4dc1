package dedup

import (
	"crypto/sha256"
	"encoding/binary"
)

// A FormerClaim is a claim whose window was over when a later event claimed the same key, and whose outcome can
// still arrive. The two claims are two operations. Therefore the former claim keeps its requests, and its
// outcome is applied to it and not to the newer claim, until the row of the former claim is evicted.
type FormerClaim struct {
	Row   Row // stored under FormerDigest: the newer claim's row has the digest of the key
	Claim Claim
}

// FormerDigest returns the digest under which the claim of an attempt is stored after another event has
// claimed its key.
func FormerDigest(d Digest, attempt uint32) (former Digest) {
	text := append(make([]byte, 0, 64), "oncebus former claim\n"...)
	sum := sha256.Sum256(binary.LittleEndian.AppendUint32(append(text, d[:]...), attempt))
	copy(former[:], sum[:])
	return former
}

// formerOf returns the claim of a row as a FormerClaim; nil if no outcome of the claim can arrive.
func formerOf(row Row, claim Claim) *FormerClaim {
	if row.Status != ClaimInProgress && row.Status != Submitted || claim.Forwarded() {
		return nil
	}
	row.Digest = FormerDigest(row.Digest, row.Attempt)
	return &FormerClaim{Row: row, Claim: claim}
}

// Former returns the digest of the former claim to which the token may belong; false if the token is not
// older than row, the row of its key.
func (t *Token) Former(row *Row) (Digest, bool) {
	if t.Attempt >= row.Attempt {
		return Digest{}, false
	}
	return FormerDigest(t.Digest, t.Attempt), true
}

// isFormer reports whether the row that decides on an outcome belongs to a former claim.
func (o *Outcome) isFormer(row *Row) bool { return row.Digest != o.Token.Digest }
