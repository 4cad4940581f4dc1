// Package top is 'oncebus top': the figures of the live page in a terminal, or once as text
// or JSON.
//
// It owns the reader of the page's stream and snapshot (feed), the layout of a snapshot as
// lines of text (layout), and the screen (screen).
//
// It may import page for the names of the figures, cli, processor/security for TLS files, and
// bubbletea, which draws the screen and reads keys. It alone imports bubbletea.
//
// # Invariants
//
//   - The layout is a pure function of snapshot, size and choices. It fits the size: no line
//     is wider and none is added.
//   - Figures are those of the snapshot; nothing is computed from two of them.
//   - It writes nothing to the process that it shows.
//   - The screen is given back as it was, also after an error.
//
// # What looks wrong
//
//   - A terminal gets the stream, all else one snapshot: a script that reads a pipe wants one
//     answer.
//   - A process that is gone keeps its last figures on the screen, under a line that says so.
package top
