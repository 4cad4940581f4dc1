// Package portable reads and writes OBX1, the file of an app's live rows.
//
// # What it owns
//
// The format, byte by byte. Integers of fixed length are big-endian; uvarint and varint are
// those of encoding/binary.
//
//	file    = "OBX1" | version, one byte | header | block ... | trailer
//	header  = length 4 | JSON of Header | CRC-32C of the JSON 4
//	block   = 'B' | rows 4 | length of the bodies 4 | length of the compressed bodies 4 |
//	          digests 16 each | compressed bodies | CRC-32C of the block before this 4
//	trailer = 'T' | length 4 | JSON of Trailer | CRC-32C of the JSON 4 |
//	          SHA-256 of the file before this 32
//
// A block has up to 8,192 rows. The digests are random, so they are apart and as they are. The
// bodies are compressed by zstd. A body is:
//
//	flags 1 | [namespace id 1] | [task uvarint] | first varint |
//	[status 1, and details as dedup.Row.AppendDetails has them, with their flags 1]
//
// First is the difference to the row before in the block, to 0 for the first row. Flags: 1 a
// namespace id, 2 a task, 4 a status and details. What is left out is as in the row before; without
// flag 4 the row is one of plain deduplication without details. The namespace id is the index
// of the header's namespaces, the task that of its tasks.
//
// Version 2 is that of an app that leaves its cluster: its header has Leaving.
//
// The places of first events are not in the file: they are those of the app that wrote it.
//
// It may import dedup, and the codec of zstd. It does no I/O but that of its reader and writer.
//
// # Invariants
//
//   - A reader returns no row of a damaged file without an error in the end, and none of a
//     damaged block. The error names block and offset.
//   - A reader allocates no more than its bounds, whatever the file says.
//   - A version that it does not know is refused. A changed format is a further version.
package portable
