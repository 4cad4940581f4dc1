package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"oncebus/cmd/oncebus/cli"
	"oncebus/dedup/rules"
	"oncebus/processor/front"
)

// mayForget returns an error for a route without claims.
func mayForget(routes *rules.Routes, route *rules.Route) error {
	if inClaimMode(route) {
		return nil
	}
	return fmt.Errorf("route %s is not in claim mode, so its keys stay until their window is over; routes in claim mode: %s",
		route.Name, routeNames(routes, inClaimMode))
}

// forgetCommand is 'oncebus forget'.
func forgetCommand() cli.Command {
	var o inspectOptions
	return cli.Command{
		Name: "forget", Synopsis: "--route NAME [OPTIONS] [FILE|-]", About: "erase the state of an event's key, in claim mode", ArgsMax: 1,
		Long: "Erases the row of an event's key, so that the event may run again. Only for routes in claim\n" +
			"mode: it produces an outcome, and the service erases the row when it reads the outcome. The\n" +
			"outcome names the attempt of the row, so it erases no later one.\n" + inspectAbout,
		Example: `echo '{"account":"a","requestId":"r1","operation":"grant"}' | oncebus forget --route operations`,
		Flags:   o.define,
		Words:   routeWords(&o.routesFile),
		Run:     o.forget,
	}
}

func (o *inspectOptions) forget(ctx context.Context, rest []string, p cli.Process) int {
	in, code, done := o.inspect(ctx, "forget", rest, p, mayForget)
	if done {
		return code
	}
	erasure, err := in.inspector.Forget(ctx, &in.derived[0])
	in.progress.End()
	in.inspector.Close()
	if err != nil {
		cli.Printf(p.Stderr, "oncebus forget: %v\n", err)
		return codeOf(err)
	}
	if o.json {
		err = json.NewEncoder(p.Stdout).Encode(newShownErasure(&in.derived[0], &erasure))
	} else {
		_, err = fmt.Fprintln(p.Stdout, describeErasure(&in.derived[0], &erasure))
	}
	if err != nil {
		cli.Printf(p.Stderr, "oncebus forget: %v\n", err)
		return cli.ExitFailed
	}
	return cli.ExitStopped
}

// shownErasure is printed as JSON. Its JSON names are an interface.
type shownErasure struct {
	Route   string `json:"route"`
	Key     string `json:"key"`
	Digest  string `json:"digest"`
	Found   bool   `json:"found"`
	Attempt uint32 `json:"attempt,omitempty"`
	// Asked is the topic that has the outcome; "" if there is nothing to erase.
	Asked string `json:"asked,omitempty"`
}

func newShownErasure(d *rules.Derived, e *front.Erasure) shownErasure {
	shown := shownErasure{Route: d.Route.Name, Key: hex.EncodeToString(d.Key[:]), Digest: e.Digest.String(), Found: e.Found, Attempt: e.Attempt}
	if e.Produced {
		shown.Asked = d.Route.Claim.Outcomes
	}
	return shown
}

// describeErasure says what the command did, or why there is nothing to erase.
func describeErasure(d *rules.Derived, e *front.Erasure) string {
	key, adjacent := hex.EncodeToString(d.Key[:]), ""
	if e.Digest != d.Digest {
		adjacent = fmt.Sprintf(" (with the row of digest %v, in an adjacent bucket)", e.Digest)
	}
	switch {
	case !e.Found:
		return fmt.Sprintf("no row for key %s (digest %v) in namespace %s: nothing to erase", key, e.Digest, d.Route.Namespace)
	case !e.Produced:
		return fmt.Sprintf("key %s%s of route %s is free after attempt %d: nothing to erase", key, adjacent, d.Route.Name, e.Attempt)
	}
	return fmt.Sprintf("produced the outcome forget for attempt %d of key %s%s of route %s to topic %s", e.Attempt, key, adjacent, d.Route.Name, d.Route.Claim.Outcomes)
}
