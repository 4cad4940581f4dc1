package oracle

import "slices"

// waitAt adds a duplicate to the requests that wait for the outcome of a claim. It returns false if there is no
// place left. An HTTP request loses its place to a request that names it; once its timeout is over, to any
// request; and to an HTTP request with the same request id.
func (f *claimFold) waitAt(k *claim, r *Record, e *envelope) bool {
	own := requester{key: string(r.Key), at: e.from, id: e.request, replyTo: e.replyTo}
	if f.Timeout > 0 && e.replyTo != "" {
		own.until = r.Timestamp + f.Timeout
	}
	held := func(by func(a requester) bool) int {
		return slices.IndexFunc(k.requesters, func(a requester) bool { return a.replyTo != "" && a.at != k.maker && by(a) })
	}
	at := -1
	if e.replaces != "" {
		at = held(func(a requester) bool { return requestOf(a.replyTo) == requestOf(e.replaces) })
	}
	switch {
	case f.Wait == 0:
		return false
	case at < 0 && len(k.requesters)-1 < f.Wait:
		k.requesters = append(k.requesters, own)
		return true
	case at < 0:
		at = held(func(a requester) bool { return a.until != 0 && a.until < r.Timestamp })
	}
	if at < 0 && e.replyTo != "" && e.request != "" {
		at = held(func(a requester) bool { return a.id == e.request })
	}
	if at < 0 {
		return false
	}
	f.counts["replaced"]++
	f.reply(k.requesters[at].key, "in_progress", k.status, k.attempt, content(nil, nil))
	k.requesters = append(slices.Delete(slices.Clone(k.requesters), at, at+1), own)
	return true
}

// requestOf returns the part of an address that identifies the request: everything but the partition.
func requestOf(address string) string { return address[8:] }
