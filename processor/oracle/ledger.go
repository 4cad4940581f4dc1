package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// A Position is the place of a record. Topic is the number of an input topic, or of the
// repartition topic, in the manifest.
type Position struct {
	Topic     uint16
	Partition int32
	Offset    int64
}

// LedgerRoute has the settings of a route that a Ledger uses; durations are ms.
type LedgerRoute struct {
	Name                string
	NamespaceID         uint8
	Window, Grace, Skew int64 // of several skews the shortest
	LongestSkew         int64
	Claims              bool   // claim mode
	Clamp               bool   // on_future: clamp, so a row may have another time than its event
	Duplicates          Policy // Drop, Forward or To; Drop in claim mode, whose replies are optional
	Late, MissingKey    Policy
	FailOpen, Limited   bool
	Fingerprint         bool // events of one key may collide
	RejectsAfterWindow  bool // an event after its window is a duplicate while the row is kept
}

// LedgerConfig is the set-up of the app.
type LedgerConfig struct {
	Names  []string // of topics, by their number in the manifest
	Routes []LedgerRoute
	// Repartition is the number of the repartition topic: an event from there came by HTTP and
	// has no raw record. HasRepartition is false for an app without one.
	Repartition    uint16
	HasRepartition bool
	// Sets are the route sets by which the range may have been judged, with the windows of all
	// namespaces. Without any, the windows are those of Routes.
	Sets []Set
	Keys int // the most keys in memory; beyond it a sample of the keys is followed
	Open int // the most records that wait for another one; beyond it likewise
}

// A Finding is a violation with the place of the record that shows it.
type Finding struct {
	Invariant string `json:"invariant"` // K1 to K13
	Route     string `json:"route,omitempty"`
	At        string `json:"at"` // topic/partition/offset
	Message   string `json:"message"`
}

func (f Finding) String() string { return f.Invariant + ": " + f.At + ": " + f.Message }

// RouteCounts count what a Ledger saw of a route.
type RouteCounts struct {
	Inputs      int64 `json:"inputs"`
	Unique      int64 `json:"unique"` // after_window and dispatches included
	Duplicates  int64 `json:"duplicates"`
	DeadLetters int64 `json:"dead_letters"`
	Forwarded   int64 `json:"forwarded"` // late, limited, bypassed and the like, to the output
	Dropped     int64 `json:"dropped"`   // late or without a key, by policy
	Unexplained int64 `json:"unexplained"`
}

// A Ledger accounts for each record of an app's topics: an event has one fate, and a record in
// an emission topic has one cause. It reads the topics as streams, in any order between them,
// and remembers only keys and what still waits for its counterpart.
type Ledger struct {
	cfg    LedgerConfig
	routes []RouteCounts
	found  []Finding
	counts map[string]int64 // findings by invariant
	spaces [256]space

	keys     map[digest]keyState
	former   map[digest][]formerRow // rows that were erased or replaced
	results  map[digest]outcome     // of completed claims
	rows     map[digest][]*openRow
	outs     map[digest][]*openOut
	waiting  map[digest][]*openInput
	fates    map[Position]*fate
	unproved []*openInput // late events, until stream time proves it
	replies  []openReply
	jumped   map[digest]bool   // keys whose claim has an attempt without a row
	kept     map[digest]bool   // digests of claims whose key another event claimed
	passed   map[Position]bool // events that were forwarded without a look-up
	tasks    map[Position]*ledgerTask
	advanced map[Position][]advance // by partition of an input

	formers               int // rows in former
	open                  int
	sample, joined        uint8 // only keys with so many low bits zero are followed
	edge                  bool
	reach                 Range
	rowCount, outCount    int64
	compared, notCompared int64 // replies
}

// space is what the routes of a namespace have in common: the longest and the shortest window
// by which the range may have been judged.
type space struct {
	known, claims, clamp bool
	longest, shortest    int64
	span                 int64 // the shortest window with its grace
	skew                 int64 // the longest one
}

// keyState is the newest row of a key.
type keyState struct {
	first   int64
	at      uint32 // hash of the position of its first event, and the namespace id
	attempt uint32 // in claim mode
}

// formerRow is a row that is not the newest of its key.
type formerRow struct {
	first int64
	at    uint32 // as in keyState; 0 if a range before this build read it
}

// An openRow is a row whose event or output was not read yet.
type openRow struct {
	At       Position
	First    int64
	Attempt  uint32
	Space    uint8
	NeedsIn  bool // its raw record
	NeedsOut bool
	Certain  bool // its output is below the ends
	Soft     bool // its output may have been before the range
	Content  uint64
	HasPrint bool
	Where    string
	// Own is the time that its event has by itself, with HasOwn: that of a clamped one is later than First.
	Own    int64
	HasOwn bool
}

// An openOut is a record of an output whose row was not read yet.
type openOut struct {
	Digests []digest
	Keys    []LedgerKey // which of them it is says its row
	Route   int32
	counted bool // as a unique event of its route
	Claim   bool
	At      Position // of a dispatch
	Attempt uint32
	Content uint64
	Where   string
	anyTime bool
	done    bool
}

