package transfer

import "oncebus/processor/app"

// levelOfSeeds is the level from which an app reads seeds.
const levelOfSeeds = 2

// levelOf returns the level of an app's encodings.
func levelOf(a *app.App) int { return a.Level }
