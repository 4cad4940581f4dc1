// Package sketch finds the most frequent names of a stream in fixed memory, by the
// space-saving algorithm: A. Metwally, D. Agrawal, A. El Abbadi, "Efficient Computation of
// Frequent and Top-k Elements in Data Streams", ICDT 2005.
//
// A Sketch has k counters, each with a name, a count and an error. A name without a counter
// takes the lowest one: its count goes on from there, and that count is its error. With N
// names offered:
//
//   - Count - Error <= true count <= Count, for each counter.
//   - A name without a counter came at most Missing times, and Missing <= N/k.
//   - So each name that came more than N/k times has a counter, and no error is above N/k.
//
// Merge keeps these bounds, with the sum of the two N and the smaller k (M. Cafaro,
// M. Pulimeno, P. Tempesta, "A parallel space saving algorithm for frequent items", 2016):
// a counter that one of the two lacks gets what the other one may have missed.
//
// The code is our own because Offer must not allocate, and because offers can be undone. Known
// libraries keep a linked list and a map of strings. Offers become final with Commit and are undone by Discard, like
// the rows of a transaction; both cost what changed. AppendChanges has the same cost, so the
// bytes of a changelog grow with the events and not with k.
//
// The package computes and imports only dedup. It does no I/O and starts no goroutine.
package sketch
