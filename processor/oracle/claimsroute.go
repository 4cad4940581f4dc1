package oracle

// For routes in claim mode that share the app, Check follows the events through the
// router, the stream time and the rows in the stores, and compares the readings of
// the topics. CheckClaims checks the content.

// moveStreamTime moves the stream time to that of an event of claim mode.
func (f *fold) moveStreamTime(e *envelope, c *Claims, present int64) {
	switch {
	case e.time > add(present, c.Skew), f.lateness(c.NamespaceID, c.Window, c.Grace, e.time) != "":
		return // not judged
	case !f.seen[c.NamespaceID] || e.time > f.times[c.NamespaceID]:
		f.times[c.NamespaceID] = e.time
	}
	f.seen[c.NamespaceID] = true
}

// ofClaims reports whether a row of the changelog is one of claim mode.
func (c *check) ofClaims(row *Record) bool {
	for i := range c.cfg.Claims {
		if len(row.Value) > 2 && row.Value[2] == c.cfg.Claims[i].NamespaceID {
			return true
		}
	}
	return false
}

// readClaims compares the readings of the topics of claim mode (K7).
func (c *check) readClaims() {
	read := map[string]bool{"": true}
	for i := range c.cfg.Claims {
		claims := &c.cfg.Claims[i]
		for _, topic := range []string{claims.Output, claims.Replies, claims.Dead, claims.Answers, claims.Outcomes} {
			if !read[topic] {
				read[topic] = true
				c.log(topic, whole)
			}
		}
	}
}
