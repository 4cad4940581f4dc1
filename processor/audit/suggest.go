package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/dedup/rules"
)

// Bounds of Suggest: how many records it looks at, and how many rules are audited.
const (
	glanceRecords = 20_000
	candidatesMax = 8
	// candidateShare is the smallest share of the records that must have a field.
	candidateShare = 0.5
)

// Suggest looks at the first records of each partition and returns key rules that may identify an event,
// beginning with the most likely: CloudEvents, fields and headers whose names or values look like ids, the
// record key, and the payload as a whole. It also returns the names of the payload's fields that a sender
// probably changes when it retries.
func Suggest(ctx context.Context, l *Log) (candidates, volatile []string, err error) {
	g := glance{fields: map[string]*trait{}, headers: map[string]*trait{}}
	each := max(100, glanceRecords/max(1, len(l.Partitions)))
	for _, p := range l.Partitions {
		p.End = min(p.End, p.Start+int64(each))
		err := l.each(ctx, p, func(records []*kgo.Record) error {
			for _, rec := range records {
				if g.add(rec); g.records == glanceRecords {
					return errEnough
				}
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			break
		}
		if err != nil {
			return nil, nil, l.explain(err)
		}
	}
	return g.candidates(), g.volatile(), nil
}

var errEnough = errors.New("enough records were seen")

// glance has what Suggest has seen in the records: the traits of everything that may be an id.
type glance struct {
	records    int
	objects    int // number of payloads that are JSON objects
	cloudEvent int
	key        trait
	fields     map[string]*trait // by path
	headers    map[string]*trait
}

// trait tells how often a field occurs and which values it has.
type trait struct {
	records int
	values  map[string]struct{}
	bytes   int // of the values
}

// fieldsMax is how many paths, and how many headers, a glance keeps.
const fieldsMax = 1000

func (t *trait) add(value string) {
	if t.values == nil {
		t.values = map[string]struct{}{}
	}
	t.records++
	t.bytes += len(value)
	t.values[value] = struct{}{}
}

// of returns the trait with this name. If there are too many traits already, it returns a trait that is not
// stored in traits.
func of(traits map[string]*trait, name string) *trait {
	t := traits[name]
	if t == nil {
		t = &trait{}
		if len(traits) < fieldsMax {
			traits[name] = t
		}
	}
	return t
}

func (g *glance) add(rec *kgo.Record) {
	g.records++
	if len(rec.Key) > 0 {
		g.key.add(string(rec.Key))
	}
	seen := map[string]bool{}
	for _, h := range rec.Headers {
		if len(h.Value) > 0 && !seen[h.Key] {
			seen[h.Key] = true
			of(g.headers, h.Key).add(string(h.Value))
		}
	}
	var object map[string]any
	if json.Unmarshal(rec.Value, &object) != nil {
		object = nil
	} else {
		g.objects++
	}
	g.addFields("", object, 0)
	if seen["ce_id"] && seen["ce_source"] || object["specversion"] != nil && object["id"] != nil && object["source"] != nil {
		g.cloudEvent++
	}
}

// depthMax is how deep in the payload a suggested field may be.
const depthMax = 3

func (g *glance) addFields(path string, object map[string]any, depth int) {
	for name, value := range object {
		if strings.ContainsAny(name, ".[]*\\\",;") {
			continue // such a path would need quotes on the command line, or would be split into two rules; a person can still name it
		}
		at := path + name
		switch v := value.(type) {
		case string:
			if v != "" {
				of(g.fields, at).add(v)
			}
		case float64:
			of(g.fields, at).add(fmt.Sprint(v))
		case map[string]any:
			if depth < depthMax-1 {
				g.addFields(at+".", v, depth+1)
			}
		}
	}
}

// candidates returns the suggested rules, beginning with the most likely.
func (g *glance) candidates() []string {
	type ranked struct {
		rule string
		rank float64
	}
	var list []ranked
	for name, t := range g.fields {
		if rank := g.rank(name, t); rank > 0 {
			list = append(list, ranked{"field:" + name, rank})
		}
	}
	for name, t := range g.headers {
		if rank := g.rank(name, t); rank > 0 && !strings.HasPrefix(name, "ce_") {
			list = append(list, ranked{"header:" + name, rank - 0.1})
		}
	}
	slices.SortFunc(list, func(a, b ranked) int {
		switch {
		case a.rank != b.rank && a.rank > b.rank:
			return -1
		case a.rank != b.rank:
			return 1
		}
		return strings.Compare(a.rule, b.rule)
	})
	var found []string
	if float64(g.cloudEvent) > candidateShare*float64(g.records) {
		found = append(found, "cloudevent")
	}
	for _, c := range list {
		found = append(found, c.rule)
	}
	found = found[:min(len(found), candidatesMax-3)]
	if float64(g.key.records) > candidateShare*float64(g.records) {
		found = append(found, "record_key")
	}
	if volatile := g.volatile(); len(volatile) > 0 && g.objects > g.records/2 {
		found = append(found, "payload:exclude="+strings.Join(volatile, ","))
	} else if g.objects > g.records/2 {
		found = append(found, "payload")
	}
	return append(found, "raw")
}

// rank returns how likely a value identifies an event, from 0 to 3. It depends on the field's name, and on how
// many different values there are. Measured numbers, such as prices, have many different values, too, so the
// name counts more.
func (g *glance) rank(name string, t *trait) float64 {
	if float64(t.records) < candidateShare*float64(g.records) || isVolatile(name) {
		return 0
	}
	distinct := float64(len(t.values)) / float64(t.records)
	if distinct < 0.2 {
		return 0
	}
	rank := distinct * float64(t.records) / float64(g.records)
	switch {
	case isID(name):
		return rank + 2
	case t.bytes/t.records >= 16: // as long as a UUID without dashes is in base64
		return rank + 0.5
	case distinct > 0.9:
		return rank
	}
	return 0
}

// words splits a name at dots, dashes, underscores and capital letters, and returns the words in lower case.
func words(name string) []string {
	var list []string
	var word []rune
	end := func() {
		if len(word) > 0 {
			list = append(list, string(word))
			word = nil
		}
	}
	upper := false
	for _, r := range name {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			end()
			continue
		}
		if unicode.IsUpper(r) && !upper {
			end()
		}
		upper = unicode.IsUpper(r)
		word = append(word, unicode.ToLower(r))
	}
	end()
	return list
}

var (
	idWords       = []string{"id", "uuid", "guid", "ulid", "uid", "key", "ref", "reference", "nonce", "idempotency", "token", "hash", "digest", "number", "no", "seq", "sequence", "traceparent"}
	volatileWords = []string{"timestamp", "time", "ts", "at", "date", "retry", "retries", "attempt", "attempts", "sent", "received", "delivery", "latency", "age"}
)

func isID(name string) bool {
	return slices.ContainsFunc(words(name), func(w string) bool { return slices.Contains(idWords, w) })
}

// isVolatile reports whether a name suggests a value that differs between the copies of an event.
func isVolatile(name string) bool {
	list := words(name)
	return len(list) > 0 && !isID(name) && slices.ContainsFunc(list, func(w string) bool { return slices.Contains(volatileWords, w) })
}

// volatile returns the fields of the payload that a sender probably changes when it retries.
func (g *glance) volatile() []string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(g.fields)) {
		if isVolatile(name) && !slices.ContainsFunc(list, func(outer string) bool { return strings.HasPrefix(name, outer+".") }) {
			list = append(list, name)
		}
	}
	return list
}

