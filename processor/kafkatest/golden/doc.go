// Package golden compares the output of a test with a file of testdata, or with a
// generated section of a page. The flag -rewrite of go test writes both.
//
// It imports the standard library alone. Only tests import it: the flag would
// otherwise be one of the program's.
package golden
