package judge

import (
	"fmt"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/processor/app"
	"oncebus/processor/kafka"
)

// Erase frees the rows that an erasure request names, in the open transaction, and returns how many it freed. A
// row stays as it is if it is already free, or belongs to a later event or attempt than the request names; a
// named row may also be gone. A request may therefore be read again, or late. The next event of a freed key is
// unique; in claim mode it is a further attempt. A freed row has no result and no requests, and keeps its link.
func (t *Judge) Erase(j *Judging, request *app.ErasureRequest) (erased int, err error) {
	var route *app.Route
	for _, r := range t.App.Routes {
		if r.NamespaceID == request.NamespaceID {
			route = r
			break
		}
	}
	if route == nil {
		return 0, fmt.Errorf("%w: an erasure of namespace id %d, which has no route", kafka.ErrIllegalState, request.NamespaceID)
	}
	for i := range request.Rows {
		done, err := t.eraseRow(j, route, &request.Rows[i])
		if err != nil {
			return erased, fmt.Errorf("erase row %s: %w", request.Rows[i].Digest, err)
		}
		if done {
			erased++
		}
	}
	return erased, nil
}

// eraseRow frees one row, if the request means the row that is stored now, and reports whether it did.
func (t *Judge) eraseRow(j *Judging, route *app.Route, ref *app.RowRef) (bool, error) {
	digest, _ := ref.ParseDigest() // ReadErasure has checked the digest
	row, found, err := t.row(j.Emitter, digest)
	if err != nil || !found || row.NamespaceID != route.NamespaceID || !ref.Names(&row) || !t.window(route).Retains(row.First, t.streamTime(row.NamespaceID)) {
		return false, err
	}
	if route.Mode == rules.ClaimMode {
		return true, t.eraseClaim(j, route, &row)
	}
	freed := dedup.Row{Digest: row.Digest, First: row.First, At: row.At, NamespaceID: row.NamespaceID, Status: dedup.Freed, Earlier: row.Earlier, Link: row.Link, Before: row.Before}
	t.put(j.Emitter, &change{row: &freed, replaced: &row})
	return true, nil
}

// eraseClaim applies the outcome "forget" to a claim. The requests that wait for an outcome get this
// outcome.
func (t *Judge) eraseClaim(j *Judging, route *app.Route, row *dedup.Row) error {
	o := dedup.Outcome{Kind: dedup.OutcomeForget, Token: dedup.TokenOf(row, t.ID.Partition)}
	o.Token.App = t.App.TokenApp
	s, err := dedup.ApplyOutcome(&o, *row, true, t.window(route), route.Rule, t.streamTime(route.NamespaceID))
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", kafka.ErrIllegalState, err)
	case s.Refused != "" || s.Repeated:
		return fmt.Errorf("%w: the outcome forget of a retained claim was refused: %s", kafka.ErrIllegalState, s.Refused)
	}
	t.storeOutcome(j, t.App.ClaimRoute(s.Claim.Route, route), &o, row, &s, t.App.Clock.Now())
	return nil
}
