// Package sketch finds the most frequent names of a stream in fixed memory, by the space-saving algorithm: A.
// Metwally, D. Agrawal, A. El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams",
// ICDT 2005.
//
// A Sketch has k counters; each counter has a name, a count and an error. A name without a counter takes over
// the lowest counter: the counter gets the new name and goes on counting from its count, and that count becomes
// the error of the new name. After N offered names:
//
//   - Count - Error <= true count <= Count, for each counter.
//   - A name without a counter came at most Missing times, and Missing <= N/k.
//   - So each name that came more than N/k times has a counter, and no error is above N/k. With 128 counters
//     and a million names, every name that came more than 7812 times has a counter.
//
// Merge keeps these bounds, with the sum of the two N and the smaller k (M. Cafaro, M. Pulimeno, P. Tempesta,
// "A parallel space saving algorithm for frequent items", 2016): if only one of the two sketches has a counter
// for a name, Merge adds to that counter what the other sketch may have missed.
//
// The code is our own, because Offer must not allocate and because offers must be undoable; known libraries
// keep a linked list and a map of strings. Commit makes offers final and Discard undoes them, like the rows of
// a transaction. The cost of Commit, Discard and AppendChanges depends on the number of changed counters, so
// the bytes in a changelog grow with the number of events and not with k.
//
// The package computes and imports only dedup. It does no I/O and starts no goroutine.
package sketch
