package dedup

import (
	"encoding/binary"
	"maps"
	"slices"
	"time"
)

// TenantState has the accounts of a route's tenants in one task, as a checkpoint stores them. A TenantState
// is never changed.
type TenantState struct {
	// Width is the length of a bucket of new keys, in ms.
	Width int64
	// Swept is the broker time of the last removal of idle accounts, in s.
	Swept    int64
	Accounts map[string]TenantAccount // by name of the tenant; OtherTenants is one of the names
}

// OtherTenants is the name of the account that is shared by all tenants for which the task keeps no separate
// account.
const OtherTenants = ""

// Tenants has the accounts of a route's tenants in one task: as the last transaction left them, plus the
// changes of the open transaction. The decisions depend only on the events, their times and this state.
// Therefore, when a task moves to another worker, it knows there what was granted before. Until it knows how
// far the inputs were read, it may grant more, see TenantAccount.take.
type Tenants struct {
	width    int64
	most     int
	accounts map[string]*TenantAccount
	swept    int64
	// before has the accounts that the open transaction has changed, with their content before the transaction;
	// nil for an account that is new.
	before      map[string]*TenantAccount
	sweptBefore int64
	changed     bool
}

// NewTenants returns the accounts of a task without events, for a window. most is how many tenants may have a
// separate account, in addition to the tenants for which the route sets a separate quota. The number is bounded
// because a sender may invent any number of names. All further tenants share one account and its quota.
func NewTenants(window time.Duration, most int) *Tenants {
	return &Tenants{
		width: max(1, window.Milliseconds()/(tenantBuckets-1)), most: most, accounts: map[string]*TenantAccount{}, before: map[string]*TenantAccount{},
	}
}

// A TenantTurn is one event of a tenant while the task judges it.
type TenantTurn struct {
	account *TenantAccount
	of      *Tenants
	at      TenantTime
}

// TenantTime says when an event was sent, in broker time, ms. A tenant's events count at the time at which they
// were sent. Therefore an outage brings no tenant over its quota, although after it the task gets the events of
// hours within seconds, and may get all events of one input before the events of another.
type TenantTime struct {
	now   int64 // when the task got the event
	sent  int64 // when the event was sent, according to its own record, but never earlier than since
	since int64 // every event that the task has not got yet was sent at this time or later; 0 if unknown
}

// NewTenantTime returns the time of an event that a task got at now. sent is the time in the event's own
// record, which the sender may have invented. The task trusts it only as far as its own knowledge allows: the
// task had not got the event before, so the event was sent at since or later, and an earlier sent is replaced
// by since. since is 0 if the task does not know it.
func NewTenantTime(now, sent, since int64) TenantTime {
	since = min(max(since, 0), now)
	if sent <= 0 {
		sent = now // the record names no time
	}
	return TenantTime{now: now, sent: min(max(sent, since), now), since: since}
}

// passed returns the time before which no event was sent that the task could still get, as far as the task
// knows.
func (t TenantTime) passed() int64 {
	if t.since == 0 {
		return t.now
	}
	return t.since
}

// Turn begins an event of a tenant. own says that the route sets a separate quota for the tenant; such a tenant
// always has a separate account. The turn is valid until the next one.
func (t *Tenants) Turn(name []byte, own bool, at TenantTime) TenantTurn {
	if _, known := t.accounts[string(name)]; !known && !own && len(t.accounts) >= t.most {
		if t.sweep(at); len(t.accounts) >= t.most {
			name = nil
		}
	}
	return TenantTurn{account: t.open(name), of: t, at: at}
}

// open returns the account of a tenant for a change, and remembers the content of the account before the open
// transaction.
func (t *Tenants) open(name []byte) *TenantAccount {
	t.note()
	a := t.accounts[string(name)]
	if _, noted := t.before[string(name)]; !noted {
		t.before[string(name)] = nil
		if a != nil {
			before := *a
			t.before[string(name)] = &before
		}
	}
	if a == nil {
		a = &TenantAccount{}
		t.accounts[string(name)] = a
	}
	return a
}

// note records that the open transaction changes accounts.
func (t *Tenants) note() {
	if !t.changed {
		t.changed, t.sweptBefore = true, t.swept
	}
}

// sweep removes the idle accounts, at most once in a second of broker time. It adds their counts to the
// account OtherTenants.
func (t *Tenants) sweep(at TenantTime) {
	if second := at.now / 1000; second > t.swept {
		t.note()
		t.swept = second
	} else {
		return
	}
	for name, a := range t.accounts {
		if name == OtherTenants || !a.isIdle(at.passed()/t.width, at.passed()*int64(time.Millisecond)) {
			continue
		}
		counts := a.TenantCounts
		t.open([]byte(name))
		delete(t.accounts, name)
		t.open(nil).Add(&counts)
	}
}

// Take grants the event to the tenant, or returns how long the tenant should wait because the event is over
// its share. Take counts the event either way.
func (t *TenantTurn) Take(share TenantShare) (wait time.Duration) {
	t.account.Events++
	if wait = t.account.take(share, t.at); wait > 0 {
		t.account.Over++
	}
	return wait
}

// HasRoom reports whether a new key is within the tenant's share. If not, it counts the event as over the
// share.
func (t *TenantTurn) HasRoom(share TenantShare) bool {
	if share.Keys > 0 && t.account.keysTo(t.bucket()) >= share.Keys {
		t.account.Over++
		return false
	}
	return true
}

