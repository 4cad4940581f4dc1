// Package portable reads and writes OBX1, the file of an app's live rows.
//
// # What it owns
//
// The format, byte by byte. Integers of fixed length are big-endian; uvarint and varint are as in
// encoding/binary.
//
//	file    = "OBX1" | version, one byte | header | block ... | trailer
//	header  = length 4 | JSON of Header | CRC-32C of the JSON 4
//	block   = 'B' | rows 4 | length of the bodies 4 | length of the compressed bodies 4 |
//	          digests 16 each | compressed bodies | CRC-32C of the block before this 4
//	trailer = 'T' | length 4 | JSON of Trailer | CRC-32C of the JSON 4 |
//	          SHA-256 of the file before this 32
//
// A block has up to 8,192 rows. Digests are random and cannot be compressed, so they stand apart from the
// bodies, and uncompressed. The bodies are compressed by zstd. A body is:
//
//	flags 1 | [namespace id 1] | [task uvarint] | first varint |
//	[status 1, and details as dedup.Row.AppendDetails has them, with their flags 1]
//
// First is the difference from the first seen time of the previous row in the block, or from 0 for the first
// row of the block. The flags are 1 for a namespace id, 2 for a task, and 4 for a status and details. A part
// that is left out has the value of the previous row; without flag 4 the row is one of plain deduplication
// without details. The namespace id is an index into the header's namespaces, the task an index into its tasks.
//
// Version 2 is for the file of an app that leaves its cluster: its header has Leaving.
//
// The file does not contain the positions of first events, because they are valid only in the app that wrote
// it.
//
// It may import dedup and the zstd codec. Its only I/O is through the reader and the writer that it is given.
//
// # Invariants
//
//   - After the rows of a damaged file, a reader always returns an error, and it returns no row of a damaged block. The
//     error names the block and the offset.
//   - A reader allocates no more memory than its bounds allow, whatever the file claims.
//   - A reader refuses a version that it does not know. If the format changes, it gets a new version.
package portable
