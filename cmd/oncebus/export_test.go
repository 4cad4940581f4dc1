package main

// For the tests of package main_test: the program's command table, what it stores, and what every process exports.
var (
	Commands        = commands
	Encodings       = encodings
	Versions        = versions
	RegisterBuild   = registerBuild
	RegisterRuntime = registerRuntime
)
