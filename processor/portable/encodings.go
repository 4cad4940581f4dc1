package portable

import "oncebus/dedup"

// Encodings lists the format of the file.
func Encodings() []dedup.Encoding {
	return []dedup.Encoding{{Name: "OBX", Place: "files of 'oncebus export'", Writes: []int{version, versionLeaving}, Reads: []int{version, versionLeaving}}}
}
