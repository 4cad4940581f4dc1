package wire

// Levels of the encodings. The manifest has the level of the app. Every process writes the
// encodings of that level, and reads those of all levels that its build knows. So two
// builds that follow one another can run side by side, and an older build can come back
// until 'oncebus finalize' raises the level.
//
//   - Level 1: the routes file of each process decides. Checkpoints name no route set.
//   - Level 2: the manifest topic has numbered route sets, and checkpoints name the set by
//     which their task judges, and how far its sources were read: a backlog makes no event late.
//     Rows may be of earlier windows of their keys. Envelopes may be seeds, stream times, queries,
//     or those of shadows.
const (
	LevelOldest = 1
	LevelNewest = 2
)
