package dedup

import (
	"encoding/binary"
	"math"
	"time"
)

// TenantShare is what one task grants to a tenant: the task's share of the tenant's quota on the route.
type TenantShare struct {
	Keys     int64         // new keys within the window; 0 for no bound
	Interval time.Duration // average time between two events; 0 for no bound
}

// TenantBurst bounds the burst of a tenant: after a pause of TenantBurst or longer, the tenant may send at once
// as many events as its rate allows in TenantBurst.
const TenantBurst = 10 * time.Second

// dueKnown is a flag in the lowest bit of TenantAccount.due, which otherwise has nanoseconds: the flag changes
// the time by one nanosecond at most, which changes no decision.
const dueKnown = 1

// tenantBuckets is the number of buckets that count new keys: 16 divide the window, and one more has the keys
// that are just leaving it. Therefore a key is counted for at most a 16th of the window too long, and never too
// short.
const tenantBuckets = 16 + 1

// TenantCounts counts the events of a tenant by the result of their check.
type TenantCounts struct {
	Events, Unique, Duplicates, Over uint64
}

// Add adds the counts of other.
func (c *TenantCounts) Add(other *TenantCounts) {
	c.Events, c.Unique, c.Duplicates, c.Over = c.Events+other.Events, c.Unique+other.Unique, c.Duplicates+other.Duplicates, c.Over+other.Over
}

// TenantAccount is what a task knows about one tenant of a route. All times are broker time.
type TenantAccount struct {
	TenantCounts
	// due is when the next event would be due, in Unix ns, if the tenant used its rate evenly. It may be up to
	// TenantBurst ahead of now. The flag dueKnown in it is set once the task has learned the time since which
	// events of the tenant may still be missing (TenantTime.since).
	due int64
	// newest is the number of the bucket with the newest keys. buckets has the counts of that bucket and of the
	// buckets before it; bucket n is at index n modulo tenantBuckets.
	newest  int64
	buckets [tenantBuckets]uint32
	keys    int64 // in all buckets
}

// KeysAt returns the number of new keys within the window at a broker time in ms. width is TenantState.Width.
func (a TenantAccount) KeysAt(width, now int64) int64 {
	a.advance(now / width)
	return a.keys
}

// isIdle reports whether the account could be removed without changing a decision.
func (a *TenantAccount) isIdle(bucket, now int64) bool {
	return a.due <= now && (a.keys == 0 || bucket-a.newest >= tenantBuckets)
}

// take grants an event to the tenant, or returns how long the tenant has to wait because the event is over
// its share.
//
// at.since is a broker time: events that were sent since then may be missing, because they have not reached the
// task yet. If the tenant did not use its rate before at.since, that part of its share is lost. The share that
// it did not use later is kept, because events of another input, which arrive later, may still need it.
// Therefore the task grants the share of the whole time since at.since, in whatever order it gets the events.
// After a restart the task removes no unused share until it knows at.since again. At the first start of the app
// each input begins at a different time. Therefore, until the task knows at.since, events that were sent more
// than TenantBurst ago do not count against the share.
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

// advance moves the account on to a bucket and removes the keys that have then left the window.
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

// place returns the index of a bucket in TenantAccount.buckets.
func place(bucket int64) int64 { return (bucket%tenantBuckets + tenantBuckets) % tenantBuckets }

// keysTo returns the number of new keys in the window that ends with a bucket. It first removes the keys that
// have left that window.
func (a *TenantAccount) keysTo(bucket int64) (keys int64) {
	a.advance(bucket)
	for i := a.newest; i > max(a.newest, bucket)-tenantBuckets; i-- {
		if i <= bucket {
			keys += int64(a.buckets[place(i)])
		}
	}
	return keys
}

// add counts a new key. The bucket may be earlier than the newest one, because a worker may read one input
// before another. A key in a bucket that has already left the window, which ends with the newest key, is not
// counted.
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

// append appends events, unique, duplicates, over uvarints | due varint | newest varint | number of buckets 1
// | for each bucket, from the newest to the oldest one with keys: keys uvarint.
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
