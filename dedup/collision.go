package dedup

import (
	"crypto/sha256"
	"encoding/binary"
)

// This file has the second key of events on a route in claim mode that forwards collisions. The second key is
// made of the event's key and its fingerprint. If the key of an event already belongs to a different event, the
// event makes a claim under its second key instead. Its duplicates find the claim there, and the different
// event keeps the claim under the first key.

// CollisionDigest returns the digest of an event's second key.
func CollisionDigest(d Digest, fingerprint uint64) (second Digest) {
	sum := secondKey(d[:], fingerprint)
	copy(second[:], sum[:])
	return second
}

// CollisionKey returns the second key of an event, as the executor gets it.
func CollisionKey(key *[32]byte, fingerprint uint64) [32]byte { return secondKey(key[:], fingerprint) }

func secondKey(first []byte, fingerprint uint64) [32]byte {
	text := append(make([]byte, 0, 64), "oncebus collision\n"...)
	return sha256.Sum256(binary.LittleEndian.AppendUint64(append(text, first...), fingerprint))
}

// Collides reports whether the event's key belongs to another event. own is the row of the key. The key belongs
// to another event if own is still retained, the event is within the window of own, and the details of the two
// differ.
func (ev *Event) Collides(own *Row, w Window, streamTime int64) bool {
	return w.Decides(own, streamTime) && w.Covers(own.First, ev.Time) && ev.collides(own)
}

// PriorOfCollision returns the row with which DecideClaim compares an event on a route that forwards
// collisions. If the event claims its second key, PriorOfCollision sets ev.Digest to the digest of the second
// key. prior is the row of the event's key or, with adjacent buckets, the result of Prior. second is the row of
// the event's second key.
//
// A row of the second key decides as long as it is retained, unless prior has the same details and was first
// seen earlier. Therefore a duplicate of the event is still recognised when the row of the other event is gone.
func (ev *Event) PriorOfCollision(prior Row, found bool, second Row, hasSecond, collides bool, w Window, streamTime int64) (Row, bool) {
	live := func(r *Row) bool { return w.Decides(r, streamTime) && !w.Over(r.First, ev.Time) }
	same := found && live(&prior) && !ev.collides(&prior)
	switch {
	case same && !(hasSecond && live(&second) && second.before(&prior)):
		return prior, true
	case hasSecond && w.Retains(second.First, streamTime), collides:
		ev.Digest = CollisionDigest(ev.Digest, ev.Fingerprint)
		return second, hasSecond
	}
	return prior, found
}

// SecondKey changes the key in the row's claim to the second key.
func (r *Row) SecondKey(fingerprint uint64) error {
	claim, err := DecodeClaim(r.Result)
	if err == nil {
		claim.Key = CollisionKey(&claim.Key, fingerprint)
		r.setClaim(&claim)
	}
	return err
}
