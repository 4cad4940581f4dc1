package dedup

// Encoding is what this build says of the bytes that it stores in one place. An upgrade
// depends on it: a build refuses what it does not read.
type Encoding struct {
	Name string `json:"name"`
	// Place is where the bytes are, for people.
	Place string `json:"place"`
	// Writes has the versions that this build writes: more than one if the content decides.
	Writes []int `json:"writes"`
	// Reads has the versions that it reads.
	Reads []int `json:"reads"`
}

// Encodings lists the encodings of a changelog.
func Encodings() []Encoding {
	return []Encoding{
		{"changelog", "changelogs: all of it, pinned by the manifest", []int{ChangelogVersion}, []int{ChangelogVersion}},
		{"row", "changelogs and local stores", []int{RowVersion}, []int{RowVersion}},
		{"pack", "changelogs: several rows in one record", []int{PackVersion}, []int{PackVersion}},
		{"claim", "the rows of routes in claim mode", []int{claimVersion}, []int{claimVersion}},
	}
}