// Ranked is a rule, with the result of ranking it among the other rules.
type Ranked struct {
	Rule   int // index in Audit.Rules
	Why    string
	Usable bool
}

// Bounds of a usable rule:
const (
	missingMax = 0.1 // share of the records without a key
	groupMax   = 5   // events of a key, on average
)

// Rank orders the rules of an audit: usable rules come first, and among them the rules that find the most
// copies whose payloads agree, and the fewest whose payloads differ.
func (a *Audit) Rank() []Ranked {
	list := make([]Ranked, len(a.Rules))
	for i := range a.Rules {
		list[i] = a.judge(i)
	}
	// If the numbers of two rules differ by less than a thousandth of the records, the rules keep the order in
	// which Suggest returned them.
	unit := uint64(a.Records)/1000 + 1
	slices.SortStableFunc(list, func(x, y Ranked) int {
		cx, cy := a.Counts[x.Rule], a.Counts[y.Rule]
		switch {
		case x.Usable && !y.Usable:
			return -1
		case y.Usable && !x.Usable:
			return 1
		}
		return cmp.Or(cmp.Compare(cy.agreeing()/unit, cx.agreeing()/unit), cmp.Compare(a.classOf(x.Rule), a.classOf(y.Rule)),
			cmp.Compare(cx.OtherPayload.N/unit, cy.OtherPayload.N/unit))
	})
	return list
}

// agreeing returns the number of copies that have the same payload as the first record.
func (c *Counted) agreeing() uint64 { return c.Copies.N - min(c.Copies.N, c.OtherPayload.N) }

// classOf orders rules that find equally many copies: ids come first, then hashes of the payload, then ids most
// of whose copies differ, and last rules without copies. Copies by a hash of the payload never differ in their
// payload, so without these classes such a hash would always come before an id.
func (a *Audit) classOf(rule int) int {
	c, text := a.Counts[rule], a.Rules[rule].Text
	switch {
	case c.Copies.N == 0:
		return 3
	case text == "raw" || strings.HasPrefix(text, "payload"):
		return 1
	case 2*c.OtherPayload.N > c.Copies.N:
		return 2
	}
	return 0
}

// judge returns whether a rule is usable, and the reasons.
func (a *Audit) judge(i int) Ranked {
	c := a.Counts[i]
	n := func(x uint64) float64 { return float64(x) / float64(max(1, c.Events)) }
	switch {
	case c.Events == 0:
		return Ranked{i, "there are no records", false}
	case n(c.MissingKey+c.Invalid) > missingMax:
		return Ranked{i, Percent(n(c.MissingKey+c.Invalid)) + " of the events have no key", false}
	case n(c.Future) > missingMax:
		return Ranked{i, Percent(n(c.Future)) + " of the events are ahead of the clock, and not counted", false}
	case c.Keys.N*groupMax < c.Keyed:
		return Ranked{i, fmt.Sprintf("a key has %.0f events on average: it names a group of events", float64(c.Keyed)/float64(max(1, c.Keys.N))), false}
	case c.Copies.N == 0:
		return Ranked{i, "no two events share a key", true}
	}
	why := Percent(float64(c.Copies.N)/float64(max(1, c.Keyed))) + " are copies" // of the events with a key, as everywhere
	if differ := float64(c.OtherPayload.N) / float64(c.Copies.N); differ > 0 {
		why += ", of which " + Percent(differ) + " have another payload"
		if differ > 0.5 {
			why += ": look at them before you trust it"
		}
	} else {
		why += ", all with the payload of the first"
	}
	return Ranked{i, why, true}
}

// Warnings returns the risks of the rules, in the words of the routes file's warnings.
func Warnings(list []*Rule) []string {
	var all []string
	for _, r := range list {
		if slices.ContainsFunc(r.Route.Keys, func(s rules.Source) bool { return strings.HasPrefix(s.String(), "order") }) && r.Route.AdjacentStep() > 0 {
			all = append(all, r.Text+": an order in an adjacent bucket counts as another key here")
		}
	}
	return all
}
