package app

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"oncebus/dedup/rules"
)

// tokenApp returns what identifies the app in its claim tokens, never 0. The secret of
// the manifest tells apps of one name on two clusters apart.
func (m *Manifest) tokenApp(app string) uint64 {
	mac := hmac.New(sha256.New, m.HashSecret)
	mac.Write([]byte("oncebus claim token: which app is this\n" + app))
	return max(1, binary.LittleEndian.Uint64(mac.Sum(nil)))
}

// nameApp makes the claim tokens of an app of an earlier build name it, lets its leases
// end by progress records, and reports whether it changed the manifest. An earlier build
// would dead-letter outcomes with such tokens, and stop at such records. So it waits for
// a start while no process of the app runs.
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

// stopped reports whether the groups of the app have no members. It reports false if
// they cannot be read, as without the right to.
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
