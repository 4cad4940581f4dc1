package oracle

// liveKeys counts the live keys of a namespace in one partition. A key is live for two
// windows and the grace, and counts up to a 64th of that longer.
type liveKeys struct {
	width int64           // of a bucket, ms
	rows  map[int64]int64 // by bucket of the first seen time
}

// bucketsPerRetention is how many buckets a retention has.
const bucketsPerRetention = 64

// keysOf returns the live keys of a route's namespace.
func (f *fold) keysOf(r *Route) *liveKeys {
	if f.live[r.NamespaceID] == nil {
		f.live[r.NamespaceID] = &liveKeys{width: max(1, rowRetention(r.Window, r.Grace)/bucketsPerRetention), rows: map[int64]int64{}}
	}
	return f.live[r.NamespaceID]
}

func (k *liveKeys) bucket(at int64) int64 {
	n := at / k.width
	if at%k.width < 0 {
		n--
	}
	return n
}

// liveKeys returns how many keys of the route's namespace are live at a stream time.
func (f *fold) liveKeys(r *Route, streamTime int64, running bool) (n int64) {
	k := f.keysOf(r)
	lowest := k.bucket(add(streamTime, -rowRetention(r.Window, r.Grace)))
	for bucket, rows := range k.rows {
		if running && bucket < lowest {
			delete(k.rows, bucket)
			continue
		}
		n += rows
	}
	return n
}

// count counts the row of a judgement for a limit. That of an earlier window is of a key that
// counts already.
func (f *fold) count(r *Route, j *judgement) {
	if r.LiveKeys == 0 || j.row.earlier {
		return
	}
	k := f.keysOf(r)
	if j.replaces != nil {
		k.rows[k.bucket(j.replaces.first)]--
	}
	k.rows[k.bucket(j.row.first)]++
}
