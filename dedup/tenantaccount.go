package dedup

import (
	"encoding/binary"
	"math"
	"time"
)

// TenantShare is what one task grants to a tenant: its share of the quota of the route.
type TenantShare struct {
	Keys     int64         // new keys within the window; 0 is no bound
	Interval time.Duration // between two events, on average; 0 is no bound
}

// TenantBurst is how many events of its rate a tenant may send at once, after a pause of as long.
const TenantBurst = 10 * time.Second

// dueKnown is the lowest bit of TenantAccount.due: a nanosecond, which decides nothing.
const dueKnown = 1

// tenantBuckets divide the window of the new keys, and one more has those that are leaving it.
// So a key counts up to a 16th of the window too long, never too short.
const tenantBuckets = 16 + 1

// TenantCounts are the events of a tenant, by what became of them.
type TenantCounts struct {
	Events, Unique, Duplicates, Over uint64
}

// Add adds other counts.
func (c *TenantCounts) Add(other *TenantCounts) {
	c.Events, c.Unique, c.Duplicates, c.Over = c.Events+other.Events, c.Unique+other.Unique, c.Duplicates+other.Duplicates, c.Over+other.Over
}

// TenantAccount is what a task knows of one tenant of a route. All times are broker time.
type TenantAccount struct {
	TenantCounts
	// due is when the next event would be due, in Unix ns, if the tenant used its rate evenly.
	// It may be TenantBurst ahead. dueKnown is set in it once the task knew since when events of the
	// tenant may be missing.
	due int64
	// newest is the number of the bucket of the newest keys, and buckets are the keys of that
	// one and those before it, at number modulo tenantBuckets.
	newest  int64
	buckets [tenantBuckets]uint32
	keys    int64 // in all buckets
}

// KeysAt returns the new keys within the window at a broker time in ms. The width is that of
// the state.
func (a TenantAccount) KeysAt(width, now int64) int64 {
	a.advance(now / width)
	return a.keys
}

// isIdle reports whether an account has nothing that decides about an event.
func (a *TenantAccount) isIdle(bucket, now int64) bool {
	return a.due <= now && (a.keys == 0 || bucket-a.newest >= tenantBuckets)
}

// take takes an event of the tenant. It returns how long the tenant has to wait instead, if that is
// over its share.
//
// What the tenant did not use is lost up to the time since which events may be missing, and no
// further: the events of another input may still ask for it. So the task grants what all of them
// together were due since then, in whatever order it gets them. After a restart it takes nothing away
// until it knows that time again. On the first start, where the inputs begin at times of their own,
// what was sent before counts as nothing until then.
func (a *TenantAccount) take(share TenantShare, at TenantTime) (wait time.Duration) {
	if share.Interval <= 0 {
		return 0
	}
	now, since, due := at.now*int64(time.Millisecond), at.since*int64(time.Millisecond), a.due
	switch knew := due&dueKnown != 0; {
	case at.since > 0:
		due = max(due, since) | dueKnown
	case !knew && at.now-at.sent > TenantBurst.Milliseconds():
		return 0
	case !knew:
		due = max(due, now-int64(TenantBurst)) &^ dueKnown
	}
	if wait := due&^dueKnown + int64(share.Interval) - now - max(int64(TenantBurst), int64(share.Interval)); wait > 0 {
		return time.Duration(wait)
	}
	a.due = due + int64(share.Interval)&^dueKnown
	return 0
}

// advance removes the keys that have left the window at a bucket.
func (a *TenantAccount) advance(bucket int64) {
	if a.keys == 0 || bucket-a.newest >= tenantBuckets {
		a.buckets, a.keys, a.newest = [tenantBuckets]uint32{}, 0, max(a.newest, bucket)
		return
	}
	for ; a.newest < bucket; a.newest++ {
		left := &a.buckets[place(a.newest+1)]
		a.keys -= int64(*left)
		*left = 0
	}
}

func place(bucket int64) int64 { return (bucket%tenantBuckets + tenantBuckets) % tenantBuckets }

// keysTo returns the keys of the window that ends with a bucket, after it has removed those that
// have left the window then.
func (a *TenantAccount) keysTo(bucket int64) (keys int64) {
	a.advance(bucket)
	for i := a.newest; i > max(a.newest, bucket)-tenantBuckets; i-- {
		if i <= bucket {
			keys += int64(a.buckets[place(i)])
		}
	}
	return keys
}

// add counts a new key. One input may be read before another, so its bucket may be an earlier one. It
// counts in no bucket if it had left the window of the newest key.
func (a *TenantAccount) add(bucket int64) {
	a.advance(bucket)
	if bucket <= a.newest-tenantBuckets {
		return
	}
	if n := &a.buckets[place(bucket)]; *n < math.MaxUint32 {
		*n++
		a.keys++
	}
}

// append appends events, unique, duplicates, over uvarints | due varint | newest varint | for
// each bucket from the newest to the oldest with keys: keys uvarint, after their number 1.
func (a *TenantAccount) append(dst []byte) []byte {
	for _, n := range [...]uint64{a.Events, a.Unique, a.Duplicates, a.Over} {
		dst = binary.AppendUvarint(dst, n)
	}
	dst = binary.AppendVarint(binary.AppendVarint(dst, a.due), a.newest)
	used := 0
	for i := range int64(tenantBuckets) {
		if a.buckets[place(a.newest-i)] > 0 {
			used = int(i) + 1
		}
	}
	dst = append(dst, byte(used))
	for i := range int64(used) {
		dst = binary.AppendUvarint(dst, uint64(a.buckets[place(a.newest-i)]))
	}
	return dst
}

// decodeTenantAccount reads what append wrote.
func decodeTenantAccount(r *Cursor) (a TenantAccount) {
	for _, n := range [...]*uint64{&a.Events, &a.Unique, &a.Duplicates, &a.Over} {
		*n = r.Uvarint(math.MaxUint64)
	}
	a.due, a.newest = r.Varint(), r.Varint()
	used := int64(r.Byte())
	if used > tenantBuckets {
		r.Fail()
		return TenantAccount{}
	}
	for i := range used {
		n := uint32(r.Uvarint(math.MaxUint32))
		a.buckets[place(a.newest-i)] = n
		a.keys += int64(n)
	}
	return a
}
