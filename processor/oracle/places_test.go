package oracle

import "testing"

// eventByHTTP adds an event of request n by HTTP, with a request id, that names a request
// whose client is gone; 0 for none.
func (l *claimLog) eventByHTTP(key string, n, replaces byte, id string) {
	address := func(n byte) []byte { return append([]byte{3, 7, 0, 0, 0, 0, 0, 0, 0}, n, 0, 0, 0, 0, 0, 0, 0) }
	flags := uint64(flagReplyTo | flagDetails)
	tail := append(address(n), 0, 0, 0, 0, 0, 0, 0, 0, 0, byte(len(id)))
	tail = append(tail, id...)
	if replaces != 0 {
		flags |= flagReplaces
		tail = append(tail, address(replaces)...)
	}
	l.route(key, "", flags, tail)
}

// TestClaimsCheckerForetellsPlaces: a request by HTTP gives its place up, and is answered
// then, once. It accepts no other reply.
func TestClaimsCheckerForetellsPlaces(t *testing.T) {
	rules := *testClaims
	rules.Wait, rules.Timeout, rules.Lease = 2, 50, 1000
	places := func() *claimLog {
		l := &claimLog{live: map[string][]Record{}, now: 1000}
		l.eventByHTTP("a", 1, 0, "")
		l.run("a", "1")
		l.eventByHTTP("b", 2, 0, "")
		l.eventByHTTP("c", 3, 2, "") // b's client is gone
		l.reply("b", "in_progress", "in_progress", "1", "")
		l.eventByHTTP("d", 4, 1, "x") // a's event was dispatched: it has no place
		l.eventByHTTP("e", 5, 0, "x") // d is the same sender
		l.reply("d", "in_progress", "in_progress", "1", "")
		l.eventByHTTP("f", 6, 9, "y") // names a request that does not wait
		l.reply("f", "in_progress", "in_progress", "1", "")
		l.event("g") // a sender by Kafka
		l.reply("g", "in_progress", "in_progress", "1", "")
		l.now = 1051
		l.event("h") // the timeout of c is over
		l.reply("c", "in_progress", "in_progress", "1", "")
		l.outcome("o", 1, 1, 1, "yes")
		l.reply("a", "unique", "completed", "1", "yes")
		l.reply("e", "replayed", "completed", "1", "yes")
		l.reply("h", "replayed", "completed", "1", "yes")
		return l
	}
	known, counts := CheckClaims(&rules, places().live) // the log has no changelog
	if len(known) != 1 || counts["replaced"] != 3 {
		t.Fatalf("%q, %v", known, counts)
	}
	for n := range places().live["replies"] {
		for _, change := range []func(l *claimLog){
			func(l *claimLog) { l.live["replies"] = append(l.live["replies"][:n], l.live["replies"][n+1:]...) },
			func(l *claimLog) { l.live["replies"] = append(l.live["replies"], l.live["replies"][n]) },
			func(l *claimLog) { l.live["replies"][n].Key = []byte("another") },
		} {
			l := places()
			change(l)
			if wrong, _ := CheckClaims(&rules, l.live); len(wrong) == len(known) {
				t.Errorf("reply %d: nothing is found", n)
			}
		}
	}
}
