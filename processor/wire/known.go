package wire

import (
	"slices"

	"oncebus/dedup"
)

// KnownSince says from which event time on the rows of a namespace are complete after a change of its
// window. Rows with a First before Since count as absent, even if they are still stored. Events before
// LateBefore are late. Both are event times in ms.
type KnownSince struct {
	NamespaceID       uint8
	Since, LateBefore int64
}

// KnownOf returns the entry of a namespace id; false if its window has not changed.
func (c *Checkpoint) KnownOf(namespaceID uint8) (KnownSince, bool) {
	for _, k := range c.Known {
		if k.NamespaceID == namespaceID {
			return k, true
		}
	}
	return KnownSince{}, false
}

// AddKnown adds an entry. If the namespace already has an entry, the later one of each two times is kept.
// AddKnown copies the slice, because other checkpoints share it.
func (c *Checkpoint) AddKnown(k KnownSince) {
	at, has := slices.BinarySearchFunc(c.Known, k, func(a, b KnownSince) int { return int(a.NamespaceID) - int(b.NamespaceID) })
	c.Known = slices.Clone(c.Known)
	if !has {
		c.Known = slices.Insert(c.Known, at, k)
		return
	}
	have := &c.Known[at]
	have.Since, have.LateBefore = max(have.Since, k.Since), max(have.LateBefore, k.LateBefore)
}

// Window returns the window of a namespace id, limited to the times for which its rows are known. rule
// is the window in the checkpoint's route set.
func (c *Checkpoint) Window(namespaceID uint8, rule dedup.Window) dedup.Window {
	if k, ok := c.KnownOf(namespaceID); ok {
		return rule.Known(k.Since, k.LateBefore)
	}
	return rule
}

func (c *Checkpoint) decodeKnown(r *dedup.Cursor) {
	n := r.Byte()
	if n == 0 {
		r.Fail()
	}
	for ; n > 0 && !r.Bad(); n-- {
		k := KnownSince{NamespaceID: r.Byte(), Since: r.Varint(), LateBefore: r.Varint()}
		if last := len(c.Known) - 1; last >= 0 && c.Known[last].NamespaceID >= k.NamespaceID {
			r.Fail()
		}
		c.Known = append(c.Known, k)
	}
}
