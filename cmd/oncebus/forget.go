package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
)

// mayForget returns an error for a route without claims.
func mayForget(routes *rules.Routes, route *rules.Route) error {
	if inClaimMode(route) {
		return nil
	}
	return fmt.Errorf("route %s is not in claim mode, so its keys stay until their window is over; routes in claim mode: %s",
		route.Name, routeNames(routes, inClaimMode))
}

func runForget(ctx context.Context, args []string, p cli.Process) int {
	in, o, code, done := inspect(ctx, "forget", "Erases the row of an event's key, so that the event may run again. Only for routes in claim\n"+
		"mode: it produces an outcome, and the service erases the row when it reads the outcome.\n"+inspectAbout, args, p,
		mayForget, func(*flag.FlagSet, *inspectOptions) {})
	if done {
		return code
	}
	digest, err := in.inspector.Forget(ctx, &in.derived[0])
	in.inspector.Close()
	if err != nil {
		cli.Printf(p.Stderr, "oncebus forget: %v\n", err)
		return codeOf(err)
	}
	key := hex.EncodeToString(in.derived[0].Key[:])
	if o.json {
		err = json.NewEncoder(p.Stdout).Encode(map[string]string{"route": o.route, "key": key, "digest": digest.String(), "asked": in.derived[0].Route.Claim.Outcomes})
	} else {
		adjacent := ""
		if digest != in.derived[0].Digest {
			adjacent = fmt.Sprintf(" (with the row of digest %v, in an adjacent bucket)", digest)
		}
		_, err = fmt.Fprintf(p.Stdout, "produced the outcome forget for key %s%s of route %s to topic %s\n", key, adjacent, o.route, in.derived[0].Route.Claim.Outcomes)
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus forget: %v\n", err)
		return cli.ExitFailed
	}
	return cli.ExitStopped
}
