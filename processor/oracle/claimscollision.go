package oracle

import (
	"crypto/sha256"
	"encoding/binary"
)

// keyOf returns the digest of the key that an event has, or will claim. In a route that forwards collisions
// this may be the second key, which is the digest of the key and the fingerprint: this is so if the row of the
// second key is retained, or if the first key belongs to another event. In the latter case collided is true. If
// the first key has an earlier row with the same details, that row takes precedence.
func (f *claimFold) keyOf(e *envelope) (d digest, collided bool) {
	if !f.ForwardsCollisions {
		return e.digest, false
	}
	text := binary.LittleEndian.AppendUint64(append([]byte("oncebus collision\n"), e.digest[:]...), e.fingerprint)
	sum := sha256.Sum256(text)
	second := digest(sum[:16])
	own, other := f.keys[e.digest], f.keys[second]
	live := func(k *claim) bool {
		return f.isRetained(k) && k.status != "freed" && e.time <= k.first+f.Window
	}
	collided = live(own) && e.time >= own.first-f.Window && own.details != e.fingerprint
	switch {
	case live(own) && own.details == e.fingerprint && !(live(other) && other.before(own)):
		return e.digest, false
	case f.isRetained(other), collided:
		return second, collided
	}
	return e.digest, false
}

// before reports whether claim k was first seen before other.
func (k *claim) before(other *claim) bool {
	switch {
	case k.first != other.first:
		return k.first < other.first
	case k.at.topic != other.at.topic:
		return k.at.topic < other.at.topic
	case k.at.partition != other.at.partition:
		return k.at.partition < other.at.partition
	}
	return k.at.offset < other.at.offset
}
