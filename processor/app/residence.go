package app

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"oncebus/processor/kafka"
)

// A Residence is what the manifest topic of a cluster says about where its app runs: the hold in force, and the
// arrival from another cluster. A nil field means that there is no such row.
//
// Its methods are the decisions of the commands that move an app between clusters. Each returns the residence
// after the decision. They do no I/O and change none of their arguments, so that an exploration test can call
// them in every order.
type Residence struct {
	Hold    *Hold
	Arrival *Arrival
}

// Begin puts a hold in force. If a hold with the same id or the same reason is in force already, Begin keeps
// that hold: an operator may repeat a command that was killed.
func (r Residence) Begin(h *Hold) (Residence, error) {
	switch before := r.Hold; {
	case before == nil:
		r.Hold = h
	case before.ID != h.ID && !before.repeats(h):
		return r, kafka.OperatorErrorf("the app is held already, since %s: %s; to end that hold: oncebus release", before.At.Format(time.RFC3339), before.Reason)
	}
	return r, nil
}

// repeats reports whether the other hold asks for the same as h.
func (h *Hold) repeats(other *Hold) bool {
	plain := h.Switch == "" && other.Switch == "" && !h.Arriving && !h.Left
	return plain && h.Reason == other.Reason && h.LimitMS == other.LimitMS && h.Leaving == other.Leaving
}

// Release ends the hold with an id; with the id "" it ends the hold in force, unless the hold is part of a
// switch. The hold of an app that arrives can end only when the app has its keys. For an app that leaves,
// Release returns an error, because only TakeBack ends the hold of such an app.
func (r Residence) Release(id string) (Residence, error) {
	h := r.Hold
	switch {
	case h == nil, id != "" && h.ID != id:
		return r, nil
	case h.Switch != "" && id == "":
		return r, kafka.OperatorErrorf("the hold is part of %s (%s), which ends it; a move is undone by 'oncebus abort', and a promotion that has not acted by its limit", h.Switch, h.Reason)
	case h.Leaving:
		return r, h.refuseRelease()
	}
	r.Hold = nil
	if !h.Arriving {
		return r, nil
	}
	a := r.Arrival
	switch {
	case a == nil:
		return r, kafka.OperatorErrorf("row %s of the manifest topic is gone: restore it", arrivalKey)
	case !a.Seeded:
		return r, kafka.OperatorErrorf("the app came from cluster %s and does not have all of its keys yet: start its processes, and run oncebus seed with the file of oncebus arrive", a.Cluster)
	}
	released := *a
	released.Released = true
	r.Arrival = &released
	return r, nil
}

// Leaving returns the hold of an app that leaves the cluster, or an operator error if the app does not leave.
func (r Residence) Leaving() (*Hold, error) {
	if r.Hold == nil || !r.Hold.Leaving {
		return nil, kafka.OperatorErrorf("the app does not leave this cluster: oncebus hold --leaving begins it")
	}
	return r.Hold, nil
}

// Export returns the hold under which an app that leaves may be exported, or an operator error.
func (r Residence) Export() (*Hold, error) {
	h, err := r.Leaving()
	if err == nil && h.Left {
		err = kafka.OperatorErrorf("the app has left this cluster for good: its keys have changed in the other one since")
	}
	return h, err
}

// TakeBack ends the hold of an app that leaves. If there is no hold, it does nothing, because the operator may
// have repeated the command.
func (r Residence) TakeBack() (Residence, error) {
	if r.Hold == nil {
		return r, nil
	}
	h, err := r.Leaving()
	if err != nil {
		return r, err
	}
	if h.Left {
		return r, h.refuseRelease()
	}
	r.Hold = nil
	return r, nil
}

// Leave makes the hold of an app that leaves final.
func (r Residence) Leave() (Residence, error) {
	h, err := r.Leaving()
	if err != nil {
		return r, err
	}
	left := *h
	left.Left = true
	r.Hold = &left
	return r, nil
}

// Seed stores that the tasks have everything that came with a file.
func (r Residence) Seed(file string) (Residence, error) {
	switch a := r.Arrival; {
	case a == nil || a.File != file:
		return r, kafka.OperatorErrorf("the app did not come with this file")
	case !a.Seeded:
		seeded := *a
		seeded.Seeded = true
		r.Arrival = &seeded
	}
	return r, nil
}

// refuseRelease returns the operator error for a release of an app that leaves its cluster. If the app has been
// released in the other cluster, a release here would make both emit every event.
func (h *Hold) refuseRelease() error {
	if h.Left {
		return kafka.OperatorErrorf("the app has left this cluster for good: %s, since %s; stop its processes", h.Reason, h.At.Format(time.RFC3339))
	}
	return kafka.OperatorErrorf("the app leaves this cluster: %s, since %s; if it was never released in the other one, take it back: oncebus release --back", h.Reason, h.At.Format(time.RFC3339))
}

// ResidenceIn returns the residence of an app from the rows of its manifest topic.
func ResidenceIn(rows Rows) (r Residence, err error) {
	if r.Hold, err = HoldIn(rows); err == nil {
		r.Arrival, err = ArrivalIn(rows)
	}
	return r, err
}

// records returns the records of the rows in which the residence differs from before.
func (r Residence) records(before Residence) (records []*kgo.Record, err error) {
	add := func(key string, row any) {
		rec, encodeErr := encodeRow(key, row)
		if encodeErr != nil {
			err = encodeErr
		}
		records = append(records, rec)
	}
	switch {
	case r.Hold == before.Hold:
	case r.Hold == nil:
		add(holdKey, nil)
	default:
		add(holdKey, r.Hold)
	}
	if r.Arrival != before.Arrival {
		add(arrivalKey, r.Arrival)
	}
	return records, err
}
