package wire

import (
	"encoding/binary"
	"slices"

	"oncebus/dedup"
	"oncebus/dedup/rules"
	"oncebus/dedup/sketch"
)

// RouteSenders has the duplicates of one route by sender.
type RouteSenders struct {
	Route string // its name
	sketch.Summary
}

// sendersMax bounds the routes with sender counts in a checkpoint: the routes of the routes file, and
// former routes whose counts are carried along.
const sendersMax = 1 << 10

// appendSenders appends the number of routes, uvarint, and for each route: length of the name 1, name,
// summary.
func appendSenders(dst []byte, all []RouteSenders) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(all)))
	for i := range all {
		dst = append(append(dst, byte(len(all[i].Route))), all[i].Route...)
		dst = all[i].Append(dst)
	}
	return dst
}

func decodeSenders(r *dedup.Cursor) (all []RouteSenders) {
	n := r.Uvarint(sendersMax)
	if n == 0 {
		r.Fail()
	}
	for ; n > 0 && !r.Bad(); n-- {
		route := string(r.Bytes(int(r.Byte())))
		all = append(all, RouteSenders{Route: route, Summary: sketch.DecodeSummary(r)})
	}
	return all
}

// AppendSenderRoute begins the changes of a route's senders in a partial checkpoint. place is the
// route's index in the whole checkpoint. What sketch.Sketch.AppendChanges appends follows.
func AppendSenderRoute(dst []byte, place int) []byte { return binary.AppendUvarint(dst, uint64(place)) }

// applySenders applies the changes of the sender counts in a partial checkpoint.
func (c *Checkpoint) applySenders(changes []byte, r *dedup.Cursor) {
	c.Senders = slices.Clone(c.Senders)
	for in := dedup.NewCursor(changes); !in.Done(); {
		place := int(in.Uvarint(sendersMax))
		if in.Bad() || place >= len(c.Senders) {
			r.Fail()
			return
		}
		c.Senders[place].ApplyChanges(&in)
	}
}

// This fails to compile if the name of a sender does not fit into a counter of the sketch.
var _ [sketch.NameMax - rules.SenderBytesMax]struct{}
