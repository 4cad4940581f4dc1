package oracle

import (
	"cmp"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
)

// Claims is the set-up of an app with one route in claim mode, whose senders
// give every event and whose executors give every outcome a record key of its
// own. Durations are ms.
type Claims struct {
	Repartition, Changelog     string
	Output, Replies, Dead      string
	Window, Grace, Skew, Lease int64
	Wait                       int // copies that may wait for an outcome
}

// A claim is the state of one key. The statuses are those of the product's
// words; one that was failed, rejected or forgotten is freed.
type claim struct {
	status  string // pending, submitted, completed, freed
	attempt uint64
	first   int64
	at      place
	since   int64
	asking  []asker // who gets the outcome: who claimed first
	result  string
}

type asker struct {
	key string // of the record
	at  place
}

// claimFold is the state of one partition.
type claimFold struct {
	*Claims
	keys map[digest]*claim
	last int64 // stream time
	seen bool
	want []string // what has to be emitted
}

// CheckClaims folds the repartition log to what has to be emitted and compares
// that with what live readers saw: one run for each attempt, one reply for each
// request, no outcome lost or applied twice, whatever failed in between. It
// returns what is wrong and how much was compared.
func CheckClaims(c *Claims, live map[string][]Record) (wrong []string, emitted map[string]int) {
	folds := map[int32]*claimFold{}
	for i := range live[c.Repartition] {
		r := &live[c.Repartition][i]
		f := folds[r.Partition]
		if f == nil {
			f = &claimFold{Claims: c, keys: map[digest]*claim{}}
			folds[r.Partition] = f
		}
		if err := f.take(r); err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", at(r), err))
		}
	}
	var want, got []string
	rows := map[digest]string{}
	for _, f := range folds {
		want = append(want, f.want...)
		for d, k := range f.keys {
			rows[d] = k.status
		}
	}
	emitted = map[string]int{}
	for _, topic := range []string{c.Output, c.Replies, c.Dead} {
		for i := range live[topic] {
			line := c.line(&live[topic][i])
			got = append(got, line)
			emitted[topic]++
		}
	}
	wrong = append(wrong, differ(want, got)...)
	return append(wrong, c.compareRows(rows, live[c.Changelog])...), emitted
}

// line is a record as the fold foretells it.
func (c *Claims) line(r *Record) string {
	switch r.Topic {
	case c.Output:
		return fmt.Sprintf("run %s: %s, attempt %s", r.Key, text(r, "oncebus-verdict"), text(r, "oncebus-attempt"))
	case c.Replies:
		return fmt.Sprintf("reply to %s: %s, %s, attempt %s, %q", r.Key, text(r, "oncebus-verdict"), text(r, "oncebus-status"), text(r, "oncebus-attempt"), r.Value)
	}
	return fmt.Sprintf("dead %s: %s", r.Key, text(r, "oncebus-verdict"))
}

func (f *claimFold) emit(format string, args ...any) {
	f.want = append(f.want, fmt.Sprintf(format, args...))
}

func (f *claimFold) reply(to string, verdict, status string, attempt uint64, value string) {
	f.emit("reply to %s: %s, %s, attempt %d, %q", to, verdict, status, attempt, value)
}

// take judges one record of the repartition topic.
func (f *claimFold) take(r *Record) error {
	if len(r.Headers) == 0 || r.Headers[0].Key != "oncebus-envelope" {
		return errors.New("has no envelope as its first header")
	}
	b := r.Headers[0].Value
	if len(b) < 49 || b[0] < 1 || b[0] > 3 {
		return fmt.Errorf("has an envelope that is none: %x", b)
	}
	rest := fields{rest: b[49:]}
	event, _ := rest.signed(), rest.signed()
	from := place{uint16(rest.unsigned(1 << 16)), int32(rest.unsigned(1 << 31)), int64(rest.unsigned(1 << 63))}
	if rest.bad {
		return fmt.Errorf("has an envelope that is none: %x", b)
	}
	if b[0] == 3 {
		return f.outcome(r, rest.rest)
	}
	f.event(r, digest(b[1:17]), event, from)
	return nil
}

func (f *claimFold) held(k *claim) bool {
	return k != nil && (!f.seen || k.first >= f.last-2*f.Window-f.Grace)
}

func (f *claimFold) event(r *Record, d digest, time int64, from place) {
	key := string(r.Key)
	switch {
	case time > r.Timestamp+f.Skew:
		f.emit("dead %s: invalid", key)
		return
	case f.seen && time < f.last-f.Window-f.Grace:
		f.emit("dead %s: late", key)
		return
	}
	defer func() { f.last, f.seen = max(f.last, time), true }()
	if !f.seen {
		f.last = time
	}
	k, verdict, attempt := f.keys[d], "unique", uint64(1)
	if f.held(k) {
		attempt = k.attempt + 1
		if k.status != "freed" {
			switch {
			case time >= k.first-f.Window && time <= k.first+f.Window:
				f.copy(r, k, from)
				return
			case time < k.first:
				f.emit("dead %s: late", key)
				return
			}
			verdict = "expired"
		}
	}
	fresh := &claim{status: "pending", attempt: attempt, first: time, at: from, since: r.Timestamp}
	if verdict == "expired" && k.status != "completed" {
		fresh.asking = k.asking
	}
	fresh.asking = append(slices.Clone(fresh.asking), asker{key, from})
	f.keys[d] = fresh
	f.emit("run %s: %s, attempt %d", key, verdict, attempt)
}

