package dedup

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"
)

// atOnce is the time of an event that its task gets immediately after it was sent.
func atOnce(now int64) TenantTime { return NewTenantTime(now, now, now) }

// tenantModel has everything that a tenant was granted, by time in ms.
type tenantModel struct{ events, keys []int64 }

// TestTenantsKeepTheirShares draws events of some tenants, and compares each decision with everything that was
// granted before: a tenant never gets more than its share, and never less than its share minus the stated error.
func TestTenantsKeepTheirShares(t *testing.T) {
	random := rand.New(rand.NewPCG(20, 2))
	for range 60 {
		window := time.Duration(1600+16*random.IntN(1000)) * time.Millisecond
		share := TenantShare{Keys: 1 + random.Int64N(20), Interval: time.Duration(1+random.IntN(3000)) * time.Millisecond}
		tenants, models, now := NewTenants(window, 100), [3]tenantModel{}, random.Int64N(1<<41)
		for range 2000 {
			now += random.Int64N(200)
			i := random.IntN(len(models))
			m := &models[i]
			turn := tenants.Turn(fmt.Append(nil, "t", i), false, atOnce(now))
			burst := max(1, int(TenantBurst/share.Interval))
			if wait := turn.Take(share); wait > 0 {
				// The tenant was refused, so with this event there must be more events than the rate allows over some
				// time until now.
				if !slices.ContainsFunc(seq(len(m.events)), func(k int) bool {
					took := time.Duration(now-m.events[k]) * time.Millisecond
					return len(m.events)-k+1 > burst+int((took+share.Interval-1)/share.Interval)-1
				}) {
					t.Fatalf("share %v: an event at %d was refused for %v, of granted %v", share, now, wait, m.events)
				}
				continue
			}
			m.events = append(m.events, now)
			for k := range m.events {
				took := time.Duration(now-m.events[k]) * time.Millisecond
				if n := len(m.events) - k; n > burst+int(took/share.Interval)+1 {
					t.Fatalf("share %v: %d events were granted within %v", share, n, took)
				}
			}
			within := func(d time.Duration) (n int64) {
				for _, at := range m.keys {
					if now-at < d.Milliseconds() {
						n++
					}
				}
				return n
			}
			if turn.HasRoom(share) {
				if n := within(window - window/100); n >= share.Keys {
					t.Fatalf("share %v: a key was granted after %d within %v", share, n, window)
				}
				turn.AddKey()
				m.keys = append(m.keys, now)
			} else if n := within(window + window/16 + 2*time.Millisecond); n < share.Keys {
				t.Fatalf("share %v: a key was refused after %d within %v", share, n, window)
			}
			if random.IntN(4) == 0 {
				tenants.Commit()
			}
		}
	}
}

