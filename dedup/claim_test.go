package dedup

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// claimPlay runs the lines of one script:
//
//	rule lease=N wait=N result=N window=N   remove all rows and set the rule
//	at T                                    set broker time
//	event KEY ID [print=N] [time=N] [dispatched=N] [started=N]
//	                                        judge an event; its event time is broker time unless set
//	bypassed KEY ID [print=N] [time=N]      store one that was forwarded unchecked
//	outcome KEY KIND ATTEMPT [VALUE] [id=START_ID] [at=N]
//	                                        apply an outcome of that attempt of the key's current claim, or of
//	                                        the newest former one
//	restart                                 encode and decode every row
type claimPlay struct {
	w      Window
	rule   ClaimRule
	rows   map[string]Row
	former Row // of the key that was claimed again after its window
	stream int64
	now    int64
	offset int64
}

func (p *claimPlay) run(line string) (string, error) {
	field := strings.Fields(line)
	if field[0] == "outcome" {
		return p.outcome(field[1:])
	}
	named := map[string]int64{}
	var plain []string
	for _, f := range field[1:] {
		name, text, found := strings.Cut(f, "=")
		if !found {
			plain = append(plain, f)
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return "", fmt.Errorf("%s: %w", line, err)
		}
		named[name] = n
	}
	switch field[0] {
	case "rule":
		*p = claimPlay{
			w: Window{Size: named["window"], Skew: 1 << 40}, rows: map[string]Row{}, stream: NoStreamTime,
			rule: ClaimRule{Lease: named["lease"], Wait: int(named["wait"]), ResultBytes: int(named["result"])},
		}
		return "ok", nil
	case "at":
		n, err := strconv.ParseInt(plain[0], 10, 64)
		p.now = n
		return "ok", err
	case "event", "bypassed":
		t, ok := named["time"]
		if !ok {
			t = p.now
		}
		ev := p.next(plain[0], plain[1], uint64(named["print"])<<8|1, t)
		ev.DispatchedAt, ev.TaskStartedAt = named["dispatched"], named["started"]
		if field[0] == "bypassed" {
			return p.bypassed(plain[0], ev)
		}
		return p.event(plain[0], ev)
	case "restart":
		for key, row := range p.rows {
			back, err := DecodeValue(row.Digest, row.AppendValue(nil))
			if err != nil {
				return "", err
			}
			p.rows[key] = back
		}
		return "ok", nil
	}
	return "", fmt.Errorf("unknown command in %q", line)
}

func (p *claimPlay) event(key string, ev ClaimEvent) (string, error) {
	prior, found := p.rows[key]
	c, err := DecideClaim(ev, prior, found, p.w, p.rule, p.stream)
	if err != nil {
		return "", err
	}
	if c.Write {
		p.rows[key] = c.Row
	}
	p.stream = NextStreamTime(p.stream, ev.Time, ev.Time)
	out := c.Verdict.String()
	if c.Dispatch {
		out += fmt.Sprintf(" dispatch attempt=%d", c.Row.Attempt)
	}
	if c.LeaseExpired {
		out += " lease_expired"
	}
	out += p.keep(c.Former)
	if c.Reply {
		out += fmt.Sprintf(" reply status=%v first=%s result=%s", c.Status(), c.Claim.Original, shown(c.Claim))
	}
	if c.Write && !c.Dispatch {
		out += fmt.Sprintf(" waiting=%d", len(c.Claim.Requests))
	}
	return out, nil
}

// next returns the next event of the input, as if it were received now.
func (p *claimPlay) next(key, id string, fingerprint uint64, t int64) ClaimEvent {
	p.offset++
	at := Position{Offset: p.offset}
	return ClaimEvent{
		Event:      Event{Digest: Digest{1}, Time: t, At: at, Fingerprint: fingerprint},
		ReceivedAt: p.now, Request: Request{At: at, Key: []byte(key), ID: []byte(id)},
	}
}

