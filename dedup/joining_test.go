package dedup

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// TestBytesOfARequest protects the bound on a claim: it takes at most the bytes that it had before, plus BytesMax for
// each request that joined, also if these requests make all others longer.
func TestBytesOfARequest(t *testing.T) {
	draw := rand.New(rand.NewPCG(1, 1))
	request := func() Request {
		r := Request{At: Position{Topic: 65_535, Partition: 1<<31 - 1, Offset: draw.Int64()}}
		for _, text := range []*[]byte{&r.Key, &r.ID, &r.Route} {
			if draw.IntN(3) == 0 {
				*text = bytes.Repeat([]byte("x"), draw.IntN(300))
			}
		}
		if draw.IntN(3) == 0 {
			r.ReplyTo = Address{Partition: 1<<31 - 1, Ingress: 1, Request: 1}
			r.Until = draw.Int64() * int64(draw.IntN(2))
		}
		return r
	}
	for range 5000 {
		claim := Claim{AppToken: true}
		for range draw.IntN(6) {
			r := request()
			if draw.IntN(2) == 0 { // plain ones, which later requests lengthen
				r = Request{At: r.At}
			}
			claim.Requests = append(claim.Requests, r)
		}
		most := len(claim.Append(nil)) + RequestSlack*(1+len(claim.Requests))
		for range draw.IntN(4) {
			r := request()
			claim.Requests = append(claim.Requests, r)
			most += r.BytesMax()
		}
		if n := len(claim.Append(nil)); n > most {
			t.Fatalf("the claim takes %d bytes, more than %d: %+v", n, most, claim)
		}
	}
}
