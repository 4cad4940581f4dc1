package transfer

import (
	"oncebus/processor/app"
	"oncebus/processor/wire"
)

// levelOfSeeds is the level from which an app reads seeds.
const levelOfSeeds = 2

// levelOf returns the level of an app's encodings.
func levelOf(*app.App) int { return wire.LevelNewest }
