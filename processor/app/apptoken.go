package app

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"oncebus/dedup/rules"
)

// tokenApp returns the number that identifies the app in its claim tokens, never 0. It depends on the
// manifest's secret, so that two apps of the same name on two clusters have different numbers.
func (m *Manifest) tokenApp(app string) uint64 {
	mac := hmac.New(sha256.New, m.HashSecret)
	mac.Write([]byte("oncebus claim token: which app is this\n" + app))
	return max(1, binary.LittleEndian.Uint64(mac.Sum(nil)))
}

// nameApp changes an app that an earlier build created: from then on its claim tokens name the app, and its
// leases end by progress records. It reports whether it changed the manifest. A process of an earlier build
// would dead-letter outcomes with such tokens, and would stop at progress records. So nameApp changes nothing
// until a start at which no process of the app runs.
func (s *setup) nameApp(ctx context.Context, m *Manifest) bool {
	claims := func(r *rules.Route) bool { return r.Mode == rules.ClaimMode }
	if m.Version >= manifestVersionAppTokens || !slices.ContainsFunc(s.routes.Routes, claims) {
		return false
	}
	if !s.stopped(ctx) {
		s.Log.Warn("claim tokens do not name the app: stop all processes, then start them", "app", s.cfg.AppID)
		return false
	}
	m.Version = manifestVersionAppTokens
	return true
}

// stopped reports whether no process of the app runs: its groups have no members. It reports false if the
// groups cannot be read, for example because the user lacks the right to describe them.
func (s *setup) stopped(ctx context.Context) bool {
	names := []string{GroupName(s.cfg.AppID, StageRoute), GroupName(s.cfg.AppID, StageDedup)}
	groups, err := DescribeGroups(ctx, s.Admin, names...)
	for _, group := range groups {
		if len(group.Members) > 0 {
			return false
		}
	}
	return err == nil
}
