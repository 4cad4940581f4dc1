// Package top is 'oncebus top': it shows the figures of the live page in a terminal, or prints them once as
// text or JSON.
//
// It owns the reader of the page's stream and snapshot (feed), the layout of a snapshot as lines of text
// (layout), and the screen (screen).
//
// It may import page for the names of the figures, cli, processor/security for TLS files, and bubbletea, which
// draws the screen and reads keys. No other package imports bubbletea.
//
// # Invariants
//
//   - The layout is a pure function of the snapshot, the size and the user's choices. No line is wider than the
//     screen, and there are no more lines than the screen has.
//   - All figures are taken from the snapshot; nothing is computed from two snapshots.
//   - top only reads from the process that it shows.
//   - The terminal is restored to its former state at the end, also after an error.
//
// # What looks wrong
//
//   - On a terminal, top reads the stream; otherwise it reads one snapshot, because a script that reads from a pipe
//     wants one answer.
//   - If a process no longer responds, its last figures stay on the screen, below a line that says so.
package top
