package wire

import (
	"bytes"
	"errors"
	"reflect"
	"testing"
	"time"

	"oncebus/dedup"
)

// atOnce is the time of an event that its task gets as soon as it was sent.
func atOnce(now int64) dedup.TenantTime { return dedup.NewTenantTime(now, now, now) }

// tenantsAt returns accounts of two tenants, and their owner.
func tenantsAt(now int64) *dedup.Tenants {
	tenants := dedup.NewTenants(time.Hour, 16)
	for _, name := range []string{"acme", "globex", "acme"} {
		turn := tenants.Turn([]byte(name), false, atOnce(now))
		turn.Take(dedup.TenantShare{Interval: time.Second})
		turn.AddKey()
	}
	tenants.Commit()
	return tenants
}

// TestTenantsAreFolded: a partial checkpoint has what changed in the accounts of tenants. One
// without changes keeps them, and no checkpoint before it changes.
func TestTenantsAreFolded(t *testing.T) {
	const now = 1_700_000_000_000
	tenants := tenantsAt(now)
	whole := Checkpoint{Next: 7, Epoch: -1, Sequence: 3, Set: 1, Tenants: []RouteTenants{{"a", tenantsAt(now).State()}, {"bc", tenants.State()}}}
	encoded := whole.Append(nil)
	back, err := DecodeCheckpoint(encoded)
	if err != nil || !reflect.DeepEqual(back, whole) {
		t.Fatalf("decoded %+v, %v, want %+v", back, err, whole)
	}
	for n := range encoded {
		if _, err := DecodeCheckpoint(encoded[:n]); !errors.Is(err, ErrCheckpoint) {
			t.Fatalf("%d of %d bytes: %v", n, len(encoded), err)
		}
	}
	var fold Fold
	if err := fold.Add(0, encoded); err != nil {
		t.Fatal(err)
	}
	before := whole
	for number, names := range [][]string{1: {"acme", "initech"}, 2: {}, 3: {"globex"}} {
		if number == 0 {
			continue
		}
		next := before
		next.Sequence++
		for _, name := range names {
			turn := tenants.Turn([]byte(name), false, atOnce(now+int64(number)*1000))
			turn.AddKey()
		}
		var changes []byte
		if tenants.IsChanged() {
			changes = tenants.AppendChanges(AppendTenantRoute(nil, 1))
		}
		tenants.Commit()
		next.Tenants = []RouteTenants{whole.Tenants[0], {"bc", tenants.State()}}
		if err := fold.Add(uint32(number), next.AppendPartial(nil, &before, nil, changes)); err != nil {
			t.Fatal(err)
		}
		if got := fold.Newest(); !reflect.DeepEqual(got, next) {
			t.Errorf("%v: folded to %+v, want %+v", names, got, next)
		}
		before = next
	}
	if again := whole.Append(nil); !bytes.Equal(again, encoded) {
		t.Error("a fold changed the whole checkpoint")
	}
}

// TestChangesOfUnknownTenantsAreRefused: those of a route that the whole checkpoint lacks, and
// those that are cut short.
func TestChangesOfUnknownTenantsAreRefused(t *testing.T) {
	tenants := tenantsAt(1)
	whole := Checkpoint{Next: 7, Epoch: -1, Sequence: 3, Set: 1, Tenants: []RouteTenants{{"a", tenants.State()}}}
	turn := tenants.Turn([]byte("acme"), false, atOnce(5))
	turn.AddKey()
	good := tenants.AppendChanges(AppendTenantRoute(nil, 0))
	next := whole
	next.Sequence++
	for name, changes := range map[string][]byte{
		"of another route": tenants.AppendChanges(AppendTenantRoute(nil, 1)),
		"cut short":        good[:len(good)-1],
		"with a byte more": append(bytes.Clone(good), 0),
	} {
		var fold Fold
		if err := fold.Add(0, whole.Append(nil)); err != nil {
			t.Fatal(err)
		}
		if err := fold.Add(1, next.AppendPartial(nil, &whole, nil, changes)); !errors.Is(err, ErrCheckpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
