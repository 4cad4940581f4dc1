// Package page is the live page of a process: the process's figures as one JSON model, the last hour of these
// figures, a stream of both, and the web page that draws them.
//
// It owns Snapshot, whose JSON names are an interface, and the files in assets. 'oncebus top' reads the same
// model.
//
// It may import processor, dedup, cli and the metrics libraries. It does not depend on the commands.
//
// # Invariants
//
//   - Every figure comes from the process's registry or from processor.State, so that the page agrees with /metrics
//     and /state.
//   - While nobody reads the page, the process gathers its metrics once per coarseStep; with readers it gathers
//     them once per fineStep, for all readers together. This takes at most half a percent of a core: if
//     gathering is expensive, the process does it less often.
//   - Memory is bounded: historyBytesMax of history whatever the number of routes, entriesMax log entries, and
//     streamsMax streams.
//   - A slow reader misses snapshots, but does not delay other readers or the process.
//   - The page loads nothing from another host, and has no inline script or style.
//
// # What looks wrong
//
//   - The page and its scripts need no token, because they contain no figures. The snapshot and the stream need it.
//     The browser's EventSource cannot send a token, so the page reads the stream with fetch.
//   - The server's write timeout does not apply to a stream. Instead, each single write to a stream has a
//     timeout.
//   - The samples are not evenly spaced: when a reader comes, samples of one second begin in the middle of the
//     samples of ten seconds.
package page