// bucket returns the bucket in which a new key counts: the bucket of the time when the event was sent. If the
// newest bucket of the account is in the future, because broker time was set back or the window was changed,
// the key counts in that bucket.
func (t *TenantTurn) bucket() int64 {
	if newest := t.account.newest; newest > t.at.now/t.of.width {
		return newest
	}
	return t.at.sent / t.of.width
}

// Keys returns the number of new keys of the tenant within the window.
func (t *TenantTurn) Keys() int64 { return t.account.keys }

// AddKey counts an event with a new key that was emitted.
func (t *TenantTurn) AddKey() {
	t.account.Unique++
	t.account.add(t.bucket())
}

// AddDuplicate counts a duplicate.
func (t *TenantTurn) AddDuplicate() { t.account.Duplicates++ }

// IsChanged reports whether the open transaction has changed anything.
func (t *Tenants) IsChanged() bool { return t.changed }

// Commit makes the changes of the open transaction final.
func (t *Tenants) Commit() {
	clear(t.before)
	t.changed = false
}

// Discard undoes the changes of the open transaction.
func (t *Tenants) Discard() {
	if !t.changed {
		return
	}
	for name, a := range t.before {
		if a == nil {
			delete(t.accounts, name)
		} else {
			t.accounts[name] = a
		}
	}
	t.swept = t.sweptBefore
	t.Commit()
}

// State returns a copy of the accounts, with the changes of the open transaction.
func (t *Tenants) State() TenantState {
	all := make(map[string]TenantAccount, len(t.accounts))
	for name, a := range t.accounts {
		all[name] = *a
	}
	return TenantState{Width: t.width, Swept: t.swept, Accounts: all}
}

// Counts returns the sum of the counts of all tenants, and how many tenants have a separate account. Both are
// without the changes of the open transaction.
func (t *Tenants) Counts() (sum TenantCounts, tenants int) {
	for name, a := range t.accounts {
		if before, changed := t.before[name]; changed {
			a = before
		}
		if a == nil {
			continue
		}
		sum.Add(&a.TenantCounts)
		if name != OtherTenants {
			tenants++
		}
	}
	for name, a := range t.before {
		if _, open := t.accounts[name]; !open && a != nil {
			sum.Add(&a.TenantCounts)
			tenants++
		}
	}
	return sum, tenants
}

// Load replaces the accounts by the accounts in a checkpoint. If the window has changed, all keys of a tenant
// count as if they had come at the end of the tenant's newest bucket. They may be counted too long, by up to
// the new window plus a 16th of the former window.
func (t *Tenants) Load(s *TenantState) {
	t.accounts, t.swept = make(map[string]*TenantAccount, len(s.Accounts)), s.Swept
	for name, a := range s.Accounts {
		if s.Width != t.width {
			keys, newest := a.keys, ((a.newest+1)*s.Width-1)/t.width
			a.buckets, a.keys, a.newest = [tenantBuckets]uint32{}, keys, newest
			a.buckets[place(newest)] = uint32(min(keys, 1<<32-1))
		}
		t.accounts[name] = &a
	}
	t.Commit()
}

// tenantAccountsMax is the highest number of accounts that a decoder accepts in one state.
const tenantAccountsMax = 1 << 16

// Append appends the width uvarint | swept varint | accounts uvarint | for each account, sorted by name:
// length of the name 1, name, account.
func (s *TenantState) Append(dst []byte) []byte {
	dst = binary.AppendVarint(binary.AppendUvarint(dst, uint64(s.Width)), s.Swept)
	dst = binary.AppendUvarint(dst, uint64(len(s.Accounts)))
	for _, name := range slices.Sorted(maps.Keys(s.Accounts)) {
		a := s.Accounts[name]
		dst = a.append(append(append(dst, byte(len(name))), name...))
	}
	return dst
}

// DecodeTenantState reads what Append wrote.
func DecodeTenantState(r *Cursor) TenantState {
	s := TenantState{Width: int64(r.Uvarint(1 << 62)), Swept: r.Varint(), Accounts: map[string]TenantAccount{}}
	if s.Width == 0 {
		r.Fail()
	}
	for n := r.Uvarint(tenantAccountsMax); n > 0 && !r.Bad(); n-- {
		name := string(r.Bytes(int(r.Byte())))
		s.Accounts[name] = decodeTenantAccount(r)
	}
	return s
}

// AppendChanges appends the changes of the open transaction: swept varint | changed accounts uvarint | for
// each, sorted by name: length of the name 1, name, and then 1 and the account, or 0 if the account is gone.
func (t *Tenants) AppendChanges(dst []byte) []byte {
	dst = binary.AppendUvarint(binary.AppendVarint(dst, t.swept), uint64(len(t.before)))
	for _, name := range slices.Sorted(maps.Keys(t.before)) {
		dst = append(append(dst, byte(len(name))), name...)
		if a := t.accounts[name]; a != nil {
			dst = a.append(append(dst, 1))
		} else {
			dst = append(dst, 0)
		}
	}
	return dst
}

// ApplyChanges returns a copy of the state with the changes that AppendChanges wrote.
func (s *TenantState) ApplyChanges(r *Cursor) TenantState {
	next := TenantState{Width: s.Width, Swept: r.Varint(), Accounts: maps.Clone(s.Accounts)}
	for n := r.Uvarint(tenantAccountsMax); n > 0 && !r.Bad(); n-- {
		name := string(r.Bytes(int(r.Byte())))
		if r.Flag() {
			next.Accounts[name] = decodeTenantAccount(r)
		} else {
			delete(next.Accounts, name)
		}
	}
	return next
}