func (p *claimPlay) bypassed(key string, ev ClaimEvent) (string, error) {
	prior, found := p.rows[key]
	c, err := DecideForwardedClaim(ev, prior, found, p.w, p.stream)
	if err != nil {
		return "", err
	}
	p.stream = NextStreamTime(p.stream, ev.Time, ev.Time)
	if !c.Write {
		return "row unchanged: " + c.Verdict.String(), nil
	}
	p.rows[key] = c.Row
	out := fmt.Sprintf("%v attempt=%d, %d waiting", c.Status(), c.Row.Attempt, len(c.Claim.Requests))
	return out + p.keep(c.Former), nil
}

// keep stores a former claim, and says how many requests wait for it.
func (p *claimPlay) keep(former *FormerClaim) string {
	if former == nil {
		return ""
	}
	p.former = former.Row
	return fmt.Sprintf(" former attempt=%d waiting=%d", former.Row.Attempt, len(former.Claim.Requests))
}

func shown(c Claim) string {
	switch {
	case c.Omitted > 0:
		return fmt.Sprintf("omitted(%d)", c.Omitted)
	case c.Result == nil:
		return "null"
	}
	return strconv.Quote(string(c.Result))
}

func (p *claimPlay) outcome(args []string) (string, error) {
	prior, found := p.rows[args[0]]
	kind, ok := ParseOutcomeKind([]byte(args[1]))
	attempt, err := strconv.ParseUint(args[2], 10, 32)
	if !ok || err != nil {
		return "", fmt.Errorf("outcome %v: %w", args, err)
	}
	o := Outcome{Kind: kind, Token: TokenOf(&prior, 3), ReceivedAt: p.now}
	o.Token.Attempt = uint32(attempt)
	store := func(row Row) { p.rows[args[0]] = row }
	if digest, may := o.Token.Former(&prior); may && p.former.Digest == digest {
		o.Token.At = p.former.At
		prior, store = p.former, func(row Row) { p.former = row }
	}
	for _, arg := range args[3:] {
		switch name, text, _ := strings.Cut(arg, "="); name {
		case "id":
			o.StartID = []byte(text)
		case "at":
			if o.ReceivedAt, err = strconv.ParseInt(text, 10, 64); err != nil {
				return "", err
			}
		default:
			o.Value = []byte(arg)
		}
	}
	s, err := ApplyOutcome(&o, prior, found, p.w, p.rule, p.stream)
	switch {
	case err != nil:
		return "", err
	case s.Refused != "":
		return "refused: " + s.Refused, nil
	case s.Repeated:
		return "repeated", nil
	case kind.Asks():
		store(s.Row)
		return fmt.Sprintf("granted, since %d", s.Claim.Since), nil
	}
	store(s.Row)
	out := s.Row.Status.String()
	if s.KeyKept {
		out += " key kept"
	}
	for _, r := range s.Recipients {
		out += fmt.Sprintf(" %s@%d", r.ID, r.At.Offset)
	}
	return out, nil
}

func TestClaimPlays(t *testing.T) {
	testPlays(t, "claim", func() func(string) (string, error) { return new(claimPlay).run })
}