func seq(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// TestTenantsAreWhatWasCommitted protects that the state of a task which loads the checkpoints, whole and partial,
// equals the state of the task that wrote them, and that an abort leaves nothing behind.
func TestTenantsAreWhatWasCommitted(t *testing.T) {
	random := rand.New(rand.NewPCG(20, 3))
	share := TenantShare{Keys: 5, Interval: 2 * time.Second}
	tenants, now := NewTenants(time.Minute, 8), int64(1_700_000_000_000)
	reader := tenants.State()
	for n := range 3000 {
		before := tenants.State()
		for range random.IntN(6) {
			now += random.Int64N(4000)
			turn := tenants.Turn(fmt.Append(nil, "t", random.IntN(30)), false, atOnce(now))
			if turn.Take(share) == 0 {
				if random.IntN(2) == 0 {
					turn.AddDuplicate()
				} else if turn.HasRoom(share) {
					turn.AddKey()
				}
			}
		}
		if random.IntN(3) == 0 {
			tenants.Discard()
			if got := tenants.State(); !reflect.DeepEqual(got, before) {
				t.Fatalf("step %d: an abort left\n%+v, want\n%+v", n, got, before)
			}
			continue
		}
		changes := NewCursor(tenants.AppendChanges(nil))
		reader = reader.ApplyChanges(&changes)
		if !changes.Done() {
			t.Fatalf("step %d: the changes cannot be read", n)
		}
		tenants.Commit()
		want := tenants.State()
		encoded := want.Append(nil)
		whole := NewCursor(encoded)
		decoded := DecodeTenantState(&whole)
		if !whole.Done() || !reflect.DeepEqual(decoded, want) || !bytes.Equal(reader.Append(nil), encoded) {
			t.Fatalf("step %d: read\n%+v\n%+v, want\n%+v", n, decoded, reader, want)
		}
		if len(want.Accounts) > 9 {
			t.Fatalf("step %d: %d accounts", n, len(want.Accounts))
		}
		if random.IntN(5) == 0 { // the task moves
			tenants = NewTenants(time.Minute, 8)
			tenants.Load(&decoded)
		}
	}
	var sum TenantCounts
	for _, a := range tenants.State().Accounts {
		sum.Add(&a.TenantCounts)
	}
	if sum.Events == 0 || sum.Over == 0 || sum.Unique == 0 || sum.Duplicates == 0 {
		t.Errorf("counts %+v", sum)
	}
}

// TestInventedTenantsShareAnAccount protects that an unlimited number of names does not take an unlimited amount of
// memory and does not get around the quota, and that a tenant with a quota of its own keeps its account.
func TestInventedTenantsShareAnAccount(t *testing.T) {
	tenants, share := NewTenants(time.Hour, 4), TenantShare{Keys: 3}
	granted := 0
	for n := range 1000 {
		turn := tenants.Turn(fmt.Append(nil, "t", n), false, atOnce(1_700_000_000_000))
		if turn.Take(share); turn.HasRoom(share) {
			turn.AddKey()
			granted++
		}
	}
	if n := len(tenants.State().Accounts); n != 5 || granted != 7 {
		t.Errorf("%d accounts, %d keys; want 5 accounts: 4 keys of their own, and 3 that all others share", n, granted)
	}
	own := tenants.Turn([]byte("acme"), true, atOnce(1_700_000_000_000))
	if !own.HasRoom(share) {
		t.Error("a tenant with a quota of its own has no room")
	}
	tenants.Commit()
	later := tenants.Turn([]byte("late"), false, atOnce(1_700_000_000_000+2*time.Hour.Milliseconds()))
	later.Take(share)
	state := tenants.State()
	if _, ok := state.Accounts["late"]; !ok || len(state.Accounts) != 2 || state.Accounts[OtherTenants].Events != 1000 {
		t.Errorf("after the window: %+v", state)
	}
}

// TestTenantsOfAnotherWindow protects that no key is forgotten after a change of the window.
func TestTenantsOfAnotherWindow(t *testing.T) {
	before, now := NewTenants(time.Hour, 4), int64(1_700_000_000_000)
	for range 7 {
		turn := before.Turn([]byte("a"), false, atOnce(now))
		turn.AddKey()
		now += 1000
	}
	before.Commit()
	for _, window := range []time.Duration{time.Minute, 24 * time.Hour} {
		after, state := NewTenants(window, 4), before.State()
		after.Load(&state)
		turn := after.Turn([]byte("a"), false, atOnce(now))
		if turn.HasRoom(TenantShare{Keys: 7}) || turn.Keys() != 7 {
			t.Errorf("window %v: %d keys, want 7", window, turn.Keys())
		}
		turn = after.Turn([]byte("a"), false, atOnce(now+(2*window+time.Hour/16).Milliseconds()))
		if !turn.HasRoom(TenantShare{Keys: 1}) {
			t.Errorf("window %v: keys stay for ever", window)
		}
	}
}

// TestTenantStateOfDamage protects that no bytes make the decoders panic or allocate much memory.
func TestTenantStateOfDamage(t *testing.T) {
	tenants := NewTenants(time.Hour, 4)
	for i := range 6 {
		turn := tenants.Turn(fmt.Append(nil, "t", i), false, atOnce(1_700_000_000_000))
		turn.AddKey()
	}
	state, changes := tenants.State(), tenants.AppendChanges(nil)
	encoded := state.Append(nil)
	for i := range encoded {
		cut := NewCursor(encoded[:i])
		if DecodeTenantState(&cut); cut.Done() {
			t.Errorf("a state of %d bytes of %d is read", i, len(encoded))
		}
	}
	for i := range changes {
		cut := NewCursor(changes[:i])
		if state.ApplyChanges(&cut); cut.Done() {
			t.Errorf("changes of %d bytes of %d are read", i, len(changes))
		}
	}
	huge := NewCursor([]byte{1, 0, 255, 255, 255, 255, 15})
	if DecodeTenantState(&huge); !huge.Bad() {
		t.Error("a state of too many accounts is read")
	}
}

// TestOutageOfAnyOrder protects a tenant whose events would all be granted if each came as it was sent: after an
// outage it gets all of them, too, in whatever order the task reads the inputs and with any number of restarts. With
// events beyond its share, a tenant never gets more than its share since the outage began.
func TestOutageOfAnyOrder(t *testing.T) {
	random := rand.New(rand.NewPCG(20, 4))
	for run := range 300 {
		share, began := TenantShare{Interval: time.Duration(1+random.IntN(30_000)) * time.Millisecond}, int64(1_700_000_000_000)
		live, tenants, now, within := NewTenants(time.Hour, 4), NewTenants(time.Hour, 4), began, run%2 == 0
		var inputs [4][]int64
		granted := 1
		for _, of := range []*Tenants{live, tenants} {
			turn := of.Turn([]byte("a"), false, atOnce(began))
			turn.Take(share)
		}
		for range 500 {
			now += random.Int64N(share.Interval.Milliseconds() + 2)
			if turn := live.Turn([]byte("a"), false, atOnce(now)); turn.Take(share) == 0 || !within {
				i := random.IntN(len(inputs))
				inputs[i] = append(inputs[i], now)
			}
		}
		for unknown := 0; ; unknown-- {
			since := now
			for _, in := range inputs {
				if len(in) > 0 {
					since = min(since, in[0])
				}
			}
			left := slices.DeleteFunc(seq(len(inputs)), func(i int) bool { return len(inputs[i]) == 0 })
			if len(left) == 0 {
				break
			}
			if random.IntN(100) == 0 {
				unknown = random.IntN(100) // the task goes on elsewhere
			}
			if unknown > 0 {
				since = 0
			}
			i := left[random.IntN(1+random.IntN(len(left)))]
			turn := tenants.Turn([]byte("a"), false, NewTenantTime(now, inputs[i][0], since))
			inputs[i] = inputs[i][1:]
			switch wait := turn.Take(share); {
			case wait == 0:
				granted++
			case within:
				t.Fatalf("run %d: an event within the share %v was refused for %v", run, share, wait)
			}
		}
		most := (time.Duration(now-began)*time.Millisecond+max(TenantBurst, share.Interval))/share.Interval + 1
		if granted > int(most) {
			t.Fatalf("run %d: %d events were granted, %d are the share %v", run, granted, most, share)
		}
	}
}
