package ingress

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"strings"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
)

// A location is the URL of an operation. The ingress keeps no table of locations: the last element of the path
// encodes the operation itself. A location is no secret, and it gives no access: the server authenticates a GET
// of a location like a POST, and the response tells no more than the response to the same POST sent again would
// tell.

// locationVersion is the first byte of the encoded operation.
const locationVersion = 1

// Flags of the encoded operation:
const (
	locationRouting  = 1 << iota // the routing is not the digest, and follows
	locationAdjacent             // the operation has adjacent buckets
	locationFlags    = locationAdjacent<<1 - 1
)

// routeMark is how many bytes of the hash of the route's name a location contains.
const routeMark = 8

func markOf(route *rules.Route) []byte {
	sum := sha256.Sum256([]byte(route.WireName()))
	return sum[:routeMark]
}

// locationOf returns the location of an operation.
func locationOf(o *front.Operation) string {
	flags := byte(0)
	if o.Routing != o.Digest {
		flags |= locationRouting
	}
	if o.Details.HasAdjacent {
		flags |= locationAdjacent
	}
	b := append([]byte{locationVersion, flags}, markOf(o.Route)...)
	b = append(append(b, o.Digest[:]...), o.Key[:]...)
	b = binary.BigEndian.AppendUint64(b, uint64(o.Time))
	b = binary.BigEndian.AppendUint64(b, o.Details.Fingerprint)
	if flags&locationRouting != 0 {
		b = append(b, o.Routing[:]...)
	}
	if flags&locationAdjacent != 0 {
		b = append(append(b, o.Details.Adjacent[0][:]...), o.Details.Adjacent[1][:]...)
		b = binary.BigEndian.AppendUint64(b, uint64(o.Details.Shift))
	}
	return o.Route.HTTP.Path + rules.RequestsSuffix + base64.RawURLEncoding.EncodeToString(b)
}

// operationAt decodes the name that ends a location. It returns false if the operation belongs to none of the
// routes.
func operationAt(routes []*rules.Route, name string) (front.Operation, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(name)
	if err != nil {
		return front.Operation{}, false
	}
	c := dedup.NewCursor(b)
	if version := c.Byte(); version != locationVersion {
		return front.Operation{}, false
	}
	flags, mark := c.Byte(), c.Bytes(routeMark)
	o := front.Operation{}
	copy(o.Digest[:], c.Bytes(len(o.Digest)))
	copy(o.Key[:], c.Bytes(len(o.Key)))
	o.Time, o.Details.Fingerprint, o.Routing = int64(c.BigUint64()), c.BigUint64(), o.Digest
	if flags&locationRouting != 0 {
		copy(o.Routing[:], c.Bytes(len(o.Routing)))
	}
	if flags&locationAdjacent != 0 {
		o.Details.HasAdjacent = true
		for i := range o.Details.Adjacent {
			copy(o.Details.Adjacent[i][:], c.Bytes(len(o.Details.Adjacent[i])))
		}
		o.Details.Shift = int64(c.BigUint64())
	}
	at := slices.IndexFunc(routes, func(r *rules.Route) bool { return bytes.Equal(markOf(r), mark) })
	if !c.Done() || flags&^locationFlags != 0 || at < 0 {
		return front.Operation{}, false
	}
	o.Route = routes[at]
	return o, true
}

// cutLocation splits the path of a location into the path of its route and the name of its operation. It
// returns false for a path that is no location.
func cutLocation(path string) (route, name string, ok bool) {
	at := strings.LastIndex(path, rules.RequestsSuffix)
	if at < 0 {
		return "", "", false
	}
	return path[:at], path[at+len(rules.RequestsSuffix):], true
}
