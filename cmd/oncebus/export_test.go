package main

// For the tests of package main_test: the program's command table, and what every process exports.
var (
	Commands        = commands
	RegisterBuild   = registerBuild
	RegisterRuntime = registerRuntime
)