// An openInput is an event whose fate is not known yet.
type openInput struct {
	At      Position
	Task    Position // topic and partition of its task
	Route   int32
	Digests []digest // its own first
	Time    int64
	Keyed   bool
	Missing bool
	Content uint64
	caused  bool // a first event of its key is known
	done    bool
}

// A fate joins an event with the one record about it that names it.
type fate struct {
	in      *openInput
	Emitted bool
	Verdict string
	Route   int32
	Dead    bool
	Reason  string
	Where   string
	Digests []digest
	Batch   bool // of a batch that was not decompressed: an offset may have no record
	keyed   bool // it was read with a key first, so that a sample of the keys can leave it out
}

type outcome struct {
	attempt   uint32
	content   uint64
	ambiguous bool
}

type openReply struct {
	digests []digest
	attempt uint32
	content uint64
	route   int32
	where   string
}

// A Range says what a range has.
type Range interface {
	// InRange reports whether the raw record is one that the ledger is given, in this range or
	// a later one.
	InRange(at Position) bool
	// Judged reports whether the raw record was judged below the ends of this range.
	Judged(at Position) bool
	// StreamTime returns that of a task and namespace id at the ends; false for none.
	StreamTime(task Position, space uint8) (int64, bool)
	// Reached returns how far the source of an event had come in a task at the ends: the highest
	// time of the events from its partition and of a namespace id, or, if the task does not follow
	// the partition any more, from all that it followed; false for none.
	Reached(task Position, space uint8, event Position) (int64, bool)
	// LateBefore returns the event time before which events of a task and namespace id are late
	// at the ends because their window has changed; false for none.
	LateBefore(task Position, space uint8) (int64, bool)
}

// NewLedger returns a ledger that has read nothing.
func NewLedger(cfg LedgerConfig) *Ledger {
	l := &Ledger{
		cfg: cfg, routes: make([]RouteCounts, len(cfg.Routes)), counts: map[string]int64{},
		keys: map[digest]keyState{}, former: map[digest][]formerRow{}, results: map[digest]outcome{},
		rows: map[digest][]*openRow{}, outs: map[digest][]*openOut{}, waiting: map[digest][]*openInput{},
		fates: map[Position]*fate{}, passed: map[Position]bool{}, jumped: map[digest]bool{}, kept: map[digest]bool{}, tasks: map[Position]*ledgerTask{},
		advanced: map[Position][]advance{},
	}
	for _, r := range cfg.Routes {
		s := &l.spaces[r.NamespaceID]
		if !s.known {
			s.shortest, s.span = r.Window, add(r.Window, r.Grace)
		}
		s.known, s.claims, s.clamp = true, r.Claims, s.clamp || r.Clamp
		s.longest, s.shortest = max(s.longest, r.Window), min(s.shortest, r.Window)
		s.span, s.skew = min(s.span, add(r.Window, r.Grace)), max(s.skew, r.Skew, r.LongestSkew)
	}
	for _, set := range cfg.Sets {
		for _, w := range set.Windows {
			s := &l.spaces[w.NamespaceID]
			s.longest, s.shortest = max(s.longest, w.Window), min(s.shortest, w.Window)
			s.span = min(s.span, add(w.Window, w.Grace))
		}
	}
	return l
}

// Begin begins a range. At an edge nothing is known of the range before it: a record about an
// earlier event is no finding.
func (l *Ledger) Begin(reach Range, edge bool) { l.reach, l.edge = reach, edge }

// MaxFindings is how many findings of one invariant are described; all are counted.
const MaxFindings = 100

func (l *Ledger) find(invariant string, route int32, at, format string, args ...any) {
	name := ""
	if route >= 0 {
		l.routes[route].Unexplained++
		name = l.cfg.Routes[route].Name
	}
	l.counts[invariant]++
	if l.counts[invariant] <= MaxFindings {
		l.found = append(l.found, Finding{invariant, name, at, fmt.Sprintf(format, args...)})
	}
}

// text returns a position as topic/partition/offset.
func (l *Ledger) text(at Position) string {
	name := fmt.Sprintf("topic#%d", at.Topic)
	if int(at.Topic) < len(l.cfg.Names) {
		name = l.cfg.Names[at.Topic]
	}
	return fmt.Sprintf("%s/%d/%d", name, at.Partition, at.Offset)
}

// follows reports whether the verdicts on a key are checked.
func (l *Ledger) follows(d digest) bool { return bits(d, l.sample) }

// joins reports whether the records of a key are matched with each other.
func (l *Ledger) joins(d digest) bool { return bits(d, l.joined) }

// bits reports whether the n low bits of a digest are zero; digests are uniform.
func bits(d digest, n uint8) bool {
	return (uint32(d[0])|uint32(d[1])<<8|uint32(d[2])<<16|uint32(d[3])<<24)&(1<<n-1) == 0
}

// sampleMax is the smallest sample: one key of 2^sampleMax.
const sampleMax = 30

