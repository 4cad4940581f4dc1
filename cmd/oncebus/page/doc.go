// Package page is the live page of a process: its figures as one JSON model, their last
// hour, a stream of both, and the page that draws them.
//
// It owns Snapshot, whose JSON names are an interface, and the files in assets. 'oncebus
// top' reads the same model.
//
// It may import processor, dedup, cli and the metrics libraries. It knows no command.
//
// # Invariants
//
//   - Every figure comes from the process's registry or from processor.State. So the page
//     equals /metrics and /state.
//   - Without a reader it gathers once in coarseStep, with readers once in fineStep, for
//     all of them together. Readings take at most half a percent of a core: expensive
//     ones are rarer.
//   - Memory is bounded: historyBytesMax of history whatever the number of routes,
//     entriesMax log entries, streamsMax streams.
//   - A slow reader misses snapshots. It delays neither another reader nor the process.
//   - The page loads nothing from another host, and has no inline script or style.
//
// # What looks wrong
//
//   - The page and its scripts need no token, because they hold no figures. The snapshot
//     and the stream do. EventSource cannot send a token, so the page reads the stream
//     with fetch.
//   - A stream has no write timeout of the server. Each write has one.
//   - The times of the samples are uneven: a reader starts samples of a second in the
//     middle of those of ten seconds.
package page
