package oracle

import (
	"fmt"
	"math"
)

// If an app has plain routes and routes in claim mode, Check checks only a part of the claim routes: that the
// events were routed, the stream time, the rows in the stores, and that the readings of the topics agree.
// CheckClaims checks the content of the topics.

// moveStreamTime moves the stream time to the event time of an event in claim mode.
func (f *fold) moveStreamTime(e *envelope, c *Claims, present int64) {
	if e.time > add(present, c.Skew) || f.lateness(e, c.NamespaceID, c.Window, c.Grace) != "" {
		return // the event is not judged, or it is behind stream time and can only be a duplicate
	}
	f.moveTime(e, c.NamespaceID, present)
}

// sourcesBegin returns, by partition, the input offset at which the first transaction began whose checkpoint
// has sources of the namespace. It is math.MaxInt64 if the partition has judged something, but no checkpoint
// has such sources.
func (c *Claims) sourcesBegin(changelog []Record) map[int32]int64 {
	all, chains := map[int32]int64{}, map[int32]chain{}
	if len(c.Sources) == 0 {
		return all
	}
	for i := range changelog {
		r := &changelog[i]
		number, ok := numberOf(r.Key)
		if begins, known := all[r.Partition]; !ok || known && begins != math.MaxInt64 {
			continue
		}
		at := chains[r.Partition]
		next := at.newest.next
		if at.add(number, r.Value) != nil {
			continue // leases reports this error
		}
		chains[r.Partition] = at
		switch {
		case at.newest.sourcesOf(c.NamespaceID) != nil:
			all[r.Partition] = next
		case at.newest.next > 0:
			all[r.Partition] = math.MaxInt64
		}
	}
	return all
}

// beginSources begins to follow the sources, before an input offset is judged. At that time nothing is known
// about the sources except the stream time.
func (f *claimFold) beginSources(offset int64) {
	if len(f.Sources) == 0 || f.sources != nil || offset < f.followsFrom {
		return
	}
	highest := int64(never)
	if f.seen {
		highest = f.last
	}
	f.sources = newSourceTimes(f.NamespaceID, f.Sources, highest)
}

// unfollowed returns a violation if no checkpoint of the partition has sources.
func (f *claimFold) unfollowed(partition int32) []string {
	if len(f.Sources) == 0 || f.followsFrom != math.MaxInt64 {
		return nil
	}
	return []string{fmt.Sprintf("%s/%d: no checkpoint has the sources of the namespace", f.Changelog, partition)}
}

// tooOld reports whether an event is more than window and grace behind stream time, or behind the highest event
// time of its own source.
func (c *Claims) tooOld(e *envelope, last int64, seen bool, sources *sourceTimes) bool {
	latest := e.time + c.Window + c.Grace
	return seen && last > latest || sources.front(e.source()) > latest
}

// moveTime moves the stream time after an event that was judged, and answers the requests whose claims are
// evicted thereby. The event was stored at broker time now.
func (f *claimFold) moveTime(e *envelope, now int64) {
	switch {
	case f.sources != nil:
		f.sources.event(e.source(), e.time)
		f.last, f.seen = f.sources.follow(now, f.last, f.seen)
	case !f.seen || e.time > f.last:
		f.last, f.seen = e.time, true
	}
	f.answerEvicted()
}

// ofClaims reports whether a row of the changelog belongs to a route in claim mode.
func (c *check) ofClaims(row *Record) bool {
	for i := range c.cfg.Claims {
		if len(row.Value) > 2 && row.Value[2] == c.cfg.Claims[i].NamespaceID {
			return true
		}
	}
	return false
}

// readClaims compares the readings of the topics of routes in claim mode (K7).
func (c *check) readClaims() {
	read := map[string]bool{"": true}
	for i := range c.cfg.Claims {
		claims := &c.cfg.Claims[i]
		for _, topic := range []string{claims.Output, claims.Replies, claims.Dead, claims.Answers, claims.Outcomes} {
			if !read[topic] {
				read[topic] = true
				c.log(topic, whole)
			}
		}
	}
}
