package state

import "oncebus/dedup"

// Encodings lists the encodings of a local store. A store of another version is rebuilt
// from the changelog.
func Encodings() []dedup.Encoding {
	return []dedup.Encoding{
		{Name: "store manifest", Place: "local stores", Writes: []int{manifestVersion}, Reads: []int{manifestVersion}},
		{Name: "store block", Place: "local stores: pages and filters of a run", Writes: []int{blockVersion}, Reads: []int{blockVersion}},
	}
}