func genClaim(t *rapid.T) Claim {
	text := rapid.OneOf(rapid.Just([]byte(nil)), rapid.SliceOfN(rapid.Byte(), 0, 20))
	position := rapid.Custom(func(t *rapid.T) Position {
		return Position{rapid.Uint16().Draw(t, "topic"), rapid.Int32Min(0).Draw(t, "partition"), rapid.Int64Min(0).Draw(t, "offset")}
	})
	c := Claim{
		Since: rapid.Int64().Draw(t, "since"), Original: text.Draw(t, "original"), Route: text.Draw(t, "route"),
		Bypassed: rapid.Bool().Draw(t, "bypassed"), AppToken: rapid.Bool().Draw(t, "app token"), StartID: text.Draw(t, "start id"),
		Result: text.Draw(t, "result"), Omitted: rapid.IntRange(0, 1<<20).Draw(t, "omitted"),
		Requests: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Request {
			r := Request{At: position.Draw(t, "at"), Key: text.Draw(t, "key"), ID: text.Draw(t, "id"), Route: text.Draw(t, "route")}
			if rapid.Bool().Draw(t, "addressed") {
				r.ReplyTo = Address{rapid.Int32Min(0).Draw(t, "verdicts partition"), rapid.Uint64Min(1).Draw(t, "ingress"), rapid.Uint64().Draw(t, "request")}
				r.Until = rapid.Int64().Draw(t, "until")
			}
			return r
		}), 0, 4).Draw(t, "requests"),
		Headers: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Header {
			return Header{rapid.String().Draw(t, "name"), text.Draw(t, "value")}
		}), 0, 3).Draw(t, "headers"),
	}
	if rapid.Bool().Draw(t, "taken over") {
		taker := position.Draw(t, "taker")
		c.Taker = &taker
	}
	copy(c.Key[:], rapid.SliceOfN(rapid.Byte(), 32, 32).Draw(t, "dedup key"))
	return c
}

func TestClaimRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := genClaim(t)
		b := c.Append(nil)
		back, err := DecodeClaim(b)
		if err != nil {
			t.Fatal(err)
		}
		if again := back.Append(nil); !bytes.Equal(b, again) || (back.Result == nil) != (c.Result == nil) {
			t.Fatalf("%x became %x", b, again)
		}
		if cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut"); cut > 0 {
			if _, err := DecodeClaim(b[:cut]); !errors.Is(err, ErrRow) {
				t.Fatalf("cut at %d of %d: %v", cut, len(b), err)
			}
		}
	})
}

func TestTokenRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := Token{
			NamespaceID: rapid.Uint8().Draw(t, "namespace id"), Partition: rapid.Int32Min(0).Draw(t, "partition"),
			At:      Position{rapid.Uint16().Draw(t, "topic"), rapid.Int32Min(0).Draw(t, "from"), rapid.Int64Min(0).Draw(t, "offset")},
			Attempt: rapid.Uint32().Draw(t, "attempt"),
		}
		want.App = rapid.Uint64().Draw(t, "app")
		copy(want.Digest[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "digest"))
		text := want.Append(nil)
		if got, err := ParseToken(text); err != nil || got != want {
			t.Fatalf("%s is %+v, %v; want %+v", text, got, err, want)
		}
		if len(text) > TokenBytesMax {
			t.Fatalf("%d bytes, at most %d", len(text), TokenBytesMax)
		}
		at := rapid.IntRange(0, len(text)-1).Draw(t, "changed")
		text[at] ^= byte(rapid.IntRange(1, 255).Draw(t, "by"))
		if got, err := ParseToken(text); err == nil {
			t.Fatalf("changed at %d it is %+v", at, got)
		} else if !errors.Is(err, ErrToken) {
			t.Fatal(err)
		}
	})
}

