package main

// Commands is the program's command table, for the tests of package main_test.
var Commands = commands
