package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
)

// topTenants is how many tenants of a route the command shows.
const topTenants = 10

// routeTenants has the tenants of a route, summed over all tasks. Its JSON names are an interface.
type routeTenants struct {
	Route string `json:"route"`
	// Top are the tenants with the most events, beginning with the tenants over their quota. Other sums up all
	// other tenants, including those that the tasks do not count individually.
	Top   []tenantStats `json:"top"`
	Other tenantStats   `json:"other"`
}

// tenantStats counts the events of a tenant since its account began, and its new keys.
type tenantStats struct {
	Tenant     string `json:"tenant,omitempty"`
	Events     uint64 `json:"events"`
	Unique     uint64 `json:"unique"`
	Duplicates uint64 `json:"duplicates"`
	OverQuota  uint64 `json:"over_quota"`
	Keys       int64  `json:"keys"` // keys that are new within the window, at present
}

func (s *tenantStats) add(a *tenantStats) {
	s.Events, s.Unique, s.Duplicates, s.OverQuota, s.Keys = s.Events+a.Events, s.Unique+a.Unique, s.Duplicates+a.Duplicates, s.OverQuota+a.OverQuota, s.Keys+a.Keys
}

// sumTenants sums the tenants of all tasks.
func sumTenants(tasks []front.TaskKeys, now time.Time) []routeTenants {
	byRoute := map[string]map[string]*tenantStats{}
	for i := range tasks {
		for _, route := range tasks[i].Tenants {
			if byRoute[route.Route] == nil {
				byRoute[route.Route] = map[string]*tenantStats{}
			}
			for name, a := range route.Accounts {
				one := byRoute[route.Route][name]
				if one == nil {
					one = &tenantStats{Tenant: name}
					byRoute[route.Route][name] = one
				}
				one.add(&tenantStats{Events: a.Events, Unique: a.Unique, Duplicates: a.Duplicates, OverQuota: a.Over, Keys: a.KeysAt(route.Width, now.UnixMilli())})
			}
		}
	}
	shown := []routeTenants{}
	for route, tenants := range byRoute {
		shown = append(shown, topOf(route, tenants))
	}
	slices.SortFunc(shown, func(a, b routeTenants) int { return cmp.Compare(a.Route, b.Route) })
	return shown
}

// topOf returns the tenants of a route with the most events, and the sum of the others.
func topOf(route string, tenants map[string]*tenantStats) routeTenants {
	one := routeTenants{Route: route, Top: []tenantStats{}}
	for name, s := range tenants {
		if name == dedup.OtherTenants {
			one.Other.add(s)
		} else {
			one.Top = append(one.Top, *s)
		}
	}
	slices.SortFunc(one.Top, func(a, b tenantStats) int {
		return cmp.Or(cmp.Compare(b.OverQuota, a.OverQuota), cmp.Compare(b.Events, a.Events), cmp.Compare(a.Tenant, b.Tenant))
	})
	for i := topTenants; i < len(one.Top); i++ {
		one.Other.add(&one.Top[i])
	}
	one.Top = one.Top[:min(topTenants, len(one.Top))]
	return one
}

// writeTenants prints the tenants of the routes that have tenants.
func writeTenants(to io.Writer, all []routeTenants) error {
	if len(all) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	cli.Printf(tw, "\nroute\ttenant\tevents\tunique\tduplicates\tover quota\tkeys\n")
	for i := range all {
		line := func(name string, s *tenantStats) {
			cli.Printf(tw, "%s\t%s\t%d\t%d\t%d\t%d\t%d\n", all[i].Route, name, s.Events, s.Unique, s.Duplicates, s.OverQuota, s.Keys)
		}
		for k := range all[i].Top {
			line(string(rules.AppendSender(nil, []byte(all[i].Top[k].Tenant))), &all[i].Top[k])
		}
		line("(others)", &all[i].Other)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write standard output: %w", err)
	}
	return nil
}