// bound follows fewer keys if there are too many in memory.
func (l *Ledger) bound() {
	for l.cfg.Keys > 0 && len(l.keys)+l.formers > l.cfg.Keys && l.sample < sampleMax {
		l.sample++
		l.shrink()
	}
	for l.cfg.Open > 0 && l.open > l.cfg.Open && l.joined < sampleMax {
		l.joined++
		l.sample = max(l.sample, l.joined)
		l.shrink()
	}
}

// shrink drops what is not in the sample any more.
func (l *Ledger) shrink() {
	keep(l.keys, l.follows)
	keep(l.former, l.follows)
	l.formers = 0
	for _, rows := range l.former {
		l.formers += len(rows)
	}
	keep(l.results, l.follows)
	keep(l.waiting, l.follows)
	keep(l.rows, l.joins)
	for d, rows := range l.rows {
		if l.follows(d) {
			continue
		}
		for _, r := range rows {
			r.NeedsIn, r.NeedsOut = false, r.NeedsOut && !l.spaces[r.Space].claims
		}
		l.closeRows(d)
	}
	for d, outs := range l.outs {
		l.outs[d] = slices.DeleteFunc(outs, func(o *openOut) bool {
			if l.mayMeet(o) {
				return false
			}
			l.countOut(o, o.Route)
			return true
		})
		if len(l.outs[d]) == 0 {
			delete(l.outs, d)
		}
	}
	for at, f := range l.fates {
		digests := f.Digests
		if f.in != nil {
			digests = f.in.Digests
		}
		if len(digests) > 0 && !slices.ContainsFunc(digests, l.follows) {
			l.dropFate(at)
		}
	}
	l.recount()
}

// mayMeet reports whether the row of a record of an output may be in the sample.
func (l *Ledger) mayMeet(o *openOut) bool {
	return slices.ContainsFunc(o.Digests, func(d digest) bool { return l.joins(d) && (!o.Claim || l.follows(d)) })
}

// recount counts what waits, after a sample dropped whole lists of it.
func (l *Ledger) recount() {
	l.open = l.openRows() + l.openFates()
	for _, inputs := range l.waiting {
		l.open += len(inputs)
	}
	for d, outs := range l.outs {
		for _, o := range outs {
			if o.Digests[0] == d { // it waits under each of its digests
				l.open++
			}
		}
	}
}

// openFates returns how many events of the sample wait for a record, or records for their
// event. Those without a key are in every sample, and few enough.
func (l *Ledger) openFates() (n int) {
	for _, f := range l.fates {
		if f.keyed {
			n++
		}
	}
	return n
}

// fateOf returns the fate of an event, which begins with this record of it.
func (l *Ledger) fateOf(at Position, digests []digest) *fate {
	f := l.fates[at]
	if f == nil {
		f = &fate{keyed: len(digests) > 0}
		l.fates[at] = f
		if f.keyed {
			l.open++
		}
	}
	return f
}

func (l *Ledger) dropFate(at Position) {
	if l.fates[at].keyed {
		l.open--
	}
	delete(l.fates, at)
}

func keep[V any](m map[digest]V, keeps func(digest) bool) {
	maps.DeleteFunc(m, func(d digest, _ V) bool { return !keeps(d) })
}

// isCaused reports whether a first event of one of an input's keys is within a window. Rows
// may have been read further than inputs, so former rows count too.
func (l *Ledger) isCaused(in *openInput, window int64) bool {
	for _, d := range in.Digests {
		if k, ok := l.keys[d]; ok && covers(k.first, in.Time, window) {
			return true
		}
		for _, row := range l.former[d] {
			if covers(row.first, in.Time, window) {
				return true
			}
		}
	}
	return false
}

// spaceOf returns the namespace of an event.
func (l *Ledger) spaceOf(in *openInput) *space { return &l.spaces[l.cfg.Routes[in.Route].NamespaceID] }

// reachOf returns how far from a first event an input may be its duplicate.
func (l *Ledger) reachOf(in *openInput) int64 {
	window := l.spaceOf(in).longest
	if route := &l.cfg.Routes[in.Route]; route.RejectsAfterWindow {
		return 2*window + route.Grace
	}
	return window
}

// covers reports whether an event at a time is within a window of the first event.
func covers(first, time, window int64) bool {
	return time >= add(first, -window) && time <= add(first, window)
}

// hashOf is 24 bits of a hash of a position, and 8 of the namespace id.
func hashOf(at Position, space uint8) uint32 {
	h := uint64(at.Offset)*0x9e3779b97f4a7c15 ^ uint64(uint32(at.Partition))*0xc2b2ae3d27d4eb4f ^ uint64(at.Topic)*0x165667b19e3779f9
	return uint32(h>>32)&^0xff | uint32(space)
}

// Findings returns all findings up to MaxFindings of each invariant, by invariant and place.
func (l *Ledger) Findings() []Finding {
	slices.SortStableFunc(l.found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(len(a.Invariant), len(b.Invariant)), cmp.Compare(a.Invariant, b.Invariant), cmp.Compare(a.At, b.At))
	})
	return l.found
}
