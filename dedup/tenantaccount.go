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
	// It may be TenantBurst ahead.
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

// take takes an event of the tenant at a time in ns. It returns how long the tenant has to wait
// instead, if that is over its share.
func (a *TenantAccount) take(share TenantShare, now int64) (wait time.Duration) {
	if share.Interval <= 0 {
		return 0
	}
	due := max(a.due, now)
	if wait := due + int64(share.Interval) - now - max(int64(TenantBurst), int64(share.Interval)); wait > 0 {
		return time.Duration(wait)
	}
	a.due = due + int64(share.Interval)
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

// add counts a new key. Broker time may go back by a little, then it counts in the newest bucket.
func (a *TenantAccount) add(bucket int64) {
	a.advance(bucket)
	if n := &a.buckets[place(a.newest)]; *n < math.MaxUint32 {
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
