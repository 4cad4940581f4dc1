package dedup

// ShadowFate compares two verdicts on one event: the verdict of the key rule in force, and the verdict of a
// rule that is tried out, the shadow. A shadow emits nothing and drops nothing.
type ShadowFate uint8

// Fates of an event. The numbers are part of the encoding of a task's shadow counts.
const (
	ShadowBothEmit  ShadowFate = iota // emitted, and no event with the same new key was emitted before
	ShadowBothDrop                    // a duplicate by both rules
	ShadowWouldDrop                   // emitted, but a duplicate by the new rule
	ShadowWouldEmit                   // a duplicate, but not by the new rule
	ShadowNoKey                       // the new rule derives no key from the event
	ShadowFates     = 5
)

var shadowFateNames = [ShadowFates]string{"both_emit", "both_drop", "would_drop", "would_emit", "no_key"}

// String returns the fate as it is written in reports and metrics.
func (f ShadowFate) String() string { return shadowFateNames[f] }

// DecideShadow returns the fate of an event that the rule in force has judged, and the row of the event's new
// key, which the caller stores if store is set. emitted reports whether the rule in force emitted the event.
// prior is the row of the new key, if found; streamTime is the stream time of the shadow's namespace.
//
// Only emitted events make rows. Otherwise a copy that the rule in force dropped would make a row, and after
// the promotion an event could be taken for a duplicate of that copy, which no reader received. The row of a
// new key is the row of its latest emitted event, because the rule in force may emit several events of one new
// key within a window. After the promotion an event of the key is a duplicate if it is within the window of
// that latest event, and late if it is before that window.
//
// The shadow gets events from several tasks, not in order of event time. Therefore a row is stored if the
// namespace would retain it, however late its event is.
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