// TestTokenGolden pins the text of a token, because executors send tokens back after an upgrade, too.
func TestTokenGolden(t *testing.T) {
	token := Token{NamespaceID: 2, Partition: 7, At: Position{3, 4, 500}, Attempt: 1}
	for i := range token.Digest {
		token.Digest[i] = byte(7 + i)
	}
	const want = "AQIHCAkKCwwNDg8QERITFBUWBwME9AMBLZ2XIw" // computed with python3, from the format alone
	if got := string(token.Append(nil)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	token.App = 0x0807060504030201
	const wantApp = "AgIBAgMEBQYHCAcICQoLDA0ODxAREhMUFRYHAwT0AwFikuxh"
	if got := string(token.Append(nil)); got != wantApp {
		t.Errorf("with the app: %s, want %s", got, wantApp)
	}
}

// TestTokenWithoutAnApp protects that a token of an earlier build ends only a claim that such a build dispatched, so
// that an upgrade loses no outcome, and that the token of another app ends no claim of this build.
func TestTokenWithoutAnApp(t *testing.T) {
	w, rule := Window{Size: 1 << 40, Skew: 1 << 40}, ClaimRule{ResultBytes: 10, Lease: 100}
	ev := ClaimEvent{Event: Event{Digest: Digest{1}, Time: 1}, ReceivedAt: 1}
	claimOf := func(ev ClaimEvent, prior Row, found bool) Row {
		c, err := DecideClaim(ev, prior, found, w, rule, 1)
		if err != nil || !c.Dispatch {
			t.Fatal(c, err)
		}
		return c.Row
	}
	before := claimOf(ev, Row{}, false)
	ev.AppToken = true
	named := claimOf(ev, Row{}, false)
	ev.ReceivedAt = 200
	again := claimOf(ev, before, true)
	for _, c := range []struct {
		name    string
		row     Row
		app     uint64
		applied bool
	}{
		{"claimed before the upgrade, token of then", before, 0, true},
		{"claimed after the upgrade, token of now", named, 7, true},
		{"claimed after the upgrade, token without an app", named, 0, false},
		{"claimed again after the upgrade, token of now", again, 7, true},
		{"claimed again after the upgrade, token without an app", again, 0, false},
	} {
		for _, kind := range OutcomeKinds {
			o := Outcome{Kind: kind, Token: TokenOf(&c.row, 3)}
			o.Token.App = c.app
			s, err := ApplyOutcome(&o, c.row, true, w, rule, 1)
			if err != nil || (s.Refused == "") != c.applied {
				t.Errorf("%s, %v: refused %q, %v", c.name, kind, s.Refused, err)
			}
		}
	}
}

// TestSecondResult protects that an attempt which is completed twice has one result. A row of an earlier build has no
// digest of a result that it omitted, only its length.
func TestSecondResult(t *testing.T) {
	w, rule := Window{Size: 1 << 40, Skew: 1 << 40}, ClaimRule{ResultBytes: 10}
	for _, c := range []struct {
		name          string
		first, second string
		digest        bool
		conflicting   bool
	}{
		{"the same", "short", "short", true, false},
		{"another", "short", "other", true, true},
		{"another, of an earlier build", "short", "other", false, true},
		{"long, the same", "a long result", "a long result", true, false},
		{"long, another", "a long result", "a long answer", true, true},
		{"long, of an earlier build, of one length", "a long result", "a long answer", false, false},
		{"long, of an earlier build, of another length", "a long result", "a longer result", false, true},
	} {
		claim := Claim{AppToken: c.digest}
		row := Row{Status: ClaimInProgress, Attempt: 1}
		row.setClaim(&claim)
		o := Outcome{Kind: OutcomeCompleted, Token: TokenOf(&row, 0), Value: []byte(c.first)}
		o.Token.App = 7
		s, err := ApplyOutcome(&o, row, true, w, rule, 0)
		if err != nil || s.Refused != "" {
			t.Fatal(s, err)
		}
		back, err := DecodeValue(s.Row.Digest, s.Row.AppendValue(nil))
		if err != nil {
			t.Fatal(err)
		}
		o.Value = []byte(c.second)
		s, err = ApplyOutcome(&o, back, true, w, rule, 0)
		if err != nil || s.Conflicting != c.conflicting || s.Repeated == c.conflicting || (s.Refused != "") != c.conflicting {
			t.Errorf("%s: %+v, %v", c.name, s, err)
		}
	}
}

// TestTokenHasOneText protects that a token has one text: another text that decodes to the same token is refused.
func TestTokenHasOneText(t *testing.T) {
	token := Token{NamespaceID: 2, Partition: 7, At: Position{3, 4, 500}, Attempt: 1}
	text := string(token.Append(nil))
	raw := append([]byte{tokenVersion, 2}, token.Digest[:]...)
	raw = append(raw, 0x87, 0x00, 3, 4, 0xf4, 3, 1) // 7 in two bytes
	raw = binary.LittleEndian.AppendUint32(raw, crc32.Checksum(raw, tokenSum))
	for _, other := range []string{
		text + "\n", text + "\r\n", "\n" + text, text[:9] + "\n" + text[9:], " " + text, text + "=",
		base64.RawURLEncoding.EncodeToString(raw),
	} {
		if got, err := ParseToken([]byte(other)); !errors.Is(err, ErrToken) {
			t.Errorf("%q is %+v, %v", other, got, err)
		}
	}
}

// TestClaimMovesAreClosed requires that every move leads to a status that has moves, and that forget is legal from
// every status but freed.
func TestClaimMovesAreClosed(t *testing.T) {
	for from, moves := range claimMoves {
		for step, to := range moves {
			if claimMoves[to] == nil {
				t.Errorf("%v leads from %v to %v, which has no moves", step, from, to)
			}
		}
		if _, ok := from.move(StepForget); ok == (from == Freed) {
			t.Errorf("%v: forget is legal: %v", from, ok)
		}
	}
}

// TestRequestsOfAClaimAreBounded requires bounds on the number and the bytes of requests, so that the row fits into
// the changelog even with the longest keys.
func TestRequestsOfAClaimAreBounded(t *testing.T) {
	for _, keyBytes := range []int{0, RequestBytesMax} {
		w, rule := Window{Size: 1 << 40, Skew: 1 << 40}, ClaimRule{Lease: 1, Wait: WaitingMax, ResultBytes: 1}
		var prior Row
		found, waits, dispatched := false, 0, 0
		for n := range int64(4 * requestsMax) {
			c, err := DecideClaim(ClaimEvent{
				Event: Event{Time: 1}, ReceivedAt: n / 2 * 2, // every second one comes after the lease
				Request: Request{
					At: Position{Offset: n}, Key: make([]byte, keyBytes), ID: make([]byte, keyBytes),
					ReplyTo: Address{Partition: 1 << 30, Ingress: 1, Request: uint64(n)},
				},
			}, prior, found, w, rule, 1)
			if err != nil {
				t.Fatal(err)
			}
			if c.Write {
				prior, found = c.Row, true
			}
			switch {
			case c.Dispatch:
				dispatched++
			case c.Write:
				waits++
			}
			if len(c.Claim.Requests) > requestsMax || len(c.Row.Result) > requestsBytesMax+1<<10 {
				t.Fatalf("keys of %d bytes: %d requests in %d bytes", keyBytes, len(c.Claim.Requests), len(c.Row.Result))
			}
		}
		if dispatched < requestsMax || waits == 0 {
			t.Errorf("keys of %d bytes: %d dispatched, %d waiting", keyBytes, dispatched, waits)
		}
	}
}

// TestTokenOfAnotherNamespace requires that a token of another namespace is refused on a row of every status, with
// the same reason as without a row.
func TestTokenOfAnotherNamespace(t *testing.T) {
	w := Window{Size: 1000, Skew: 1 << 40}
	for _, status := range []Status{ClaimInProgress, Submitted, Completed, Freed} {
		for _, kind := range OutcomeKinds {
			for _, attempt := range []uint32{0, 1} {
				row := Row{Digest: Digest{1}, NamespaceID: 2, Status: status, Attempt: 1}
				o := Outcome{Kind: kind, Token: TokenOf(&row, 0)}
				o.Token.NamespaceID, o.Token.Attempt = 1, attempt
				s, err := ApplyOutcome(&o, row, true, w, ClaimRule{}, 0)
				if absent, _ := ApplyOutcome(&o, Row{}, false, w, ClaimRule{}, 0); err != nil || s.Refused == "" || s.Refused != absent.Refused {
					t.Errorf("%v of attempt %d on a %v key: %+v, %v", kind, attempt, status, s, err)
				}
			}
		}
	}
}
