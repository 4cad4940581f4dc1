package wire

import (
	"encoding/binary"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
)

// RouteTenants has the accounts of the tenants of one route.
type RouteTenants struct {
	Route string // its name
	dedup.TenantState
}

// tenantsMax bounds the routes with tenant accounts in a checkpoint: the routes of the routes file, and
// former routes whose accounts are carried along.
const tenantsMax = 1 << 10

// appendTenants appends the accounts, if flags has flagTenants: the number of routes, uvarint, and for
// each route: length of the name 1, name, length of the accounts uvarint, accounts.
func (c *Checkpoint) appendTenants(dst []byte, flags uint64) []byte {
	if flags&flagTenants == 0 {
		return dst
	}
	all := c.Tenants
	dst = binary.AppendUvarint(dst, uint64(len(all)))
	for i := range all {
		dst = append(append(dst, byte(len(all[i].Route))), all[i].Route...)
		dst = appendSized(dst, all[i].Append)
	}
	return dst
}

func decodeTenants(r *dedup.Cursor) (all []RouteTenants) {
	n := r.Uvarint(tenantsMax)
	if n == 0 {
		r.Fail()
	}
	for ; n > 0 && !r.Bad(); n-- {
		route := string(r.Bytes(int(r.Byte())))
		state := dedup.NewCursor(r.Bytes(int(r.Uvarint(uint64(r.Left())))))
		all = append(all, RouteTenants{route, dedup.DecodeTenantState(&state)})
		if !state.Done() {
			r.Fail()
		}
	}
	return all
}

// AppendTenantRoute begins the changes of a route's accounts in a partial checkpoint. place is the
// route's index in the whole checkpoint. What dedup.Tenants.AppendChanges appends follows.
func AppendTenantRoute(dst []byte, place int) []byte { return binary.AppendUvarint(dst, uint64(place)) }

// applyTenants applies the changes of the tenant accounts in a partial checkpoint.
func (c *Checkpoint) applyTenants(changes []byte, r *dedup.Cursor) {
	c.Tenants = slices.Clone(c.Tenants)
	for in := dedup.NewCursor(changes); !in.Done(); {
		place := int(in.Uvarint(tenantsMax))
		if in.Bad() || place >= len(c.Tenants) {
			r.Fail()
			return
		}
		c.Tenants[place].TenantState = c.Tenants[place].ApplyChanges(&in)
		if in.Bad() {
			r.Fail()
			return
		}
	}
}

// This fails to compile if the length of a tenant's name does not fit into one byte.
var _ [255 - rules.TenantBytesMax]struct{}
