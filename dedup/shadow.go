package dedup

// ShadowFate compares the verdict of a key rule in force with that of a rule on trial, its
// shadow. The shadow emits nothing and drops nothing.
type ShadowFate uint8

// Fates of an event. The numbers are part of the encoding of a task's shadow counts.
const (
	ShadowBothEmit  ShadowFate = iota // emitted, and no emitted event has its new key
	ShadowBothDrop                    // a duplicate by both rules
	ShadowWouldDrop                   // emitted, and a duplicate by the new rule
	ShadowWouldEmit                   // a duplicate, and by the new rule it is not
	ShadowNoKey                       // the new rule derives no key from it
	ShadowFates     = 5
)

var shadowFateNames = [ShadowFates]string{"both_emit", "both_drop", "would_drop", "would_emit", "no_key"}

// String returns the fate as in reports and metrics.
func (f ShadowFate) String() string { return shadowFateNames[f] }

// DecideShadow returns the fate of an event that the rule in force has judged, and the row of
// its new key, to store if store is set. emitted reports whether that rule emitted it. prior
// is the row of the new key, if found, and streamTime that of the shadow's namespace.
//
// Only emitted events make rows. If a copy that the rule in force dropped made one, the first
// event of the new rule could be taken for a duplicate of an event that no reader received. The
// row is that of the latest emitted event of the key, because the rule in force may emit
// several within a window. From the promotion on an event is a duplicate within the window of
// that one, and late before it.
//
// Events of several tasks arrive in no order of event time. So a row is stored as long as the
// namespace retains it, however late its event is.
func DecideShadow(ev Event, emitted bool, prior Row, found bool, w Window, streamTime int64) (fate ShadowFate, row Row, store bool) {
	has := found && w.Decides(&prior, streamTime)
	switch known := has && w.Covers(prior.First, ev.Time); {
	case emitted && known:
		fate = ShadowWouldDrop
	case emitted:
		fate = ShadowBothEmit
	case known:
		fate = ShadowBothDrop
	default:
		fate = ShadowWouldEmit
	}
	if !emitted || !w.Retains(ev.Time, streamTime) || has && prior.First >= ev.Time {
		return fate, Row{}, false
	}
	return fate, Row{Digest: ev.Digest, First: ev.Time, At: ev.At, Fingerprint: ev.Fingerprint, NamespaceID: ev.NamespaceID, Status: Seen}, true
}
