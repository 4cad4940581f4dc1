package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
)

// mayForget refuses routes without claims.
func mayForget(routes *rules.Routes, route *rules.Route) error {
	if inClaimMode(route) {
		return nil
	}
	return fmt.Errorf("route %s is not in claim mode: its keys count until their window is over; those of routes in claim mode can be forgotten: %s",
		route.Name, routeNames(routes, inClaimMode))
}

func runForget(ctx context.Context, args []string, p cli.Process) int {
	in, o, code, done := inspect(ctx, "forget", "Erases what is kept of an event's key, so that the event may run again. For routes in claim\n"+
		"mode: it goes by way of the route's outcomes topic, and is done when the service has read it.\n"+inspectAbout, args, p,
		mayForget)
	if done {
		return code
	}
	digest, err := in.inspector.Forget(ctx, &in.derived)
	in.inspector.Close()
	if err != nil {
		cli.Printf(p.Stderr, "oncebus forget: %v\n", err)
		return codeOf(err)
	}
	key := hex.EncodeToString(in.derived.Key[:])
	if o.json {
		err = json.NewEncoder(p.Stdout).Encode(map[string]string{"route": o.route, "key": key, "digest": digest.String(), "asked": in.derived.Route.Claim.Outcomes})
	} else {
		beside := ""
		if digest != in.derived.Digest {
			beside = fmt.Sprintf(", kept under the neighbouring digest %v,", digest)
		}
		_, err = fmt.Fprintf(p.Stdout, "asked to forget key %s%s of route %s, on topic %s\n", key, beside, o.route, in.derived.Route.Claim.Outcomes)
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus forget: %v\n", err)
		return cli.ExitFailed
	}
	return cli.ExitStopped
}
