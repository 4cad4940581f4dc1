package portable

import "oncebus/dedup"

// Encodings lists the versions of the file format.
func Encodings() []dedup.Encoding {
	return []dedup.Encoding{{Name: "OBX", Place: "files of 'oncebus export'", Writes: []int{version, versionLeaving}, Reads: []int{version, versionLeaving}}}
}
