package dedup

import (
	"crypto/sha256"
	"encoding/binary"
)

// A FormerClaim is a claim whose window was over when another event claimed its key, and
// whose outcome is still to come. Those are two operations, so it keeps its requests and
// takes its own outcome, until it is evicted.
type FormerClaim struct {
	Row   Row // with a digest of its own: that of the key is the newer claim's
	Claim Claim
}

// FormerDigest returns the digest under which the claim of an attempt is kept when another
// event has claimed its key.
func FormerDigest(d Digest, attempt uint32) (former Digest) {
	text := append(make([]byte, 0, 64), "oncebus former claim\n"...)
	sum := sha256.Sum256(binary.LittleEndian.AppendUint32(append(text, d[:]...), attempt))
	copy(former[:], sum[:])
	return former
}

// formerOf returns the claim of a row as one that is kept; nil if no outcome of it can come.
func formerOf(row Row, claim Claim) *FormerClaim {
	if row.Status != ClaimInProgress && row.Status != Submitted || claim.Forwarded() {
		return nil
	}
	row.Digest = FormerDigest(row.Digest, row.Attempt)
	return &FormerClaim{Row: row, Claim: claim}
}

// Former returns the digest of the former claim that the token may be of, given the row of
// its key; false if it is of no former one.
func (t *Token) Former(row *Row) (Digest, bool) {
	if t.Attempt >= row.Attempt {
		return Digest{}, false
	}
	return FormerDigest(t.Digest, t.Attempt), true
}

// isFormer reports whether the row that decides on an outcome is of a former claim.
func (o *Outcome) isFormer(row *Row) bool { return row.Digest != o.Token.Digest }
