package wire

// LevelOldest and LevelNewest are the levels of the encodings that this build knows. The manifest has
// the level of the app. Every process writes the encodings of that level, and reads the encodings of
// all levels that its build knows. Two successive builds can therefore run side by side, and an older
// build can come back until 'oncebus finalize' raises the level.
//
//   - Level 1: the routes file of each process decides. Checkpoints name no route set.
//   - Level 2: the manifest topic has numbered route sets. Checkpoints name the set by which their task
//     judges, and say how far the task's sources were read, so that a backlog makes no event late. The
//     store may have rows of earlier windows of a key. Envelopes may be seeds, stream times, queries,
//     or verdicts for shadows.
const (
	LevelOldest = 1
	LevelNewest = 2
)
