package app

import "oncebus/dedup"

// Encodings lists the encoding of the manifest. An app keeps the manifest version with which it began, until a
// start finds that none of its processes runs.
func Encodings() []dedup.Encoding {
	versions := []int{manifestVersion, manifestVersionAppTokens, manifestVersionLevels}
	return []dedup.Encoding{{Name: "manifest", Place: "<app>-manifest: what an app pins", Writes: versions, Reads: versions}}
}
