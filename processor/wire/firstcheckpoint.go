package wire

// FirstOf returns the first checkpoint of the tasks of a new generation of partitions, made from the closed
// checkpoints of the generation before. The input of each new task begins at offset 0. Each new task may get
// rows of any old task, so it takes over what any old task knew about time. The checkpoint has no counts of
// rows: a restore counts the rows. Its Sequence is 0, which no task writes.
func FirstOf(closed []Checkpoint) Checkpoint {
	first := Checkpoint{Epoch: -1, Counted: true}
	for i := range closed {
		c := &closed[i]
		first.Set = max(first.Set, c.Set)
		first.ClaimedAt = max(first.ClaimedAt, c.ClaimedAt)
		first.SteppedAt = max(first.SteppedAt, c.SteppedAt)
		for id, has := range c.StreamTimes.Has {
			if has && (!first.StreamTimes.Has[id] || c.StreamTimes.At[id] > first.StreamTimes.At[id]) {
				first.StreamTimes.Has[id], first.StreamTimes.At[id] = true, c.StreamTimes.At[id]
			}
		}
		for _, a := range c.Ahead {
			first.SetAhead(a.NamespaceID, a.At)
		}
		for n := range c.Sources {
			first.SetAhead(c.Sources[n].NamespaceID, c.Sources[n].Highest)
		}
		for _, k := range c.Known {
			first.AddKnown(k)
		}
	}
	first.DropAhead()
	return first
}

// EventCounts returns the encoded counts of judged events and their duplicates, summed over all
// checkpoints. It leaves out the counts of rows.
func EventCounts(all []Checkpoint) (string, error) {
	sum := keyCounts{}
	for i := range all {
		counts, err := decodeKeyCounts(all[i].Counts)
		if err != nil {
			return "", err
		}
		for key, one := range counts {
			if key.status != CountsOfEvents {
				continue
			}
			if sum[key] == nil {
				sum[key] = &keyCount{}
			}
			sum[key].judged += one.judged
			sum[key].duplicates += one.duplicates
		}
	}
	return sum.encode(), nil
}
