package dedup

// Hit returns the row of a key after one more duplicate, which came at a broker time in ms. Only the count and
// the time of the last duplicate change. The error wraps ErrRow.
func (r *Row) Hit(at int64) (Row, error) {
	claim, err := DecodeClaim(r.Result)
	if err != nil {
		return Row{}, err
	}
	hit := *r
	hit.Again = true
	hit.setClaim(&Claim{Hits: claim.Hits + 1, LastHit: max(claim.LastHit, at)})
	return hit, nil
}
