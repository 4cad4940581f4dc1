package oracle

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// A Position is the position of a record. Topic is the number in the manifest of an input topic, or of the
// repartition topic.
type Position struct {
	Topic     uint16
	Partition int32
	Offset    int64
}

// LedgerRoute has the settings of a route that a Ledger needs. Durations are ms.
type LedgerRoute struct {
	Name                string
	NamespaceID         uint8
	Window, Grace, Skew int64 // Skew: the shortest of several
	LongestSkew         int64
	Claims              bool   // claim mode
	Clamp               bool   // on_future: clamp, so that a row may have a different time than its event
	Duplicates          Policy // Drop, Forward or To; Drop in claim mode, whose replies are optional
	Late, MissingKey    Policy
	FailOpen, Limited   bool
	Fingerprint         bool // events with the same key may collide
	RejectsAfterWindow  bool // an event after its window is a duplicate as long as the row is kept
}

// LedgerConfig is the set-up of the app that a Ledger judges.
type LedgerConfig struct {
	Names  []string // names of topics, by their number in the manifest
	Routes []LedgerRoute
	// Repartition is the number of the repartition topic. An event at a position there came by HTTP and has no
	// input record. HasRepartition is false for an app without this topic.
	Repartition    uint16
	HasRepartition bool
	// Sets are the route sets by which the range may have been judged, with the windows of all namespaces. If
	// there are none, the windows are those of Routes.
	Sets []Set
	Keys int // largest number of keys in memory; beyond it the ledger follows only a sample of the keys
	Open int // largest number of records that wait for their counterpart; beyond it the ledger matches only a sample
}

// A Finding is a violation, with the position of the record that shows it.
type Finding struct {
	Invariant string `json:"invariant"` // K1 to K13
	Route     string `json:"route,omitempty"`
	At        string `json:"at"` // topic/partition/offset
	Message   string `json:"message"`
}

func (f Finding) String() string { return f.Invariant + ": " + f.At + ": " + f.Message }

// RouteCounts has the numbers of a route's records that a Ledger has read, by kind.
type RouteCounts struct {
	Inputs      int64 `json:"inputs"`
	Unique      int64 `json:"unique"` // including after_window and dispatches
	Duplicates  int64 `json:"duplicates"`
	DeadLetters int64 `json:"dead_letters"`
	Forwarded   int64 `json:"forwarded"` // to the output: late, limited, bypassed and the like
	Dropped     int64 `json:"dropped"`   // by a policy: late, or without a key
	Unexplained int64 `json:"unexplained"`
}

// A Ledger accounts for each record in an app's topics: each event must have exactly one fate (emitted,
// dropped, or named by another record), and each record in an emission topic must have exactly one cause (an
// event). It reads the topics as streams, in any order between the topics. It keeps in memory only keys, and
// the records that still wait for their counterpart.
type Ledger struct {
	cfg    LedgerConfig
	routes []RouteCounts
	found  []Finding
	counts map[string]int64 // number of findings by invariant
	spaces [256]space

	keys     map[digest]keyState
	former   map[digest][]formerRow // rows that were erased or replaced
	results  map[digest]outcome     // results of completed claims
	rows     map[digest][]*openRow
	outs     map[digest][]*openOut
	waiting  map[digest][]*openInput
	fates    map[Position]*fate
	unproved []*openInput // events whose verdict is late; the stream time at the end of the range must prove it
	replies  []openReply
	jumped   map[digest]bool   // keys whose claim has an attempt that no row shows
	kept     map[digest]bool   // digests under which former claims are kept, because another event has claimed the key
	passed   map[Position]bool // events that were forwarded without a look-up
	tasks    map[Position]*ledgerTask
	advanced map[Position][]advance // by partition of an input

	formers               int // number of rows in former
	open                  int
	sample, joined        uint8 // the ledger follows (sample), and matches (joined), only digests with so many low bits zero
	edge                  bool
	reach                 Range
	rowCount, outCount    int64
	compared, notCompared int64 // numbers of replies
}

// space has the settings of a namespace, which its routes share: the longest and the shortest window by which
// the range may have been judged.
type space struct {
	known, claims, clamp bool
	longest, shortest    int64
	span                 int64 // the shortest window together with its grace
	skew                 int64 // the longest skew
}

// keyState has the newest row of a key.
type keyState struct {
	first   int64
	at      uint32 // hash of the position of its first event, and the namespace id
	attempt uint32 // in claim mode
}

// formerRow is a row that is no longer the newest of its key.
type formerRow struct {
	first int64
	at    uint32 // as in keyState; 0 if the state of an earlier build did not contain it
}

// An openRow is a row whose event or output the ledger has not read yet.
type openRow struct {
	At       Position
	First    int64
	Attempt  uint32
	Space    uint8
	NeedsIn  bool // the row waits for its input record
	NeedsOut bool
	Certain  bool // its output must lie within the range
	Soft     bool // its output may lie before the range
	Content  uint64
	HasPrint bool
	Where    string
	// Own is the event's own time, if HasOwn. If the event was clamped, Own is later than First.
	Own    int64
	HasOwn bool
}

// An openOut is a record of an output whose row the ledger has not read yet.
type openOut struct {
	Digests []digest
	Keys    []LedgerKey // possible keys; the row shows which of them is the key of the record
	Route   int32
	counted bool // it was counted as a unique event of its route
	Claim   bool
	At      Position // position of the first event, of a dispatch
	Attempt uint32
	Content uint64
	Where   string
	anyTime bool
	done    bool
}

