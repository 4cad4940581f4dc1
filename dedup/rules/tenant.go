package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

// Tenant says where a record names its tenant. The keys of the tenants of a route are separate: the same id of
// two tenants makes two keys.
type Tenant struct {
	Kind   TenantKind
	Header string // of TenantHeader and TenantPrincipal
	Field  Field  // of TenantField
	// Default is the tenant of a record that names no tenant. Without a Default such a record is malformed.
	Default  string
	fallback []byte // Default as bytes
}

// TenantKind is the kind of a Tenant.
type TenantKind uint8

// Kinds of tenants.
const (
	TenantHeader TenantKind = iota
	TenantField
	TenantPrincipal // the authenticated name, which the ingress writes into PrincipalHeader
)

// PrincipalHeader is the record header into which the ingress writes the authenticated name of a sender. The
// ingress carries no request header under this name, so no sender can set it by HTTP.
const PrincipalHeader = "x-oncebus-principal"

// TenantBytesMax is the longest name of a tenant in bytes.
const TenantBytesMax = 64

// String returns the tenant as it is shown to a person.
func (x *Tenant) String() string {
	switch x.Kind {
	case TenantField:
		return x.Field.label
	case TenantHeader, TenantPrincipal:
	}
	return "header " + x.Header
}

// rule returns the tenant as part of the key rule. The default is not part of the key rule. Without a default a
// record that names no tenant has no key, so no stored key changes when an operator adds a default.
func (x *Tenant) rule() string {
	switch x.Kind {
	case TenantField:
		return "field(" + strconv.Quote(x.Field.Path.Text) + ")"
	case TenantHeader, TenantPrincipal:
	}
	return "header(" + strconv.Quote(x.Header) + ")"
}

// TenantRule returns the tenant as part of the key rule; "" for a route without a tenant.
func (r *Route) TenantRule() string {
	if r.Tenant == nil {
		return ""
	}
	return r.Tenant.rule()
}

// tenantDraft is a tenant while the decoder reads it.
type tenantDraft struct {
	Tenant
	named int // how many ways to find the tenant the file names: must be one
}

var tenantFields = []fieldOf[tenantDraft]{
	{"header", func(d *decoder, x *tenantDraft, n *yaml.Node, at string) {
		x.Header, _ = d.text(n, at)
		d.refuseOwnHeader(n, at, x.Header)
		x.Kind, x.named = TenantHeader, x.named+1
	}},
	{"field", func(d *decoder, x *tenantDraft, n *yaml.Node, at string) {
		x.Field = d.field(n, at)
		x.Kind, x.named = TenantField, x.named+1
	}},
	{"principal", func(d *decoder, x *tenantDraft, n *yaml.Node, at string) {
		readFlag(d, nil, n, at)
		x.Header, x.Kind, x.named = PrincipalHeader, TenantPrincipal, x.named+1
	}},
	{"default", func(d *decoder, x *tenantDraft, n *yaml.Node, at string) {
		x.Default = d.tenantName(n, at)
		x.fallback = []byte(x.Default)
	}},
}

// tenant reads the tenant of a route.
func (d *decoder) tenant(n *yaml.Node, at string) *Tenant {
	x := &tenantDraft{}
	before := len(d.mistakes)
	if decodeObject(d, n, at, x, tenantFields) != nil && x.named != 1 && len(d.mistakes) == before {
		d.fail(n, at, "want exactly one of header, field and principal, found %d", x.named)
	}
	return &x.Tenant
}

// tenantName reads the name of a tenant.
func (d *decoder) tenantName(n *yaml.Node, at string) string {
	name, ok := d.text(n, at)
	if cause := tenantCause([]byte(name)); ok && cause != "" {
		d.fail(n, at, "%.80q %s", name, cause)
	}
	return name
}

// tenantCause returns why a text is no name of a tenant; "" if it is one.
func tenantCause(name []byte) string {
	switch {
	case len(name) > TenantBytesMax:
		return fmt.Sprintf("has %d bytes: a tenant has at most %d", len(name), TenantBytesMax)
	case !utf8.Valid(name):
		return "is no UTF-8: a tenant is printable text"
	case strings.ContainsFunc(string(name), func(c rune) bool { return !unicode.IsPrint(c) }):
		return "has characters that do not print: a tenant is printable text"
	}
	return ""
}

// validateTenant refuses a setting with which no event of the route can have a tenant. On a route without a
// tenant it refuses parts of keys that read the tenant.
func (d *decoder) validateTenant(r *draft) {
	x := r.Tenant
	if x == nil {
		readsTenant := func(s Source) bool { return s.readsPart(ofTenant) }
		if slices.ContainsFunc(r.Keys, readsTenant) {
			d.failAt(r, "key", "reads the tenant, and the route has none: add tenant: {header: NAME}, or take it out of key")
		}
		if r.Shadow != nil && slices.ContainsFunc(r.Shadow.Keys, readsTenant) {
			d.failAt(r, "shadow", "reads the tenant, and the route has none: take it out of the key of the shadow")
		}
		if r.Quota != nil {
			d.failAt(r, "quota", "is for each tenant, and the route has none: add tenant: {header: NAME}; for the whole route there is limits")
		}
		return
	}
	switch {
	case x.Kind == TenantPrincipal && r.HTTP == nil:
		d.failAt(r, "tenant", "principal needs an http part: no event of the route comes by HTTP")
	case x.Kind == TenantHeader && x.Header != "" && r.HTTP != nil:
		d.requireCarried(r, r.nodes["tenant"], join(r.at, "tenant"), x.Header)
	}
}

// scopeName is the name of the tenant among the hashed bytes.
const scopeName = ".tenant"

// deriveTenant finds the tenant of the record and sets d.tenant and out.Tenant.
func (d *Deriver) deriveTenant(r *Route, out *Derived) status {
	x := r.Tenant
	d.tenant = nil
	if x == nil {
		return found
	}
	mark := len(d.skipped)
	if x.Kind == TenantField {
		s, st := d.scalar(&x.Field)
		if st == found {
			s, st = d.finish(&x.Field, s) // a number becomes text
		}
		if st == bad {
			return bad
		}
		d.tenant = s.text
	} else {
		d.tenant = d.header(x.Header)
	}
	d.skipped = d.skipped[:mark]
	if len(d.tenant) == 0 {
		if x.Default == "" {
			return d.fail("tenant", fmt.Sprintf("%v has none: send it there, or give the route tenant: {default: NAME}", x))
		}
		d.tenant = x.fallback
	}
	if cause := tenantCause(d.tenant); cause != "" {
		return d.fail("tenant", x.String()+" "+cause)
	}
	out.Tenant = d.nameOf(d.tenant)
	return found
}

// namesMax is how many names of tenants a deriver keeps as strings, so that it does not allocate one twice.
const namesMax = 4096

// nameOf returns the name of a tenant as a string, and keeps it for the next record.
func (d *Deriver) nameOf(name []byte) string {
	if known, ok := d.names[string(name)]; ok {
		return known
	}
	if d.names == nil || len(d.names) == namesMax {
		d.names = map[string]string{}
	}
	text := string(name)
	d.names[text] = text
	return text
}

// scoped returns the bytes to hash: the name of the record's tenant and then b, so that the hashed bytes of two
// tenants never coincide.
func (d *Deriver) scoped(r *Route, b []byte) []byte {
	if r.Tenant == nil {
		return b
	}
	mark := len(d.scope)
	d.scope = append(appendPart(d.scope, scopeName, d.tenant), b...)
	return d.scope[mark:]
}
