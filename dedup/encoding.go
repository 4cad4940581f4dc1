package dedup

// Encoding says which versions of one stored encoding this build writes and reads. An upgrade depends on it:
// a build refuses bytes of a version that it does not read.
type Encoding struct {
	Name string `json:"name"`
	// Place is a text for people that says where the bytes are stored.
	Place string `json:"place"`
	// Writes has the versions that this build writes. It has several versions if the content of a record
	// decides in which version the record is written.
	Writes []int `json:"writes"`
	// Reads has the versions that this build reads.
	Reads []int `json:"reads"`
}

// Encodings lists the encodings that a changelog consists of.
func Encodings() []Encoding {
	return []Encoding{
		{"changelog", "changelogs: all of it, pinned by the manifest", []int{ChangelogVersion}, []int{ChangelogVersion}},
		{"row", "changelogs and local stores", []int{RowVersion}, []int{RowVersion}},
		{"pack", "changelogs: several rows in one record", []int{PackVersion}, []int{PackVersion}},
		{"claim", "the rows of routes in claim mode", []int{claimVersion}, []int{claimVersion}},
	}
}