// An openInput is an input record whose fate the ledger does not know yet.
type openInput struct {
	At      Position
	Task    Position // topic and partition of the task that judges it
	Route   int32
	Digests []digest // its own digest first
	Time    int64
	Keyed   bool
	Missing bool
	Content uint64
	caused  bool // the ledger knows a first event of its key, of which it may be a duplicate
	done    bool
}

// A fate joins an event with the one emitted record that names this event.
type fate struct {
	in      *openInput
	Emitted bool
	Verdict string
	Route   int32
	Dead    bool
	Reason  string
	Where   string
	Digests []digest
	Batch   bool // about a batch that was not decompressed, in which not every offset has a record
	keyed   bool // it has a key, so that it can be dropped if its key is not in the sample
}

// outcome is the result of the newest completed attempt of a key.
type outcome struct {
	attempt   uint32
	content   uint64
	ambiguous bool
}

// openReply is a reply whose outcome the ledger has not read yet.
type openReply struct {
	digests []digest
	attempt uint32
	content uint64
	route   int32
	where   string
}

// A Range says which records belong to the part of the topics that is being audited.
type Range interface {
	// InRange reports whether the input record at this position is given to the ledger, in this range or in a
	// later one.
	InRange(at Position) bool
	// Judged reports whether the input record at this position was judged below the ends of this range.
	Judged(at Position) bool
	// StreamTime returns the stream time of a task and a namespace id at the ends; false if there is none.
	StreamTime(task Position, space uint8) (int64, bool)
	// Reached returns how far the source of an event had come in a task at the ends: the highest event time in the
	// namespace from the event's partition or, if the task no longer follows the partition, from all partitions that
	// it followed. It returns false if there is no such time.
	Reached(task Position, space uint8, event Position) (int64, bool)
	// LateBefore returns the event time before which events of a task and a namespace id are late at the ends,
	// because their window has changed; false if it has not changed.
	LateBefore(task Position, space uint8) (int64, bool)
}

// NewLedger returns a ledger that has not read anything.
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

// Begin begins a range. If edge is true, the ledger has no state from an earlier range, so a record about an
// event before the range is not a finding.
func (l *Ledger) Begin(reach Range, edge bool) { l.reach, l.edge = reach, edge }

// MaxFindings is how many findings of an invariant are described at most. All of them are counted.
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

// follows reports whether the ledger checks the verdicts on a key.
func (l *Ledger) follows(d digest) bool { return bits(d, l.sample) }

// joins reports whether the ledger matches rows, events and outputs of a key with each other.
func (l *Ledger) joins(d digest) bool { return bits(d, l.joined) }

// bits reports whether the n low bits of a digest are zero. Digests are uniform, so that is so for one of 2^n
// keys.
func bits(d digest, n uint8) bool {
	return (uint32(d[0])|uint32(d[1])<<8|uint32(d[2])<<16|uint32(d[3])<<24)&(1<<n-1) == 0
}

// sampleMax is the highest value of sample: at least one of 2^sampleMax keys is followed.
const sampleMax = 30

// bound makes the ledger follow fewer keys if there are too many in memory.
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

// shrink drops everything about keys that are no longer in the sample.
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

// mayMeet reports whether the row to which a record of an output belongs may be in the sample.
func (l *Ledger) mayMeet(o *openOut) bool {
	return slices.ContainsFunc(o.Digests, func(d digest) bool { return l.joins(d) && (!o.Claim || l.follows(d)) })
}

// recount counts the records that wait, after lists of such records were dropped because their keys are not in
// the sample.
func (l *Ledger) recount() {
	l.open = l.openRows() + l.openFates()
	for _, inputs := range l.waiting {
		l.open += len(inputs)
	}
	for d, outs := range l.outs {
		for _, o := range outs {
			if o.Digests[0] == d { // a record waits under each of its digests, and must count once
				l.open++
			}
		}
	}
}

// openFates returns how many fates in the sample are incomplete: an event waits for a record about it, or a
// record waits for its event. Events without a key are in every sample; they do not count, because there are
// few of them.
func (l *Ledger) openFates() (n int) {
	for _, f := range l.fates {
		if f.keyed {
			n++
		}
	}
	return n
}

// fateOf returns the fate of the event at a position. If the ledger has none yet, it begins one.
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

// isCaused reports whether a first event of one of the input's keys lies within a window. It looks at former
// rows, too, because the ledger may have read the changelog further than the inputs.
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

// reachOf returns how far, in ms, an input may be from a first event so that it can be a duplicate of that
// event.
func (l *Ledger) reachOf(in *openInput) int64 {
	window := l.spaceOf(in).longest
	if route := &l.cfg.Routes[in.Route]; route.RejectsAfterWindow {
		return 2*window + route.Grace
	}
	return window
}

// covers reports whether an event at this time is within the window of the first event.
func covers(first, time, window int64) bool {
	return time >= add(first, -window) && time <= add(first, window)
}

// hashOf returns 24 bits of a hash of a position, and 8 bits with the namespace id.
func hashOf(at Position, space uint8) uint32 {
	h := uint64(at.Offset)*0x9e3779b97f4a7c15 ^ uint64(uint32(at.Partition))*0xc2b2ae3d27d4eb4f ^ uint64(at.Topic)*0x165667b19e3779f9
	return uint32(h>>32)&^0xff | uint32(space)
}

// Findings returns the findings, up to MaxFindings of each invariant, in the order of invariant and position.
func (l *Ledger) Findings() []Finding {
	slices.SortStableFunc(l.found, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(len(a.Invariant), len(b.Invariant)), cmp.Compare(a.Invariant, b.Invariant), cmp.Compare(a.At, b.At))
	})
	return l.found
}
