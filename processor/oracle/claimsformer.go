package oracle

import (
	"crypto/sha256"
	"encoding/binary"
)

// An event after the window of a claim is another operation. If the outcome of the previous claim can still
// arrive, oncebus keeps that claim under a different digest, as a former claim.

// formerDigest returns the digest under which the former claim of an attempt is kept.
func formerDigest(d digest, attempt uint64) digest {
	text := binary.LittleEndian.AppendUint32(append([]byte("oncebus former claim\n"), d[:]...), uint32(attempt))
	sum := sha256.Sum256(text)
	return digest(sum[:16])
}

// keepFormer keeps the claim of a key that another event claims after the window of the claim.
func (f *claimFold) keepFormer(d digest, k *claim) {
	if k.status == "in_progress" || k.status == "submitted" && !k.ended {
		f.counts["former claims"]++
		f.keys[formerDigest(d, k.attempt)] = k
	}
}

// claimOf returns the claim to which an attempt belongs: the claim of its key, or a former claim. If there is
// no such attempt, it returns the claim of the key.
func (f *claimFold) claimOf(d digest, attempt uint64) *claim {
	k := f.keys[d]
	if f.isRetained(k) && attempt < k.attempt {
		if former := f.keys[formerDigest(d, attempt)]; f.isRetained(former) {
			return former
		}
	}
	return k
}
