package wire

import "oncebus/dedup"

// Encodings lists the record encodings that this package writes, with their versions.
func Encodings() []dedup.Encoding {
	checkpoints := []int{checkpointVersion, checkpointVersionClaims, checkpointVersionSenders, checkpointVersionSets}
	return []dedup.Encoding{
		{Name: "envelope", Place: "keys of the repartition topic, pinned by the manifest", Writes: []int{EnvelopeVersion}, Reads: []int{EnvelopeVersion}},
		{Name: "checkpoint", Place: "changelogs: the position of a task", Writes: checkpoints, Reads: checkpoints},
		{Name: "partial checkpoint", Place: "changelogs: what changed in a checkpoint", Writes: []int{partialVersion}, Reads: []int{partialVersion}},
		{Name: "seed counts", Place: "changelogs: what became of seeds", Writes: []int{seedCountsVersion}, Reads: []int{seedCountsVersion}},
	}
}
