package oracle

// liveKeys counts the live keys of a namespace in a partition. A key is live for two windows and the grace. A
// key may be counted for up to a 64th of that time longer, because keys are counted in buckets.
type liveKeys struct {
	width int64           // width of a bucket, ms
	rows  map[int64]int64 // number of rows, by bucket of the first seen time
}

// bucketsPerRetention is into how many buckets a retention is divided.
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

// count counts the row of a judgement for the limit. It does not count a row of an earlier window, because the
// key of that row counts already.
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
