package rules

import (
	"strings"

	"go.yaml.in/yaml/v4"
)

// ownHeaderPrefix begins the names of the headers that oncebus sets. The ingress
// and the router remove incoming headers with such a name, so no route may read one.
const ownHeaderPrefix = "oncebus-"

func (d *decoder) refuseOwnHeader(n *yaml.Node, at, name string) {
	if strings.HasPrefix(strings.ToLower(name), ownHeaderPrefix) {
		d.fail(n, at, "incoming %s* headers are never trusted", ownHeaderPrefix)
	}
}