// copy judges a copy within the window.
func (f *claimFold) copy(r *Record, k *claim, from place) {
	key := string(r.Key)
	switch {
	case k.status == "completed":
		f.reply(key, "replayed", "completed", k.attempt, k.result)
	case k.status == "pending" && r.Timestamp-k.since > f.Lease:
		k.attempt, k.since = k.attempt+1, r.Timestamp
		k.asking = append(k.asking, asker{key, from})
		f.emit("run %s: unique, attempt %d", key, k.attempt)
	case len(k.asking)-1 < f.Wait:
		k.asking = append(k.asking, asker{key, from})
	default:
		f.reply(key, "pending", k.status, k.attempt, "")
	}
}

// outcome settles what an executor says. b: kind 1 | length 1 | token | route.
func (f *claimFold) outcome(r *Record, b []byte) error {
	if len(b) < 2 || len(b) < 2+int(b[1]) || b[0] > 4 {
		return fmt.Errorf("has an outcome that is none: %x", b)
	}
	kind := [...]string{"submitted", "completed", "failed", "rejected", "forget"}[b[0]]
	raw, err := base64.RawURLEncoding.DecodeString(string(b[2 : 2+int(b[1])]))
	if err != nil || len(raw) < 22 {
		return fmt.Errorf("has a token that is none: %s", b[2:])
	}
	rest := fields{rest: raw[18 : len(raw)-4]}
	rest.unsigned(1 << 31)
	first := place{uint16(rest.unsigned(1 << 16)), int32(rest.unsigned(1 << 31)), int64(rest.unsigned(1 << 63))}
	attempt := rest.unsigned(1 << 32)
	k := f.keys[digest(raw[2:18])]
	refused := !f.held(k) || attempt != k.attempt || first != k.at
	if !refused {
		running := k.status == "pending" || k.status == "submitted"
		switch kind {
		case "submitted":
			if k.status == "submitted" {
				return nil // came twice
			}
			if refused = k.status != "pending"; !refused {
				k.status = kind
			}
		case "completed":
			if k.status == kind {
				return nil
			}
			if refused = !running; !refused {
				f.settle(k, kind, string(r.Value))
				k.status, k.result = kind, string(r.Value)
			}
		default:
			if k.status == "freed" {
				return nil
			}
			if refused = !running && kind != "forget"; !refused {
				f.settle(k, kind, string(r.Value))
				k.status, k.result = "freed", ""
			}
		}
	}
	if refused {
		f.emit("dead %s: invalid", r.Key)
	}
	return nil
}

// settle answers all who ask.
func (f *claimFold) settle(k *claim, status, value string) {
	for _, a := range k.asking {
		verdict := "replayed"
		if a.at == k.at {
			verdict = "unique"
		}
		f.reply(a.key, verdict, status, k.attempt, value)
	}
	k.asking = nil
}

// compareRows compares the status of every key with its newest changelog row:
// version 1 | flags 1 | class 1 | status 1 | …
func (c *Claims) compareRows(want map[digest]string, changelog []Record) (wrong []string) {
	got := map[digest]string{}
	for i := range changelog {
		r := &changelog[i]
		if len(r.Key) == 16 && len(r.Value) > 4 && int(r.Value[3]) < 5 {
			got[digest(r.Key)] = [...]string{"seen", "pending", "submitted", "completed", "freed"}[r.Value[3]]
		}
	}
	for d, status := range want {
		if got[d] != status {
			wrong = append(wrong, fmt.Sprintf("key %x is %q in the changelog, want %q", d, got[d], status))
		}
	}
	if len(got) > len(want) {
		wrong = append(wrong, fmt.Sprintf("the changelog has %d keys, want %d", len(got), len(want)))
	}
	slices.Sort(wrong)
	return wrong
}

// differ says what of want is missing and what of got is too much.
func differ(want, got []string) (wrong []string) {
	slices.Sort(want)
	slices.Sort(got)
	for len(want) > 0 || len(got) > 0 {
		switch c := order(want, got); {
		case c == 0:
			want, got = want[1:], got[1:]
		case c < 0:
			wrong, want = append(wrong, "missing: "+want[0]), want[1:]
		default:
			wrong, got = append(wrong, "too much: "+got[0]), got[1:]
		}
	}
	return wrong
}

// order compares the first of two lists; an empty one comes last.
func order(a, b []string) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	}
	return cmp.Compare(a[0], b[0])
}

// text returns a header, "" if it is not there.
func text(r *Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
